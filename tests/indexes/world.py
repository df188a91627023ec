"""A corpus as the steps before upsert leave it: documents in the ledger, rows and results in storage."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import RUN_ROW_SCHEMA, Metric, RunRef, VectorStore, results_schema
from include.corpora.rows import CHUNK_SCHEMA, DELETED_SCHEMA, range_of, range_path
from include.indexes import upsert as upserting
from include.indexes import versions
from include.indexes.upsert import UpsertReport
from include.ledger.connect import Connection
from include.requests.results import vectors_column
from include.storage import Storage

CORPUS = "docs"
SPACE = "ab" * 16
CHUNKING = "cd" * 16
VERSION = "docs__1"
DIMENSIONS = 8


def digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def vector_of(text: str, dimensions: int = DIMENSIONS, again: int = 0) -> npt.NDArray[np.float32]:
    """The vector a model gives for a text; another where it's asked `again`."""
    seed = int.from_bytes(digest(f"{text}{again or ''}")[:8], "little")
    return np.random.default_rng(seed).normal(size=dimensions).astype(np.float32)


def chunk_id(document: str, text: str) -> str:
    """A chunk's id: by its document and text."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{document}\x1f{text}"))


@dataclass
class Document:
    """A document's version: its chunks' texts, its title, its partition."""

    name: str
    chunks: Sequence[str]
    title: str = "title"
    partition: str = "all"

    @property
    def content_hash(self) -> bytes:
        return digest("\x1f".join(self.chunks))

    @property
    def metadata_hash(self) -> bytes:
        return digest(self.title)


@dataclass
class World:
    """One corpus, one version of its index, and runs over it."""

    ledger: Connection
    storage: Storage
    store: VectorStore
    ranges: int = 2
    version: str = VERSION
    _submissions: int = field(default=0, repr=False)

    def build(self, version: str = VERSION, run: str = "first") -> None:
        """Make an index version in the ledger."""
        versions.create(
            self.ledger,
            version=version,
            corpus=CORPUS,
            store="lancedb",
            store_url="file://somewhere",
            space=SPACE,
            chunking=CHUNKING,
            metric=Metric.COSINE,
            dimensions=DIMENSIONS,
            run=run,
        )

    def run(self, name: str) -> RunRef:
        return RunRef(name, "initial_ingest", CORPUS, f"runs/initial_ingest/{CORPUS}/{name}")

    def prepare(
        self, name: str, documents: Iterable[Document], *, deleted: Iterable[str] = (), write: bool = True
    ) -> RunRef:
        """What `prepare` leaves: the rows, the chunk part and the document table."""
        run, documents = self.run(name), list(documents)
        rows = [row for document in documents for row in self._rows(document)]
        table = pa.Table.from_pylist(rows, RUN_ROW_SCHEMA)
        numbers = [range_of(row["document_id"], self.ranges) for row in rows]
        for number in range(self.ranges):
            part = table.filter(pa.array([own == number for own in numbers], pa.bool_()))
            self.storage.write_parquet(range_path(run, number), part)
        gone = [
            {"document_id": document, "deleted": True, "range": range_of(document, self.ranges)}
            for document in deleted
        ]
        self.storage.write_parquet(
            f"{run.uri}/rows/deleted.parquet", pa.Table.from_pylist(gone, DELETED_SCHEMA)
        )
        self.storage.write_parquet(
            f"corpora/{CORPUS}/chunks/{CHUNKING}/all/{name}-00.parquet", table.select(CHUNK_SCHEMA.names)
        )
        self.know(documents, name)
        self.forget(deleted)
        return run

    def _rows(self, document: Document) -> list[dict[str, Any]]:
        return [
            {
                "chunk_id": chunk_id(document.name, text),
                "key": digest(text),
                "document_id": document.name,
                "content_hash": document.content_hash,
                "metadata_hash": document.metadata_hash,
                "partition": document.partition,
                "position": position,
                "text": text,
                "input": None,
                "tokens": 1,
                "metadata": json.dumps({"title": document.title, "position": position}),
            }
            for position, text in enumerate(document.chunks)
        ]

    def know(self, documents: Iterable[Document], run: str = "first") -> None:
        """Make these the newest versions in the document table."""
        with self.ledger.cursor() as cursor:
            cursor.executemany(
                "insert into documents (corpus, document_id, partition, content_hash, metadata_hash, chunks,"
                " chunking, run, change, read_at, changed_at, deleted)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, 'new', batch_inference.now(),"
                " batch_inference.now(), false)"
                " on conflict (corpus, document_id) do update set content_hash = excluded.content_hash,"
                " metadata_hash = excluded.metadata_hash, chunks = excluded.chunks,"
                " partition = excluded.partition, run = excluded.run, deleted = false",
                [
                    (
                        CORPUS,
                        document.name,
                        document.partition,
                        document.content_hash,
                        document.metadata_hash,
                        len(document.chunks),
                        CHUNKING,
                        run,
                    )
                    for document in documents
                ],
            )

    def forget(self, names: Iterable[str]) -> None:
        """Mark documents as deleted."""
        self.ledger.execute(
            "update documents set deleted = true where corpus = %s and document_id = any(%s)",
            (CORPUS, list(names)),
        )

    def land(self, texts: Iterable[str], *, again: int = 0, at: datetime | None = None) -> None:
        """The results of one submission for these texts."""
        names = sorted(set(texts), key=digest)
        keys = pa.array([digest(text) for text in names], pa.binary(16))
        values = np.array([vector_of(text, again=again) for text in names], np.float32)
        zeros = pa.array([0] * len(names), pa.int32())
        table = pa.Table.from_arrays(
            [
                keys,
                keys,
                vectors_column(values),
                zeros,
                zeros,
                pa.array(["model"] * len(names)).dictionary_encode(),
                pa.array([at or datetime(2026, 1, 1, tzinfo=UTC)] * len(names), pa.timestamp("us", tz="UTC")),
            ],
            schema=results_schema(DIMENSIONS),
        )
        self._submissions += 1
        self.storage.write_parquet(f"spaces/{SPACE}/results/{self._submissions:08d}.parquet", table)

    def bury(self, text: str, cls: str, state: str = "open") -> None:
        """Open a dead letter for a text."""
        self.ledger.execute(
            "insert into dead_letters (workload, corpus, space, key, class, state, run, opened_at,"
            " changed_at) values ('initial_ingest', %s, %s, %s, %s, %s, 'first', batch_inference.now(),"
            " batch_inference.now())",
            (CORPUS, SPACE, digest(text).hex(), cls, state),
        )

    def upsert(
        self, run: RunRef, version: str = "", batch_rows: int = 10_000, dimensions: int = DIMENSIONS
    ) -> UpsertReport:
        """Bring all ranges of a run into the index."""
        return upserting.upsert(
            self.ledger,
            self.storage,
            self.store,
            run=run,
            version=version or self.version,
            space_id=SPACE,
            dimensions=dimensions,
            rows=[range_path(run, number) for number in range(self.ranges)],
            corpus=CORPUS,
            batch_rows=batch_rows,
        )

    def held(self, version: str = "") -> dict[str, set[str]]:
        """What the index holds: each document's texts."""
        found: dict[str, set[str]] = {}
        for row in self.rows(version).values():
            found.setdefault(row["document_id"], set()).add(row["text"])
        return found

    def rows(self, version: str = "") -> dict[str, Mapping[str, str]]:
        """Every row of the index by chunk id; each id must be there once."""
        index = version or self.version
        ids = [str(name) for part in self.store.ids(index) for name in part["chunk_id"].to_pylist()]
        assert len(ids) == len(set(ids)) == self.store.count(index)
        return {row["chunk_id"]: row for row in self.store.fetch(index, ids).to_pylist()}
