"""A process of its own that upserts a run, so that a test can kill it."""

from __future__ import annotations

import sys

from include.ledger.connect import connect
from include.storage import Storage
from include.stores.lancedb import LanceStore
from tests.indexes.world import World


def main(ledger_url: str, root: str, store_url: str, run: str, batch_rows: int) -> None:
    """Upsert all ranges of a run in batches of that many rows."""
    storage = Storage(root)
    with connect(ledger_url) as connection:
        store = LanceStore(store_url)
        store.commit_bytes = 1  # each batch is there as soon as it was written
        world = World(connection, storage, store)
        rows = storage.list(f"{world.run(run).uri}/rows", ".parquet")
        world.ranges = sum("range-" in path for path in rows)
        world.upsert(world.run(run), batch_rows=batch_rows)


if __name__ == "__main__":
    _, ledger_url, root, store_url, run, batch_rows = sys.argv
    main(ledger_url, root, store_url, run, int(batch_rows))
