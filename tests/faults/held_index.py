"""LanceDB whose commits pass a gate: a store of one's own, named in the YAML by its dotted path.

What Lance does within a commit is its own: it was killed there by those who made it.
"""

from __future__ import annotations

from typing import Any

import tests.faults.held_files  # noqa: F401  registers held://
from include.stores.lancedb import LanceStore
from tests.faults.gate import passing

COMMITS = frozenset({"add", "create_index", "create_table", "delete", "drop_table", "execute", "optimize"})
"""The calls of LanceDB's that change an index; `execute` is a merge's."""


class HeldLance(LanceStore):
    """LanceDB on local files, every commit announced."""

    def _database(self) -> Any:
        return _Held(super()._database())


class _Held:
    """A database, a table or a merge of LanceDB's: what it commits is announced."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in COMMITS:
            return _announced(name, found)
        return _wrapped(found) if name in _GIVES_MORE else found


_GIVES_MORE = frozenset(
    {"open_table", "merge_insert", "when_matched_update_all", "when_not_matched_insert_all"}
)


def _announced(name: str, call: Any) -> Any:
    def announced(*arguments: Any, **options: Any) -> Any:
        with passing("index", name):
            given = call(*arguments, **options)
        return _Held(given) if name == "create_table" else given

    return announced


def _wrapped(call: Any) -> Any:
    return lambda *arguments, **options: _Held(call(*arguments, **options))
