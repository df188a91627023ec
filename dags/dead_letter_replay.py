"""Dead letter replay: one DAG a corpus, `dead_letter_replay__{corpus}`.

Asks again what failed for good, as it was or with a change, and puts the answers where the first
attempt would have.
"""

from __future__ import annotations

from airflow.sdk import DAG  # noqa: F401 - Airflow only reads files that name it
from batch_inference.dag_factory import build_all

DOC = """
### Dead letter replay

Takes the corpus's dead letters that the form describes (all open ones, where nothing is filled in) and asks
them again: the same steps as an ingest, with the letters in the place of the sources.

* **An answer closes its letter** and goes into the index, for documents whose text is still the same. The
  next ingest finds the question answered and sends nothing.
* **What fails again** is open again, with its new reason.
* `max_input_tokens` asks with only the beginning of each text; `model` and `max_tokens` are for generated
  text.
* `dry_run` says how many letters match and what asking them costs, and takes none.

Two replays at once never ask the same letter; one that is cancelled or fails gives back what it didn't
decide.
"""

globals().update(build_all("dead_letter_replay", DOC))
