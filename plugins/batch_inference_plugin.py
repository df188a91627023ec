"""Registers the package with Airflow. The one file here that Airflow executes by itself.

Everything else lives in `batch_inference/`, which `.airflowignore` names: Airflow runs each file
under plugins/ under its bare name, and one named like a library would replace that library.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class BatchInferencePlugin(AirflowPlugin):
    """Makes the package known to `airflow plugins`."""

    name = "batch_inference"
