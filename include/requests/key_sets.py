"""Sets of keys in DuckDB, over Parquet files of the storage, out of core.

Millions of keys need neither the memory for them nor a loop in Python. What a question makes goes
with it; what doesn't fit its memory limit spills into a scratch folder that goes as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pendulum
import pyarrow as pa

from include.contracts import KEY_BYTES
from include.storage import Storage

if TYPE_CHECKING:
    import duckdb

_STREAM_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Resources:
    """What a database may use: memory before it spills, threads, and a folder to spill into
    (the machine's temporary one by default)."""

    memory_limit: str = "192MB"
    threads: int = 2
    scratch: str | None = None


_idle: list[duckdb.DuckDBPyConnection] = []
"""A database that waits for the next question: making one takes some 20 ms, as its catalog of functions is
filled anew. It holds nothing: all that a question makes is temporary, and goes with its cursor."""
_HELD = "select coalesce(sum(memory_usage_bytes), 0) from duckdb_memory()"


@contextmanager
def opened(storage: Storage, resources: Resources | None = None) -> Iterator[KeySets]:
    """An empty database that reads the storage's files."""
    resources = resources or Resources()
    with tempfile.TemporaryDirectory(prefix="batch-keys-", dir=resources.scratch) as scratch:
        database = _database(resources, scratch)
        try:
            with database.cursor() as cursor:
                if not storage.is_local:
                    database.register_filesystem(storage.fs)
                yield KeySets(cursor, storage, scratch)
        except BaseException:
            database.close()
            raise
        if storage.is_local and not _idle and _gave_back(database, resources):
            _idle.append(database)
        else:
            database.close()


def _database(resources: Resources, scratch: str) -> duckdb.DuckDBPyConnection:
    """The one that waits, or a new one."""
    import duckdb

    config: dict[str, str | int] = {
        "memory_limit": resources.memory_limit,
        "threads": resources.threads,
        "temp_directory": scratch,
    }
    with suppress(IndexError):  # none waits
        database = _idle.pop()
        try:
            for name, value in config.items():
                database.execute(f"set {name} = {_quoted(str(value))}")
        except duckdb.Error:  # it spilled: its folder can't be changed any more
            database.close()
        else:
            return database
    fixed: dict[str, str | int] = {"preserve_insertion_order": False, "autoinstall_known_extensions": False}
    return duckdb.connect(config={**config, **fixed})


def _gave_back(database: duckdb.DuckDBPyConnection, resources: Resources) -> bool:
    """Whether all memory is the system's again. A stream that somebody holds still has some; what is only
    kept in case it is needed is given back when the limit is set. The question was answered: an error here
    is no error of it."""
    import duckdb

    try:
        ((held,),) = database.execute(_HELD).fetchall()
        if not held:
            database.execute(f"set memory_limit = {_quoted(resources.memory_limit)}")
    except duckdb.Error:
        return False
    return not held


def _close_idle() -> None:
    while _idle:
        _idle.pop().close()


# A fork would have it without its threads, and could neither use nor close it.
os.register_at_fork(before=_close_idle)


class KeySets:
    """Views of files and tables of keys, by name. Names and columns are ours, never input."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, storage: Storage, scratch: str) -> None:
        self._connection = connection
        self._storage = storage
        self.scratch = scratch
        """A folder for files that go with the question."""

    def files(
        self, name: str, paths: Sequence[str], columns: str, since: pendulum.DateTime | None = None
    ) -> None:
        """A view of Parquet files, with `filename` where the columns ask for it; `since` leaves out
        what landed before. There must be a file."""
        newer = f" where landed_at >= {_quoted(since.isoformat())}::timestamptz" if since else ""
        filename = ", filename = true" if "filename" in columns else ""
        source = f"read_parquet([{self._names(paths)}]{filename})"
        self._connection.execute(f"create temp view {name} as select {columns} from {source}{newer}")

    def json_lines(self, name: str, paths: Sequence[str], columns: dict[str, str]) -> None:
        """A view of files of JSON lines, with these columns and types."""
        typed = ", ".join(f"{column}: {_quoted(kind)}" for column, kind in columns.items())
        self._connection.execute(
            f"create temp view {name} as select * from read_json([{self._names(paths)}],"
            f" format = 'newline_delimited', columns = {{{typed}}})"
        )

    def keys(self, name: str, keys: pa.Array[Any]) -> None:
        """A table of the distinct keys of an array of 16-byte binaries."""
        arrow = pa.table({"key": keys.cast(pa.binary(KEY_BYTES))})
        self._connection.register(f"{name}_arrow", arrow)
        self.table(name, f"select distinct key from {name}_arrow")
        self._connection.unregister(f"{name}_arrow")

    def load(self, name: str, schema: pa.Schema, parts: Iterable[pa.Table]) -> int:
        """A table of this schema, filled part by part; returns how many rows it has."""
        self._connection.register(f"{name}_arrow", schema.empty_table())
        self.table(name, f"select * from {name}_arrow")
        for part in parts:
            self._connection.register(f"{name}_arrow", part)
            self.insert(name, f"select * from {name}_arrow")
            self._connection.unregister(f"{name}_arrow")
        return self.number(f"select count(*) from {name}")

    def table(self, name: str, query: str) -> int:
        """Put the answer of a query into a table, anew; returns how many rows it has."""
        self._connection.execute(f"create or replace temp table {name} as {query}")
        return self.number(f"select count(*) from {name}")

    def insert(self, name: str, query: str) -> None:
        """Add the answer of a query to a table."""
        self._connection.execute(f"insert into {name} {query}")

    def subtract(self, name: str, other: str, before: int) -> tuple[int, int]:
        """Take the keys of `other` out of a table of `before` keys; returns (how many went, how many
        stay)."""
        if before == 0:
            return 0, 0
        after = self.table(name, f"select key from {name} anti join (select key from {other}) using (key)")
        return before - after, after

    def holders(self, view: str, name: str, paths: Sequence[str]) -> dict[str, int]:
        """Which of a view's files hold keys of a table, and how many each."""
        known = {self._readable(path): path for path in paths}
        found = self._connection.execute(
            f"select filename, count(*) from {view} semi join {name} using (key) group by filename"
        ).fetchall()
        return {known[filename]: count for filename, count in sorted(found)}

    def number(self, query: str) -> int:
        """The one number that a query answers; 0 for null."""
        (row,) = self._connection.execute(query).fetchall()
        return int(row[0] or 0)

    def stream(self, query: str) -> Iterator[pa.RecordBatch]:
        """The answer of a query in columns, a few thousand rows at a time."""
        yield from self._connection.sql(query).to_arrow_reader(_STREAM_ROWS)

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The answer of a query row by row, streamed."""
        for batch in self.stream(query):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _names(self, paths: Sequence[str]) -> str:
        return ", ".join(_quoted(self._readable(path)) for path in paths)

    def _readable(self, relative: str) -> str:
        storage = self._storage
        return storage.path(relative) if storage.is_local else storage.url(relative)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
