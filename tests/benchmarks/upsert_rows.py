"""What the benchmark of `upsert` works on: two runs' rows, their results, documents, an index version."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from typing import Any

import numpy as np
import pendulum
import pyarrow as pa

from include.contracts import RUN_ROW_SCHEMA, RunRef
from include.corpora.rows import range_of, range_path
from include.indexes import versions
from include.ledger.connect import Connection
from include.requests import results
from include.storage import Storage

CORPUS = "bench"
SPACE = "0" * 32
VERSION = "bench__1"
CHUNKS_A_DOCUMENT = 10
RANGES = 16
RESULTS_A_FILE = 50_000
TEXT = "Each chunk holds some three hundred and fifty bytes of text, as a paragraph does. " * 4
RUNS = {name: RunRef(name, "initial_ingest", CORPUS, f"runs/{name}") for name in ("first", "second")}


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
        "metadata_hash": [metadata_hash(title)] * len(names),
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


def metadata_hash(title: str) -> bytes:
    return title.encode().ljust(16)[:16]


def lay_out(storage: Storage, count: int, dimensions: int) -> None:
    """The rows of two runs, the second with other titles, in ranges; and their results."""
    keys = _write_rows(storage, RUNS["first"], count)
    _write_rows(storage, RUNS["second"], count)
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


def _write_rows(storage: Storage, run: RunRef, count: int) -> list[bytes]:
    """A run's rows; returns their keys."""
    keys: list[bytes] = []
    with ExitStack() as files:
        writers = [
            files.enter_context(storage.parquet_writer(range_path(run, number), RUN_ROW_SCHEMA, passing=True))
            for number in range(RANGES)
        ]
        for start in range(0, count, 20_000):
            table = run_rows(start, min(start + 20_000, count), run.run)
            own = np.array([range_of(str(name), RANGES) for name in table["document_id"].to_pylist()])
            for number, writer in enumerate(writers):
                writer.write_table(table.filter(pa.array(own == number)))
            keys += [bytes(key or b"") for key in table["key"].to_pylist()]
    return keys


def register(connection: Connection, count: int, dimensions: int) -> None:
    """The documents, current as the first run has them, and the index version."""
    connection.execute(
        "insert into documents (corpus, document_id, partition, content_hash, metadata_hash, chunks,"
        " chunking, run, change, read_at, changed_at)"
        " select %s, 'document-' || n, 'all', %s, %s, %s, '', 'bench', 'new', batch_inference.now(),"
        " batch_inference.now() from generate_series(0, %s) as n",
        (CORPUS, b"c" * 16, metadata_hash("first"), CHUNKS_A_DOCUMENT, count // CHUNKS_A_DOCUMENT),
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


def documents_are(connection: Connection, title: str) -> None:
    """Make the run of this title the newest one of all documents."""
    connection.execute("update documents set metadata_hash = %s", (metadata_hash(title),))
    connection.execute("vacuum analyze documents")
