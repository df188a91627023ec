"""Initial ingest: one DAG a corpus, `initial_ingest__{corpus}`.

First embedding of a corpus through the batch API, and the nightly run that keeps it fresh.
"""

from __future__ import annotations

from airflow.sdk import DAG  # noqa: F401 - Airflow only reads files that name it
from batch_inference.dag_factory import build_all

DOC = """
### Initial ingest

Reads the corpus, cuts it into chunks, has every chunk that has no embedding yet embedded through the
provider's batch API, writes the vectors to the index, and publishes it once it is complete.

* **Trigger it from this page** to read all partitions, or those that you name.
* **Scheduled runs and backfills** see the partitions of their data interval.
* **Running it again** asks the provider only for what is new: results are kept by content.
* `dry_run` ends after the estimate, `budget_usd` caps what may be spent.

What failed is in the dead letters; `report` says what was read, reused, sent, landed and spent.
"""

globals().update(build_all("initial_ingest", DOC))
