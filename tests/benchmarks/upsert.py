"""`upsert` into LanceDB against its named floor: the client's own best bulk rates, of ready rows.

`python -m tests.benchmarks.upsert` prints one JSON object. Three things are measured, each beside its floor:

- new rows; the floor is the best of the ways to append them: `table.add` of a stream, or of large batches;
- the same rows again with other metadata, as a night finds them, after a compaction; the floor is
  `merge_insert`, without its index, which would take several times as long;
- the same rows once more, unchanged: they are compared and left alone, and nothing is written.

A floor has its rows ready in memory. `upsert` reads them from storage, asks the document table, joins
them with results, compares, writes, reads back and deletes; what the last three take of the time is
told. Each has a process of its own; they take turns, and the best of some laps counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pendulum
import pyarrow as pa

from include.contracts import RUN_ROW_SCHEMA, IndexSpec, RunRef, row_schema
from include.corpora.rows import range_of, range_path
from include.indexes import versions
from include.indexes.upsert import upsert
from include.ledger.connect import Connection, connect
from include.requests import results
from include.storage import Storage
from include.stores.lancedb import LanceStore, _to_lance
from tests.benchmarks.measuring import Stopwatch, Times, apart, ledger_server, peak_mb

CORPUS = "bench"
SPACE = "0" * 32
VERSION = "bench__1"
CHUNKS_A_DOCUMENT = 10
RANGES = 16
RESULTS_A_FILE = 50_000
TEXT = "Each chunk holds some three hundred and fifty bytes of text, as a paragraph does. " * 4
RUNS = {name: RunRef(name, "initial_ingest", CORPUS, f"runs/{name}") for name in ("first", "second", "third")}


@dataclass(frozen=True)
class Figures:
    """What was measured. `*_mb` are the processes' peak memory, `idle_mb` what one has before it begins."""

    rows: int
    dimensions: int
    append_per_second: float
    upsert_per_second: float
    ratio: float
    merge_per_second: float
    again_per_second: float
    ratio_again: float
    unchanged_per_second: float
    looking_share: float
    deleting_share_again: float
    compact_seconds: float
    idle_mb: float
    floor_mb: float
    upsert_mb: float
    ten_times_per_second: float | None
    ten_times_mb: float | None


# --------------------------------------------------------------------------- the rows


def run_rows(start: int, end: int, title: str) -> pa.Table:
    """Rows of a run, ten chunks a document."""
    numbers = range(start, end)
    names = [f"document-{number // CHUNKS_A_DOCUMENT}" for number in numbers]
    digests = [hashlib.blake2b(b"%d" % number, digest_size=16).digest() for number in numbers]
    hexes = [digest.hex() for digest in digests]
    columns: dict[str, Any] = {
        "chunk_id": [f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in hexes],
        "key": digests,
        "document_id": names,
        "content_hash": [b"c" * 16] * len(names),
        "metadata_hash": [_metadata_hash(title)] * len(names),
        "partition": ["all"] * len(names),
        "position": [number % CHUNKS_A_DOCUMENT for number in numbers],
        "text": [f"{number} {TEXT}" for number in numbers],
        "input": [None] * len(names),
        "tokens": [60] * len(names),
        "metadata": [
            json.dumps({"title": f"{title} {name}", "url": f"https://example.org/{name}", "position": n % 10})
            for name, n in zip(names, numbers, strict=True)
        ],
    }
    return pa.table(
        [pa.array(columns[field.name], field.type) for field in RUN_ROW_SCHEMA], schema=RUN_ROW_SCHEMA
    )


def _metadata_hash(title: str) -> bytes:
    return title.encode().ljust(16)[:16]


def lay_out(storage: Storage, count: int, dimensions: int) -> None:
    """The rows of two runs, the second with other titles, in ranges; and their results."""
    keys: list[bytes] = []
    for name in ("first", "second"):
        run = RUNS[name]
        writers = [
            storage.parquet_writer(range_path(run, number), RUN_ROW_SCHEMA, passing=True)
            for number in range(RANGES)
        ]
        opened = [writer.__enter__() for writer in writers]
        for start in range(0, count, 20_000):
            table = run_rows(start, min(start + 20_000, count), name)
            own = np.array([range_of(str(name), RANGES) for name in table["document_id"].to_pylist()])
            for number, writer in enumerate(opened):
                writer.write_table(table.filter(pa.array(own == number)))
            if name == "first":
                keys += [bytes(key or b"") for key in table["key"].to_pylist()]
        for writer in writers:
            writer.__exit__(None, None, None)
    random = np.random.default_rng(0)
    values = random.normal(size=(results.group_rows(dimensions), dimensions)).astype(np.float32)
    for start in range(0, count, RESULTS_A_FILE):
        part = sorted(keys[start : start + RESULTS_A_FILE])
        path = results.path(SPACE, f"{start:08d}")
        with results.writing(storage, path, dimensions, pendulum.now("UTC")) as answers:
            for at in range(0, len(part), len(values)):
                block = part[at : at + len(values)]
                size = len(block)
                answers.write(b"".join(block), values[:size], [60] * size, [0] * size, ["model"] * size)


def register(connection: Connection, count: int, dimensions: int) -> None:
    """The documents, current as the first run has them, and the index version."""
    connection.execute(
        "insert into documents (corpus, document_id, partition, content_hash, metadata_hash, chunks,"
        " chunking, run, change, read_at, changed_at)"
        " select %s, 'document-' || n, 'all', %s, %s, %s, '', 'bench', 'new', batch_inference.now(),"
        " batch_inference.now() from generate_series(0, %s) as n",
        (CORPUS, b"c" * 16, _metadata_hash("first"), CHUNKS_A_DOCUMENT, count // CHUNKS_A_DOCUMENT),
    )
    connection.execute("analyze documents")
    versions.create(
        connection,
        version=VERSION,
        corpus=CORPUS,
        store="lancedb",
        store_url="",
        space=SPACE,
        chunking="",
        metric="cosine",
        dimensions=dimensions,
        run="bench",
    )


# --------------------------------------------------------------------------- the floors


def ready(count: int, dimensions: int, size: int, title: str) -> list[pa.RecordBatch]:
    """Rows as Lance takes them, in batches of `size`."""
    values = np.random.default_rng(0).normal(size=(size, dimensions)).astype(np.float32)
    batches = []
    for start in range(0, count, size):
        table = run_rows(start, min(start + size, count), title)
        flat = pa.array(values[: table.num_rows].reshape(-1))
        names = ("chunk_id", "document_id", "text", "metadata")
        columns = [
            *(table[name].combine_chunks() for name in names),
            pa.FixedSizeListArray.from_arrays(flat, dimensions),
            pa.array(np.arange(start, start + table.num_rows)),
        ]
        batches.append(_to_lance(pa.RecordBatch.from_arrays(columns, schema=row_schema(dimensions))))
    return batches


def append_stream(folder: str, count: int, dimensions: int) -> Times:
    """One `table.add` of a stream of small batches."""
    table, rows = _empty(folder, dimensions), ready(count, dimensions, 1_000, "first")
    watch = Stopwatch()
    table.add(pa.RecordBatchReader.from_batches(rows[0].schema, iter(rows)), write_parallelism=1)
    return watch.times()


def append_batches(folder: str, count: int, dimensions: int) -> Times:
    """`table.add` of one large batch after the other."""
    table, rows = _empty(folder, dimensions), ready(count, dimensions, 10_000, "first")
    watch = Stopwatch()
    for batch in rows:
        table.add(batch)
    return watch.times()


def merge(folder: str, count: int, dimensions: int) -> Times:
    """`merge_insert` over the same ids, of large batches, on a compacted table."""
    table, rows = _empty(folder, dimensions), ready(count, dimensions, 10_000, "first")
    for batch in rows:
        table.add(batch)
    table.optimize(cleanup_older_than=timedelta(0))
    watch = Stopwatch()
    for batch in rows:
        (
            table.merge_insert("chunk_id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .use_index(False)
            .execute(batch)
        )
    return watch.times()


def _empty(folder: str, dimensions: int) -> Any:
    """A table without rows. Import and first use are seconds, and no part of any rate."""
    store = LanceStore(f"file://{folder}/floor")
    store.drop("floor")
    store.ensure(IndexSpec("floor", dimensions))
    table = store._table("floor")
    table.add(ready(1, dimensions, 1, "first")[0])
    table.delete("true")
    return table


# --------------------------------------------------------------------------- ours


class TimedStore(LanceStore):
    """The store, and how long it was looked at and deleted from."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.looking = self.deleting = 0.0

    def ids_of(self, index: str, document_ids: pa.Array[Any]) -> Iterator[pa.Table]:
        began = time.perf_counter()
        parts = list(super().ids_of(index, document_ids))
        self.looking += time.perf_counter() - began
        return iter(parts)

    def fetch(self, index: str, chunk_ids: Any) -> pa.Table:
        began = time.perf_counter()
        found = super().fetch(index, chunk_ids)
        self.looking += time.perf_counter() - began
        return found


def ours(
    folder: str, ledger_url: str, count: int, dimensions: int
) -> tuple[Times, Times, Times, dict[str, float]]:
    """`upsert` of the rows new, with other metadata, and unchanged; and what else there is to say."""
    storage, store = Storage(f"file://{folder}/storage"), LanceStore(f"file://{folder}/ours")
    store.drop(VERSION)
    store.ensure(IndexSpec(VERSION, dimensions))
    said = {"idle_mb": peak_mb()}

    with connect(ledger_url) as connection:

        def fill(run: RunRef, kept: int) -> Times:
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

        _documents_are(connection, "first")
        new = fill(RUNS["first"], 0)
        watch = Stopwatch()
        store.compact(VERSION)
        said["compact_seconds"] = watch.times().seconds
        _documents_are(connection, "second")
        again = fill(RUNS["second"], 0)
        unchanged = fill(RUNS["second"], count)
    return new, again, unchanged, said


def _documents_are(connection: Connection, title: str) -> None:
    connection.execute("update documents set metadata_hash = %s", (_metadata_hash(title),))
    connection.execute("vacuum analyze documents")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=1_536)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder,
        ledger_server(folder) as url,
    ):
        lay_out(Storage(f"file://{folder}/storage"), options.rows, options.dimensions)
        with connect(url) as connection:
            register(connection, options.rows, options.dimensions)
        for work in (append_stream, append_batches, merge):
            print(work.__name__, apart(work, folder, options.rows, options.dimensions))
        print(apart(ours, folder, url, options.rows, options.dimensions))
