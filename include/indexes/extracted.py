"""What models extracted from a corpus's documents: kept beside its chunks, and merged into their metadata.

`corpora/{corpus}/extracted/range-NN/{run}.parquet`, one file a run and range of document ids, written
once. An entry speaks for one version of its document's text: where the text has changed since, it's left
out until it is extracted anew. Of several entries the last written counts. A field that the source has
too is the source's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
import pendulum
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import KEY_BYTES, RunRef, VectorStore
from include.indexes import truth
from include.ledger import clock
from include.ledger.connect import Connection
from include.storage import Storage

#: `chunk_id` is null where the entry is for a whole document. `fields` is a JSON object as text.
_FIELDS: list[pa.Field[Any]] = [
    pa.field("document_id", pa.string(), nullable=False),
    pa.field("chunk_id", pa.string()),
    pa.field("content_hash", pa.binary(KEY_BYTES), nullable=False),
    pa.field("fields", pa.string(), nullable=False),
    pa.field("written_at", pa.timestamp("us", tz="UTC"), nullable=False),
]
SCHEMA = pa.schema(_FIELDS)

_BATCH = 5_000
_NO_IDS: pa.Array[Any] = pa.array([], pa.string())


@dataclass(frozen=True, slots=True)
class Entry:
    """What was extracted from one document, or from one chunk of it. `fields` is a JSON object as text."""

    document_id: str
    chunk_id: str | None
    content_hash: bytes
    fields: str


def folder(corpus: str, number: int) -> str:
    """Where a range's entries lie, relative to the storage root."""
    return f"corpora/{corpus}/extracted/range-{number:02d}"


def _path(run: RunRef, number: int) -> str:
    return f"{folder(run.corpus, number)}/{quote(run.run, safe=' =+@,')}.parquet"


def _keep(storage: Storage, path: str, entries: Sequence[Entry], written_at: pendulum.DateTime) -> None:
    """A run's entries of one range; again overwrites the same file."""
    if not entries:
        storage.delete(path)
        return
    columns: list[pa.Array[Any]] = [
        pa.array([entry.document_id for entry in entries], pa.string()),
        pa.array([entry.chunk_id for entry in entries], pa.string()),
        pa.array([entry.content_hash for entry in entries], pa.binary(KEY_BYTES)),
        pa.array([entry.fields for entry in entries], pa.string()),
        pa.repeat(pa.scalar(written_at, SCHEMA.field("written_at").type), len(entries)),
    ]
    with storage.parquet_writer(path, SCHEMA) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))


class Extracted:
    """The entries of some ranges, ready to be merged into rows."""

    def __init__(
        self, storage: Storage, corpus: str, numbers: Iterable[int], leave_out: str | None = None
    ) -> None:
        self._entries: dict[tuple[str, str | None], tuple[bytes, str]] = {}
        parts = [
            _read(storage, path)
            for number in numbers
            for path in storage.list(folder(corpus, number), ".parquet")
            if path != leave_out
        ]
        if parts:
            whole = pa.concat_tables(parts).sort_by("written_at")
            columns = (
                whole[name].to_pylist() for name in ("document_id", "chunk_id", "content_hash", "fields")
            )
            for entry in map(Entry, *columns):
                self._add(entry)

    @classmethod
    def of(cls, known: Extracted, entries: Iterable[Entry]) -> Extracted:
        """What is known, with newer entries over it."""
        made = cls.__new__(cls)
        made._entries = dict(known._entries)
        for entry in entries:
            made._add(entry)
        return made

    def _add(self, entry: Entry) -> None:
        self._entries[entry.document_id, entry.chunk_id] = (entry.content_hash, entry.fields)

    def has(self, entry: Entry) -> bool:
        """Whether this very entry is there."""
        known = self._entries.get((entry.document_id, entry.chunk_id))
        return known == (entry.content_hash, entry.fields)

    def over(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows of a run, with what was extracted in their metadata."""
        if not self._entries:
            return rows
        columns = list(rows.columns)
        columns[rows.schema.get_field_index("metadata")] = self.merge(rows)[0]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def merge(self, rows: Any) -> tuple[pa.Array[Any], int]:
        """The rows' metadata with what was extracted, and of how many rows there was something.

        `rows` is a table or batch with document_id, chunk_id, content_hash and metadata.
        """
        names = ("document_id", "chunk_id", "content_hash", "metadata")
        if not self._entries:
            metadata = rows.column("metadata")
            return metadata.combine_chunks() if isinstance(metadata, pa.ChunkedArray) else metadata, 0
        merged, touched = [], 0
        for document, chunk, content, told in zip(
            *(rows.column(name).to_pylist() for name in names), strict=True
        ):
            entries = (self._entries.get((document, None)), self._entries.get((document, chunk)))
            found = [entry[1] for entry in entries if entry is not None and entry[0] == content]
            touched += bool(found)
            merged.append(_merged(found, told) if found else told)
        return pa.array(merged, pa.string()), touched


def _stamp(metadata: str) -> int:
    """No ingest's stamp, which is of more than the metadata: the next one writes the row once more."""
    digest = hashlib.blake2b(metadata.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _merged(fields: Iterable[str], metadata: str) -> str:
    whole: dict[str, Any] = {}
    for one in fields:
        whole |= orjson.loads(one)
    return orjson.dumps({**whole, **orjson.loads(metadata)}).decode()


def _read(storage: Storage, path: str) -> pa.Table:
    with storage.parquet_file(path) as file:
        return file.read()


def bring(
    connection: Connection,
    storage: Storage,
    stores: Mapping[str, VectorStore],
    *,
    run: RunRef,
    number: int,
    ranges: int,
    entries: Sequence[Entry],
    holders: Callable[[], Iterable[pa.RecordBatch]],
) -> tuple[int, int]:
    """Bring a range's entries into index versions, then keep them; returns (new entries, chunks changed).

    `stores` maps each version to its store. `holders` gives the chunks of the range's documents, with
    chunk_id, document_id, content_hash, metadata_hash and metadata as the source has it. What is kept
    already in the same words is left alone. Only what is current now is touched, and only ids that an
    index holds: a chunk that an ingest is yet to write gets its fields then.

    The indexes first: a kill before the entries are kept makes the next run bring them again. All under
    the locks that an upsert holds, so that none in between writes rows without them.
    """
    own = _path(run, number)
    with ExitStack() as locks:
        for version in sorted(stores):
            locks.enter_context(truth.locked(connection, version, truth.locks_of_range(number, ranges)))
        known = Extracted(storage, run.corpus, [number], leave_out=own)
        fresh = [entry for entry in entries if not known.has(entry)]
        changed = 0
        if fresh:
            merged = Extracted.of(known, fresh)
            documents = pa.array(sorted({entry.document_id for entry in fresh}), pa.string())
            for batch in holders():
                mine = batch.filter(pc.is_in(batch.column("document_id"), documents))
                for start in range(0, mine.num_rows, _BATCH):
                    part = mine.slice(start, _BATCH)
                    for version, store in stores.items():
                        changed += _apply(connection, store, run.corpus, version, part, merged)
        _keep(storage, own, fresh, clock.now(connection))
    return len(fresh), changed


def _apply(
    connection: Connection,
    store: VectorStore,
    corpus: str,
    version: str,
    batch: pa.RecordBatch,
    extracted: Extracted,
) -> int:
    parts = list(store.ids_of(version, batch.column("document_id").unique()))
    held = pa.concat_arrays([chunk for part in parts for chunk in part["chunk_id"].chunks] or [_NO_IDS])
    there = pc.is_in(batch.column("chunk_id"), held)
    current = pa.array(truth.judge(connection, corpus, batch).current)
    rows = batch.filter(pc.and_(there, current))
    metadata, touched = extracted.merge(rows)
    if touched:
        stamps = pa.array([_stamp(str(text)) for text in metadata.to_pylist()], pa.int64())
        columns = [rows.column("chunk_id"), metadata, stamps]
        names = ["chunk_id", "metadata", "stamp"]
        store.set_metadata(version, pa.RecordBatch.from_arrays(columns, names=names))
    return touched
