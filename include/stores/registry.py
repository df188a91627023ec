"""Opens a vector store by the name a corpus gives it: a bundled one, or your own by dotted path."""

from __future__ import annotations

import importlib
from typing import Any

from include.contracts import VectorStore
from include.errors import ConfigError

STORES: dict[str, str] = {"lancedb": "include.stores.lancedb.LanceStore"}
"""Bundled stores: the name in the corpus's YAML, and the class."""


def open_store(kind: str, url: str, client: Any = None) -> VectorStore:
    """The store of this kind at `url`, around a ready SDK client where it needs one.

    `kind` is a key of `STORES` or the dotted path of a class that is called with the URL and,
    where one is given, `client=`. Raises ConfigError when there is no such class.
    """
    path = STORES.get(kind, kind)
    module, _, name = path.rpartition(".")
    if not module:
        raise ConfigError(
            f"index.store is {kind!r}, which is no bundled store ({', '.join(sorted(STORES))}) and no "
            "dotted path of a class such as my_project.stores.MyStore"
        )
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"index.store is {kind!r} and can't be loaded: {error}") from error
    store = cls(url) if client is None else cls(url, client=client)
    if not isinstance(store, VectorStore):
        raise ConfigError(f"index.store is {kind!r}, which lacks methods of contracts.VectorStore")
    return store
