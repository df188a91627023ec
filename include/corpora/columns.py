"""A batch of documents as Arrow columns: one row a chunk, as a run's rows have them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from include.contracts import KEY_BYTES, RUN_ROW_SCHEMA
from include.corpora.chunking import Chunker, chunk_ids
from include.corpora.config import CorpusConfig
from include.corpora.documents import Incoming
from include.corpora.inputs import Inputs
from include.corpora.records import Document
from include.corpora.rows import range_of
from include.requests.keys import item_keys


class ChunkRows:
    """The chunks of a batch of documents, gathered in columns."""

    def __init__(
        self, config: CorpusConfig, space_id: str, ranges: int, chunker: Chunker, sending: Inputs
    ) -> None:
        self._config = config
        self._chunking = config.chunking.fingerprint
        self._space_id = space_id
        self._range_count = ranges
        self._chunker = chunker
        self._sending = sending
        self._columns: dict[str, list[Any]] = {
            name: [] for name in RUN_ROW_SCHEMA.names if name not in ("key", "input")
        }
        self._texts: list[str] = []
        self._inputs: list[str] = []
        self._ranges: list[int] = []
        self._store: list[bool] = []

    def add(self, document: Document, head: str, version: Incoming, *, store: bool) -> tuple[int, str]:
        """Chunk one document; returns into how many chunks, and which had to be cut smaller ("": none).

        Raises PresendFailed or TooLong, before anything of it is taken, where a chunk can't be sent.
        """
        chunks, inputs, cut = self._sending.of(self._chunker.chunks(document.text))
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
        columns["tokens"] += self._sending.tokens(inputs, version.content_hash[0])
        self._texts += texts
        self._inputs += inputs
        self._ranges += [range_of(document.id, self._range_count)] * count
        self._store += [store] * count
        return count, cut

    def table(self) -> tuple[pa.Table, npt.NDArray[np.int32], pa.Table]:
        """The rows, of RUN_ROW_SCHEMA; each one's range, shape (rows,); the chunks to store.

        What is stored is the source's text, whatever the index is to hold, so that a change of mind
        needs no source.
        """
        as_sent = self._config.presend_text
        columns: dict[str, Any] = {
            **self._columns,
            "text": self._inputs if as_sent else self._texts,
            "key": item_keys(self._space_id, self._inputs),
            "input": self._differing(),
        }
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for field in RUN_ROW_SCHEMA
            for column in (columns[field.name],)
        ]
        rows = pa.Table.from_arrays(arrays, schema=RUN_ROW_SCHEMA)
        whole = rows
        if as_sent:
            place = rows.schema.get_field_index("text")
            whole = rows.set_column(place, rows.schema.field(place), pa.array(self._texts, pa.string()))
        stored = whole.filter(pa.array(self._store, pa.bool_()))
        return rows, np.array(self._ranges, dtype=np.int32), stored

    def _differing(self) -> pa.Array[Any]:
        """The inputs that aren't their rows' texts, null elsewhere."""
        if self._sending.are_texts or self._config.presend_text:
            return pa.nulls(len(self._texts), pa.string())
        pairs = zip(self._inputs, self._texts, strict=True)
        return pa.array([None if input == text else input for input, text in pairs], pa.string())


def version_of(document: Document, head: str) -> Incoming:
    """What the document table compares; `head` is `metadata_of` the document."""
    if document.deleted:
        none = bytes(KEY_BYTES)
        return Incoming(document.id, document.partition, none, none, document.updated_at, deleted=True)
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
