"""Says which corpora have a wrong YAML, on Airflow's page of import errors. Defines no DAG.

A file of its own: Airflow takes away every DAG of a file that has an error, and one wrong corpus
must take away only its own.
"""

from __future__ import annotations

from batch_inference.dag_factory import refuse_invalid_corpora

refuse_invalid_corpora()
