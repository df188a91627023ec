"""What is still to be asked: the keys of a run's rows, minus those that are answered, in flight or blocked.

Set operations run in DuckDB over the Parquet files, out of core, so that millions of keys need
neither the memory for them nor a loop in Python. Every distinct key of the rows falls into exactly
one of: own (listed by this run already), reused, in flight, blocked, missing; in that order.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pendulum
import pyarrow as pa

from include.contracts import KEY_BYTES
from include.errors import ConfigError
from include.requests.results import keys_matrix
from include.storage import Storage

if TYPE_CHECKING:
    import duckdb

log = logging.getLogger(__name__)

_STREAM_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Reuse:
    """Which answers count as given. The policy of a workload.

    - `always`: any answer there is (embeddings, extraction).
    - `max_age`: answers no older than `max_age_seconds` when the run started (generated answers,
      so that a provider's drift shows).
    - `run`: only answers to what this run lists.
    """

    policy: Literal["always", "max_age", "run"] = "always"
    max_age_seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.policy == "max_age") != (self.max_age_seconds is not None):
            raise ConfigError("reuse: max_age_seconds belongs to the policy max_age, and to no other")

    def since(self, started_at: pendulum.DateTime) -> pendulum.DateTime | None:
        """From when on answers count, for a run that started then. Fixed for the run's whole life,
        so that what `pack` took as answered is still so when the run reconciles."""
        if self.max_age_seconds is None:
            return None
        return started_at.subtract(seconds=self.max_age_seconds)


@dataclass(frozen=True, slots=True)
class Sources:
    """The Parquet files that decide, all relative to the storage root.

    `rows` have `RUN_ROW_SCHEMA`, `results` the results schema, `own` and `live` are shards'
    `keys.parquet`. `blocked` and `only` are arrays of 16-byte keys; `only` restricts the rows.
    `since` leaves out results that landed before it.
    """

    rows: Sequence[str]
    results: Sequence[str] = ()
    own: Sequence[str] = ()
    live: Sequence[str] = ()
    blocked: pa.Array[Any] | None = None
    only: pa.Array[Any] | None = None
    since: pendulum.DateTime | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What DuckDB may use: memory before it spills to disk, threads, and a folder to spill to."""

    memory_limit: str = "1GB"
    threads: int = 2
    scratch: str | None = None


@dataclass(slots=True)
class Plan:
    """How a run's distinct keys divide: `items = own + reused + in_flight + blocked + missing`.

    `rows` counts rows with the same key once each, so `rows - items` are duplicates. `tokens` are
    those of the missing items. `joined` maps the `live` files that hold a wanted key to how many.
    """

    rows: int = 0
    items: int = 0
    own: int = 0
    reused: int = 0
    in_flight: int = 0
    blocked: int = 0
    missing: int = 0
    tokens: int = 0
    joined: dict[str, int] = field(default_factory=dict)
    _connection: Any = None

    def missing_items(self) -> Iterator[pa.RecordBatch]:
        """The missing items in key order, each key once: key (16 bytes), input (text), tokens."""
        if self.missing == 0:
            return
        reader = self._connection.sql(
            "select key, coalesce(input, text) as input, tokens from rows"
            " semi join rest using (key) order by key"
        ).to_arrow_reader(_STREAM_ROWS)
        yield from _each_key_once(reader)


@contextmanager
def planning(storage: Storage, sources: Sources, resources: Resources | None = None) -> Iterator[Plan]:
    """Divide the keys of the rows. The plan's stream is open only inside the block."""
    resources = resources or Resources()
    with connected(storage, resources) as connection:
        database = _Database(connection, storage)
        yield database.plan(sources)


@contextmanager
def connected(storage: Storage, resources: Resources) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory that spills to a scratch folder and reads the storage's files."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="batch-plan-", dir=resources.scratch) as scratch:
        connection = duckdb.connect(
            config={
                "memory_limit": resources.memory_limit,
                "threads": resources.threads,
                "temp_directory": scratch,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
            }
        )
        try:
            if not storage.is_local:
                connection.register_filesystem(storage.fs)
            yield connection
        finally:
            connection.close()


def readable(storage: Storage, relative: str) -> str:
    """The name under which DuckDB reads a file of the storage."""
    return storage.path(relative) if storage.is_local else storage.url(relative)


class _Database:
    """The sets of one plan as views and tables of a DuckDB connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, storage: Storage) -> None:
        self._connection = connection
        self._storage = storage

    def plan(self, sources: Sources) -> Plan:
        """Subtract set after set. A set that is empty costs nothing."""
        plan = Plan(_connection=self._connection)
        if not sources.rows:
            return plan
        self._view("rows", sources.rows, "key, input, text, tokens")
        plan.rows = self._number("select count(*) from rows")
        restriction = ""
        if sources.only is not None:
            self._keys("only_these", sources.only)
            restriction = "semi join only_these using (key)"
        plan.items = self._table(f"select key from rows {restriction} group by key")
        left = plan.items
        if sources.own:
            self._view("own", sources.own, "key")
            plan.own, left = self._subtract("own", left)
        if sources.results:
            self._view("results", sources.results, "key", sources.since)
            plan.reused, left = self._subtract("results", left)
        if sources.live:
            self._view("live", sources.live, "key, filename")
            if left:
                plan.joined = self._joined(sources.live)
            plan.in_flight, left = self._subtract("live", left)
        if sources.blocked is not None and len(sources.blocked):
            self._keys("blocked", sources.blocked)
            plan.blocked, left = self._subtract("blocked", left)
        plan.missing = left
        if left:
            plan.tokens = self._number(
                "select sum(tokens) from (select any_value(tokens) as tokens from rows"
                " semi join rest using (key) group by key)"
            )
        return plan

    def _view(
        self, name: str, paths: Sequence[str], columns: str, since: pendulum.DateTime | None = None
    ) -> None:
        names = ", ".join(_quoted(readable(self._storage, path)) for path in paths)
        newer = f" where landed_at >= {_quoted(since.isoformat())}::timestamptz" if since else ""
        filename = ", filename = true" if "filename" in columns else ""
        self._connection.execute(
            f"create view {name} as select {columns} from read_parquet([{names}]{filename}){newer}"
        )

    def _keys(self, name: str, keys: pa.Array[Any]) -> None:
        self._connection.register(f"{name}_arrow", pa.table({"key": keys.cast(pa.binary(KEY_BYTES))}))
        self._connection.execute(f"create temp table {name} as select distinct key from {name}_arrow")

    def _table(self, query: str) -> int:
        """Put a query's keys into the table `rest`; returns how many."""
        self._connection.execute(f"create or replace temp table rest as {query}")
        return self._number("select count(*) from rest")

    def _subtract(self, other: str, before: int) -> tuple[int, int]:
        """Take the keys of `other` out of `rest`; returns (how many went, how many stay)."""
        if before == 0:
            return 0, 0
        after = self._table(f"select key from rest anti join (select key from {other}) using (key)")
        return before - after, after

    def _joined(self, live: Sequence[str]) -> dict[str, int]:
        names = {readable(self._storage, path): path for path in live}
        found = self._connection.execute(
            "select filename, count(*) from live semi join rest using (key) group by filename"
        ).fetchall()
        return {names[filename]: count for filename, count in sorted(found)}

    def _number(self, query: str) -> int:
        (row,) = self._connection.execute(query).fetchall()
        return int(row[0] or 0)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _each_key_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out a row whose key equals the one before it; the rows are sorted by key."""
    last: bytes | None = None
    for batch in batches:
        keys = keys_matrix(batch.column(0).cast(pa.binary(KEY_BYTES)))
        new = np.ones(len(keys), dtype=bool)
        new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        if len(keys):
            new[0] = keys[0].tobytes() != last
            last = keys[-1].tobytes()
        kept = batch if new.all() else batch.filter(pa.array(new))
        if kept.num_rows:
            yield kept
