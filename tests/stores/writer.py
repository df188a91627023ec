"""A process that writes rows of its own and rows that every writer has, as fast as it can."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.stores.contract import STORES, batch


def main(kind: str, folder: str, index: str, number: int, ready: Path, go: Path) -> None:
    """Wait for the starting gun, then upsert in small batches."""
    store = STORES[kind](Path(folder))
    store.count(index)
    (ready / str(number)).touch()
    while not go.exists():
        pass
    for start in range(0, 300, 30):
        store.upsert(index, [batch(range(start, start + 30))])
        own = (number + 1) * 1000 + start
        store.upsert(index, [batch(range(own, own + 30))], holds="nothing")


if __name__ == "__main__":
    _, kind, folder, index, number, ready, go = sys.argv
    main(kind, folder, index, int(number), Path(ready), Path(go))
