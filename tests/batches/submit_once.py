"""A process that runs `submit` for one shard, for tests that kill it: prints what it came to.

The project comes from the SDK's own variable OPENAI_PROJECT_ID.
"""

from __future__ import annotations

import sys

from include.ledger.connect import connect
from include.storage import Storage
from tests.batches.submitting import openai_provider, send


def main(ledger_url: str, storage_root: str, base_url: str, shard_id: str) -> None:
    """Submit the shard for the run `run`."""
    with connect(ledger_url) as ledger:
        print(send(ledger, Storage(storage_root), openai_provider(base_url), shard_id), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
