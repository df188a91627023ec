"""A corpus with an index version, on a real ledger and a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.ledger.connect import Connection
from include.storage import Storage
from include.stores.registry import open_store
from tests.indexes.world import World


@pytest.fixture
def world(ledger: Connection, storage: Storage, tmp_path: Path) -> World:
    world = World(ledger, storage, open_store("lancedb", f"file://{tmp_path}/lancedb"))
    world.build()
    return world
