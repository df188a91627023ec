"""A corpus names its store: a bundled one, or one's own by dotted path."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.contracts import VectorStore
from include.errors import ConfigError
from include.stores.capabilities import DENIED
from include.stores.lancedb import LanceStore
from include.stores.registry import STORES, open_store


def test_a_bundled_store_opens_by_its_name(tmp_path: Path) -> None:
    store = open_store("lancedb", str(tmp_path))
    assert isinstance(store, LanceStore) and isinstance(store, VectorStore)


def test_an_own_store_opens_by_dotted_path_with_its_client(tmp_path: Path) -> None:
    client = object()
    store = open_store("include.stores.lancedb.LanceStore", str(tmp_path), client)
    assert isinstance(store, LanceStore) and store._client is client


@pytest.mark.parametrize("kind", ["lanceDB", "no.such.module.Store", "include.stores.lancedb.Nothing"])
def test_a_store_that_is_not_there_names_the_setting(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"index\.store"):
        open_store(kind, "")


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="VectorStore"):
        open_store("pathlib.Path", "")


def test_every_bundled_store_has_its_line_in_the_capability_table() -> None:
    assert set(DENIED) == set(STORES)
