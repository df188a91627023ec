"""Metadata extraction: one DAG a corpus that has an `extraction`, `metadata_extraction__{corpus}`.

Has a model fill the corpus's own fields for each document or chunk, and makes them filters.
"""

from __future__ import annotations

from airflow.sdk import DAG  # noqa: F401 - Airflow only reads files that name it
from batch_inference.dag_factory import build_all

DOC = """
### Metadata extraction

Asks a model, through its provider's batch API, for the fields that the corpus's YAML names (summary,
keywords and entities where it names none) of each document or chunk that an ingest has stored, and puts them
into the metadata of the index. Nothing is embedded.

* **Running it again** asks only for what is new: documents whose text, or whose instructions, changed.
* **An answer that isn't of the form asked for** is sent back once, with what is wrong with it; then it is a
  dead letter. `dead_letter_replay` mends a truncated one with a higher `max_tokens`.
* `dry_run` ends after the estimate, `budget_usd` caps what may be spent.

An ingest keeps what was extracted from texts that are still the same.
"""

globals().update(build_all("metadata_extraction", DOC))
