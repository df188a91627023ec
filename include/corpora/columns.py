"""A batch of documents as Arrow columns: one row a chunk, as a run's rows have them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from include.contracts import KEY_BYTES, RUN_ROW_SCHEMA
from include.corpora import tokens
from include.corpora.chunking import Chunker, chunk_ids
from include.corpora.config import CorpusConfig
from include.corpora.documents import Incoming
from include.corpora.records import Document
from include.corpora.rows import range_of
from include.requests.keys import item_keys


class ChunkRows:
    """The chunks of a batch of documents, gathered in columns."""

    def __init__(self, config: CorpusConfig, space_id: str, ranges: int, chunker: Chunker) -> None:
        self._config = config
        self._chunking = config.chunking.fingerprint
        self._space_id = space_id
        self._range_count = ranges
        self._chunker = chunker
        self._columns: dict[str, list[Any]] = {
            name: [] for name in RUN_ROW_SCHEMA.names if name not in ("key", "input", "tokens")
        }
        self._texts: list[str] = []
        self._ranges: list[int] = []
        self._store: list[bool] = []

    def add(self, document: Document, head: str, version: Incoming, *, store: bool) -> int:
        """Chunk one document; returns into how many chunks."""
        chunks = self._chunker.chunks(document.text)
        count = len(chunks)
        texts = [chunk.text for chunk in chunks]
        columns = self._columns
        columns["chunk_id"] += chunk_ids(self._config.corpus, document.id, self._chunking, texts)
        columns["document_id"] += [document.id] * count
        columns["content_hash"] += [version.content_hash] * count
        columns["metadata_hash"] += [version.metadata_hash] * count
        columns["partition"] += [document.partition] * count
        columns["position"] += range(count)
        columns["metadata"] += [
            f'{head[:-1]},"position":{position},"span":[{chunk.start},{chunk.end}],'
            f'"heading":{orjson.dumps(chunk.heading).decode() if chunk.heading else "[]"}}}'
            for position, chunk in enumerate(chunks)
        ]
        self._texts += texts
        self._ranges += [range_of(document.id, self._range_count)] * count
        self._store += [store] * count
        return count

    def table(self) -> tuple[pa.Table, npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """The rows, of RUN_ROW_SCHEMA, with each one's range and whether its chunk is stored."""
        columns: dict[str, Any] = {
            **self._columns,
            "text": self._texts,
            "key": item_keys(self._space_id, self._texts),
            "input": pa.nulls(len(self._texts), pa.string()),
            "tokens": tokens.count(self._texts),
        }
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for field in RUN_ROW_SCHEMA
            for column in (columns[field.name],)
        ]
        return (
            pa.Table.from_arrays(arrays, schema=RUN_ROW_SCHEMA),
            np.array(self._ranges, dtype=np.int32),
            np.array(self._store, dtype=np.bool_),
        )


def version_of(document: Document, head: str) -> Incoming:
    """What the document table compares; `head` is `metadata_of` the document."""
    if document.deleted:
        return Incoming(document.id, document.partition, b"", b"", document.updated_at, deleted=True)
    return Incoming(
        document.id,
        document.partition,
        content_hash(document.text.encode()),
        content_hash(head.encode()),
        document.updated_at,
    )


def metadata_of(document: Document) -> str:
    """What each of a document's chunks says of it, as a JSON object."""
    own = {"title": document.title, "url": document.url, "partition": document.partition}
    return orjson.dumps({**own, **document.metadata}, option=orjson.OPT_SORT_KEYS).decode()


def content_hash(data: bytes) -> bytes:
    """16 bytes of BLAKE2b."""
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
