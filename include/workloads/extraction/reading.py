"""The documents of a corpus as they are stored now, rebuilt from their chunks without the source.

Only what the document table says is current: a chunk counts where both of its hashes are the table's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from psycopg.rows import tuple_row

from include.ledger.connect import Connection
from include.requests.key_sets import KeySets, Resources, opened
from include.storage import Storage

_BATCH = 20_000
_CURRENT_FIELDS: list[pa.Field[Any]] = [
    pa.field("document_id", pa.string()),
    pa.field("content_hash", pa.binary(16)),
    pa.field("metadata_hash", pa.binary(16)),
]
_CURRENT = pa.schema(_CURRENT_FIELDS)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored chunk: characters [start, end) of its document, and what the store keeps of it."""

    chunk_id: str
    text: str
    tokens: int
    metadata: str
    start: int
    end: int


@dataclass(slots=True)
class StoredDocument:
    """A document's current version, its pieces in order."""

    id: str
    partition: str
    content_hash: bytes
    metadata_hash: bytes
    title: str | None
    pieces: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which documents: of these partitions (None: all), at most so many, or a sample of them."""

    partitions: tuple[str, ...] | None = None
    limit: int | None = None
    sample: int | None = None


def stored(
    connection: Connection, storage: Storage, corpus: str, chunking: str, selection: Selection
) -> Iterator[StoredDocument]:
    """The current documents, partition by partition, each with all of its chunks.

    `chunking` is the fingerprint they are stored under; documents that no run has chunked that way
    are left out.
    """
    chosen = _chosen(connection, corpus, selection)
    for partition in _partitions(connection, corpus, selection.partitions):
        paths = storage.list(f"corpora/{corpus}/chunks/{chunking}/{partition}", ".parquet")
        if not paths:
            continue
        with opened(storage, Resources(memory_limit="512MB")) as sets:
            current = _current(connection, corpus, partition, chosen)
            if sets.load("current", _CURRENT, current):
                yield from _documents(sets, paths, partition)


def _partitions(connection: Connection, corpus: str, wanted: tuple[str, ...] | None) -> list[str]:
    found = connection.execute(
        "select distinct partition from documents where corpus = %s and not deleted order by partition",
        (corpus,),
    )
    known = [str(row["partition"]) for row in found]
    return known if wanted is None else [name for name in known if name in wanted]


def _chosen(connection: Connection, corpus: str, selection: Selection) -> frozenset[str] | None:
    """The ids of a limited or sampled selection, always the same ones; None for no such limit."""
    size = selection.sample if selection.sample is not None else selection.limit
    if size is None:
        return None
    order = "md5(document_id)" if selection.sample is not None else "partition, document_id"
    rows = connection.execute(
        "select document_id from documents where corpus = %s and not deleted"
        f" and (%s::text[] is null or partition = any(%s)) order by {order} limit %s".encode(),
        (corpus, _array(selection.partitions), _array(selection.partitions), size),
    )
    return frozenset(str(row["document_id"]) for row in rows)


def _array(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _current(
    connection: Connection, corpus: str, partition: str, chosen: frozenset[str] | None
) -> Iterator[pa.Table]:
    """What the document table says of a partition, streamed."""
    with (
        connection.transaction(),
        connection.cursor(name="stored_documents", row_factory=tuple_row, binary=True) as cursor,
    ):
        cursor.itersize = _BATCH
        cursor.execute(
            "select document_id, content_hash, metadata_hash from documents"
            " where corpus = %s and partition = %s and not deleted",
            (corpus, partition),
        )
        while batch := cursor.fetchmany(_BATCH):
            kept = batch if chosen is None else [row for row in batch if row[0] in chosen]
            if kept:
                columns: list[pa.Array[Any]] = [
                    pa.array(column, one.type)
                    for column, one in zip(zip(*kept, strict=True), _CURRENT_FIELDS, strict=True)
                ]
                yield pa.table(columns, schema=_CURRENT)


def _documents(sets: KeySets, paths: Sequence[str], partition: str) -> Iterator[StoredDocument]:
    columns = "chunk_id, document_id, content_hash, metadata_hash, position, text, tokens, metadata"
    sets.files("chunks", paths, columns)
    # A part may repeat what another holds.
    query = (
        f"select {columns} from (select distinct on (chunk_id) * from chunks semi join current"
        " using (document_id, content_hash, metadata_hash)) order by document_id, position"
    )
    document: StoredDocument | None = None
    for chunk_id, name, content, metadata_hash, _, text, tokens, metadata in sets.rows(query):
        told = json.loads(metadata)
        if document is None or document.id != name:
            if document is not None:
                yield document
            title = told.get("title")
            document = StoredDocument(
                name, partition, content, metadata_hash, title if isinstance(title, str) else None
            )
        start, end = told["span"]
        document.pieces.append(Piece(chunk_id, text, tokens, metadata, start, end))
    if document is not None:
        yield document


@dataclass(frozen=True, slots=True)
class Window:
    """Some consecutive pieces of a document as one text; `chunk_id` is the first one's."""

    chunk_id: str
    text: str


def windows(document: StoredDocument, tokens: int) -> list[Window]:
    """A document in as few windows as its pieces allow, each of at most so many tokens (cl100k).

    What pieces share is there once. A piece that is larger by itself is a window of its own.
    """
    found: list[list[Piece]] = []
    size = 0
    for piece in document.pieces:
        if found and size + piece.tokens <= tokens:
            found[-1].append(piece)
            size += piece.tokens
        else:
            found.append([piece])
            size = piece.tokens
    return [Window(pieces[0].chunk_id, _joined(pieces)) for pieces in found]


def _joined(pieces: Sequence[Piece]) -> str:
    text, end = "", pieces[0].start
    for piece in pieces:
        # Only blanks lie between pieces.
        text += "\n\n" if piece.start > end else ""
        text += piece.text[max(0, end - piece.start) :]
        end = max(end, piece.end)
    return text
