"""`upsert` into LanceDB against its named floor: the client's own best bulk rates, of ready rows.

`python -m tests.benchmarks.upsert` prints one JSON object. Three things are measured, each beside its floor:

- new rows; the floor is the better of `table.add` of ready batches of 1,000 and of 10,000 rows, one after
  the other. What `table.add` makes of one ready stream is told too: it is the most that can be had;
- the same rows with other metadata, as a night finds them, after a compaction; the floor is `merge_insert`
  of large batches without its index, which takes several times as long with it;
- the same rows once more, unchanged: they are compared and left alone, and nothing is written.

A floor has its rows ready in memory. `upsert` reads them from storage, asks the document table, joins
them with results, compares, writes, reads back every id and some whole rows, and deletes what is
replaced: `looking_share` is what reading back takes of the time for new rows, `deleting_share` what
deleting takes of the time for changed ones. The compaction comes with publishing and is told by itself.
Floors and `upsert` take turns, each in a process of its own, and the best of some laps counts; memory is
the most of all laps, at this size and at ten times it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from include.contracts import IndexSpec, RunRef, row_schema
from include.corpora.rows import range_path
from include.indexes.upsert import upsert
from include.ledger.connect import connect
from include.storage import Storage
from include.stores.lancedb import LanceStore, _to_lance
from tests.benchmarks.measuring import (
    Stopwatch,
    Times,
    apart,
    best,
    forget_peak,
    in_turns,
    ledger_server,
    peak_mb,
)
from tests.benchmarks.upsert_rows import (
    CORPUS,
    RANGES,
    RUNS,
    SPACE,
    VERSION,
    documents_are,
    lay_out,
    register,
    run_rows,
)


@dataclass(frozen=True)
class Figures:
    """What was measured: rows a second, and peak memory in MB. `idle_mb` is what a process of `upsert`
    has before it begins: the interpreter, Arrow, LanceDB and what they import."""

    rows: int
    dimensions: int
    add_1000_per_second: float
    add_10000_per_second: float
    add_stream_per_second: float
    upsert_per_second: float
    ratio: float
    ratio_to_stream: float
    merge_per_second: float
    changed_per_second: float
    ratio_changed: float
    unchanged_per_second: float
    looking_share: float
    deleting_share: float
    compact_seconds: float
    idle_mb: float
    floor_mb: float
    upsert_mb: float
    changed_mb: float
    unchanged_mb: float
    ten_times_per_second: float | None = None
    ten_times_mb: float | None = None
    ten_times_changed_per_second: float | None = None
    ten_times_changed_mb: float | None = None
    ten_times_unchanged_mb: float | None = None


# --------------------------------------------------------------------------- the floors


def ready(count: int, dimensions: int, size: int, title: str) -> list[pa.RecordBatch]:
    """Rows as Lance takes them, in batches of `size`, each vector in a place of its own."""
    random = np.random.default_rng(0)
    batches = []
    for start in range(0, count, size):
        table = run_rows(start, min(start + size, count), title)
        flat = pa.array(random.random(table.num_rows * dimensions, np.float32))
        names = ("chunk_id", "document_id", "text", "metadata")
        columns = [
            *(table[name].combine_chunks() for name in names),
            pa.FixedSizeListArray.from_arrays(flat, dimensions),
            pa.array(np.arange(start, start + table.num_rows)),
        ]
        batches.append(_to_lance(pa.RecordBatch.from_arrays(columns, schema=row_schema(dimensions))))
    return batches


def add_batches(folder: str, count: int, dimensions: int, size: int) -> Times:
    """`table.add` of one batch after the other."""
    table, rows = _empty(folder, dimensions), ready(count, dimensions, size, "first")
    watch = Stopwatch()
    for batch in rows:
        table.add(batch)
    return watch.times()


def add_stream(folder: str, count: int, dimensions: int) -> Times:
    """One `table.add` of a stream of small batches."""
    table, rows = _empty(folder, dimensions), ready(count, dimensions, 500, "first")
    watch = Stopwatch()
    table.add(pa.RecordBatchReader.from_batches(rows[0].schema, iter(rows)), write_parallelism=1)
    return watch.times()


def merge(folder: str, count: int, dimensions: int) -> Times:
    """`merge_insert` over the same ids, of large batches, on a compacted table."""
    table, rows = _empty(folder, dimensions), ready(count, dimensions, 10_000, "first")
    table.add(pa.RecordBatchReader.from_batches(rows[0].schema, iter(rows)), write_parallelism=1)
    table.optimize()
    watch = Stopwatch()
    for batch in rows:
        merging = table.merge_insert("chunk_id").when_matched_update_all().when_not_matched_insert_all()
        merging.use_index(False).execute(batch)
    return watch.times()


def _empty(folder: str, dimensions: int) -> Any:
    """A table without rows. Import and first use are seconds, and no part of any rate."""
    store = LanceStore(f"file://{folder}/floor")
    _used(store, "floor", dimensions)
    return store._table("floor")


def _used(store: LanceStore, index: str, dimensions: int) -> None:
    """An index that was written to once, and is empty."""
    store.drop(index)
    store.ensure(IndexSpec(index, dimensions))
    table = store._table(index)
    table.add(ready(1, dimensions, 1, "first")[0])
    table.delete("true")


# --------------------------------------------------------------------------- ours


class TimedStore(LanceStore):
    """The store, and how many seconds it was looked at and deleted from."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.looking = self.deleting = 0.0

    def ids_of(self, index: str, document_ids: pa.Array[Any]) -> Iterator[pa.Table]:
        parts = super().ids_of(index, document_ids)
        while True:
            began = time.perf_counter()
            part = next(parts, None)
            self.looking += time.perf_counter() - began
            if part is None:
                return
            yield part

    def fetch(self, index: str, chunk_ids: Sequence[str]) -> pa.Table:
        began = time.perf_counter()
        found = super().fetch(index, chunk_ids)
        self.looking += time.perf_counter() - began
        return found

    def _remove(self, index: str, condition: str) -> None:
        began = time.perf_counter()
        super()._remove(index, condition)
        self.deleting += time.perf_counter() - began


@dataclass(frozen=True)
class Lap:
    """`upsert` of the rows new, with other metadata, and unchanged; shares of the first and the second."""

    new: Times
    changed: Times
    unchanged: Times
    looking_share: float
    deleting_share: float
    compact_seconds: float
    idle_mb: float


def ours(folder: str, ledger_url: str, count: int, dimensions: int) -> Lap:
    """All three, one after the other, in one process."""
    storage, store = Storage(f"file://{folder}/storage"), TimedStore(f"file://{folder}/ours")
    _used(store, VERSION, dimensions)
    idle = peak_mb()

    with connect(ledger_url) as connection:

        def fill(run: RunRef, kept: int) -> Times:
            store.looking = store.deleting = 0.0
            forget_peak()
            watch = Stopwatch()
            report = upsert(
                connection,
                storage,
                store,
                run=run,
                version=VERSION,
                space_id=SPACE,
                dimensions=dimensions,
                rows=[range_path(run, number) for number in range(RANGES)],
                corpus=CORPUS,
            )
            times = watch.times()
            assert (report.upserted, report.kept) == (count, kept), report
            return times

        documents_are(connection, "first")
        new = fill(RUNS["first"], 0)
        looking = store.looking
        watch = Stopwatch()
        store.compact(VERSION)
        compacting = watch.times()
        documents_are(connection, "second")
        changed = fill(RUNS["second"], 0)
        deleting = store.deleting
        unchanged = fill(RUNS["second"], count)
    shares = looking / new.seconds, deleting / changed.seconds
    return Lap(new, changed, unchanged, *shares, compacting.seconds, idle)


# --------------------------------------------------------------------------- all together


def measure(count: int, dimensions: int, laps: int, *, ten_times: bool = True) -> Figures:
    """The floors and `upsert`, in turns, and `upsert` of ten times as many rows."""
    mine: list[Lap] = []
    with _laid_out(count, dimensions) as (folder, url):

        def upserted(lap: int) -> Times:
            mine.append(apart(ours, folder, url, count, dimensions))
            return mine[-1].new

        small, large, stream, merging, new = in_turns(
            laps,
            lambda lap: apart(add_batches, folder, count, dimensions, 1_000),
            lambda lap: apart(add_batches, folder, count, dimensions, 10_000),
            lambda lap: apart(add_stream, folder, count, dimensions),
            lambda lap: apart(merge, folder, count, dimensions),
            upserted,
        )
    more: Lap | None = None
    if ten_times:
        with _laid_out(10 * count, dimensions) as (folder, url):
            more = apart(ours, folder, url, 10 * count, dimensions)
    changed = best([lap.changed for lap in mine])
    unchanged = best([lap.unchanged for lap in mine])
    batches = min(small.seconds, large.seconds)
    return Figures(
        rows=count,
        dimensions=dimensions,
        add_1000_per_second=round(count / small.seconds),
        add_10000_per_second=round(count / large.seconds),
        add_stream_per_second=round(count / stream.seconds),
        upsert_per_second=round(count / new.seconds),
        ratio=round(batches / new.seconds, 2),
        ratio_to_stream=round(stream.seconds / new.seconds, 2),
        merge_per_second=round(count / merging.seconds),
        changed_per_second=round(count / changed.seconds),
        ratio_changed=round(merging.seconds / changed.seconds, 2),
        unchanged_per_second=round(count / unchanged.seconds),
        looking_share=round(min(lap.looking_share for lap in mine), 2),
        deleting_share=round(min(lap.deleting_share for lap in mine), 2),
        compact_seconds=round(min(lap.compact_seconds for lap in mine), 2),
        idle_mb=round(max(lap.idle_mb for lap in mine)),
        floor_mb=round(max(times.peak_mb for times in (small, large, stream, merging))),
        upsert_mb=round(new.peak_mb),
        changed_mb=round(changed.peak_mb),
        unchanged_mb=round(unchanged.peak_mb),
        **_ten_times(more, 10 * count),
    )


def _ten_times(lap: Lap | None, count: int) -> dict[str, float]:
    if lap is None:
        return {}
    return {
        "ten_times_per_second": round(count / lap.new.seconds),
        "ten_times_mb": round(lap.new.peak_mb),
        "ten_times_changed_per_second": round(count / lap.changed.seconds),
        "ten_times_changed_mb": round(lap.changed.peak_mb),
        "ten_times_unchanged_mb": round(lap.unchanged.peak_mb),
    }


@contextmanager
def _laid_out(count: int, dimensions: int) -> Iterator[tuple[str, str]]:
    """(folder, ledger's URL) for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        lay_out(Storage(f"file://{folder}/storage"), count, dimensions)
        with ledger_server(folder) as url:
            with connect(url) as connection:
                register(connection, count, dimensions)
            yield folder, url


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=1_536)
    parser.add_argument("--laps", type=int, default=2)
    parser.add_argument("--once", action="store_true", help="not ten times the size as well")
    options = parser.parse_args()
    figures = measure(options.rows, options.dimensions, options.laps, ten_times=not options.once)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
