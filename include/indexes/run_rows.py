"""The rows of some ranges, judged as they are read and kept where any of them is quickly found.

Texts and metadata go to a scratch file that is mapped, so memory holds ids and numbers only.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import RUN_ROW_SCHEMA
from include.corpora.rows import range_number
from include.errors import StorageError
from include.indexes import truth
from include.indexes.extracted import Extracted
from include.indexes.truth import Mask
from include.ledger.connect import Connection
from include.requests.lookup import Lookup, Names, Numbers, names_of_keys, names_of_uuids
from include.storage import Storage

_READ_ROWS = 10_000
_GIVE_BACK = 64 << 20
_READ = ["chunk_id", "key", "document_id", "content_hash", "metadata_hash", "text", "metadata"]
_KEPT = ["chunk_id", "document_id", "text", "metadata"]


class _Kept:
    """Rows in an Arrow file that is mapped into memory, whose pages are given back as it's read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(memory)))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._touched = 0

    def take(self, rows: Numbers) -> pa.Table:
        """These rows, in their order."""
        order = np.argsort(rows, kind="stable")
        inverse = np.empty(len(rows), np.int64)
        inverse[order] = np.arange(len(rows))
        ascending = rows[order]
        bounds = np.searchsorted(ascending, self._starts)
        # Arrow's take of a whole table would first join all its batches.
        parts = []
        for number in np.flatnonzero(np.diff(bounds)):
            inside = ascending[bounds[number] : bounds[number + 1]] - self._starts[number]
            parts.append(self._batches[number].take(pa.array(inside)))
        taken = pa.Table.from_batches(parts).combine_chunks().take(inverse)
        self._touched += taken.nbytes
        if self._touched > _GIVE_BACK and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return taken


@dataclass(frozen=True)
class RunRows:
    """Rows of a run, numbered from 0. `current` and `deleted` say what is true of each now.

    `ids` has each row once. `documents` has each document once, `document` each row's place in it.
    `content` is a hash of what the index is to hold of a row, but for its vector: key, text, metadata.
    """

    ids: Lookup
    keys: Lookup
    content: Numbers
    documents: pa.Array[Any]
    document: npt.NDArray[np.int32]
    current: Mask
    deleted: Mask
    _kept: _Kept

    def __len__(self) -> int:
        return len(self.document)

    def take(self, rows: Numbers) -> pa.Table:
        """These rows' chunk_id, document_id, text and metadata, in their order."""
        return self._kept.take(rows)

    def documents_where(self, rows: Mask) -> Mask:
        """Which documents have one of these rows; shape (documents,)."""
        mask = np.zeros(len(self.documents), bool)
        mask[self.document[rows]] = True
        return mask


@contextmanager
def judged(connection: Connection, storage: Storage, corpus: str, paths: Sequence[str]) -> Iterator[RunRows]:
    """The rows of these range files, until the block ends. The caller holds their documents' locks.

    Raises StorageError where they aren't as `prepare` writes them: each chunk once, named by a UUID.
    """
    with tempfile.TemporaryDirectory(prefix="rows-", ignore_cleanup_errors=True) as scratch:
        file = str(Path(scratch) / "rows.arrow")
        light = _Light()
        schema = pa.schema([RUN_ROW_SCHEMA.field(name) for name in _KEPT])
        with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in _batches(storage, corpus, paths):
                light.add(batch, truth.judge(connection, corpus, batch))
                writer.write_batch(batch.select(_KEPT))
        with open(file, "rb") as source:
            # Closed when its last view is gone, which Arrow decides, not this block.
            memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        yield light.rows(_Kept(memory))


class _Light:
    """What is held of each row while rows are read: numbers, and each document's name once."""

    def __init__(self) -> None:
        self._ids: list[Names] = [np.empty((0, 2), np.uint64)]
        self._keys: list[Names] = [np.empty((0, 2), np.uint64)]
        self._content: list[Numbers] = [np.empty(0, np.int64)]
        self._current: list[Mask] = [np.empty(0, bool)]
        self._deleted: list[Mask] = [np.empty(0, bool)]
        self._documents: list[pa.Array[Any]] = []

    def add(self, batch: pa.RecordBatch, true: truth.Truth) -> None:
        """Add rows of RUN_ROW_SCHEMA."""
        ids, usual = names_of_uuids(batch.column("chunk_id"))
        if not usual.all():
            raise _not_prepared(f"chunk {batch.column('chunk_id')[int(np.argmin(usual))]}, which is no UUID")
        keys = names_of_keys(batch.column("key"))
        self._ids.append(ids)
        self._keys.append(keys)
        self._content.append(_hashes(batch) ^ keys[:, 0].view(np.int64))
        self._current.append(true.current)
        self._deleted.append(true.deleted)
        self._documents.append(batch.column("document_id").dictionary_encode())

    def rows(self, kept: _Kept) -> RunRows:
        """All of them; empties this."""
        empty = pa.array([], pa.string()).dictionary_encode()
        documents: Any = pa.chunked_array([empty, *self._documents]).combine_chunks()
        self._documents.clear()
        ids = Lookup(_joined(self._ids))
        rows = RunRows(
            ids=ids,
            keys=Lookup(_joined(self._keys)),
            content=_joined(self._content),
            documents=documents.dictionary,
            document=documents.indices.to_numpy(),
            current=_joined(self._current),
            deleted=_joined(self._deleted),
            _kept=kept,
        )
        if len(ids) != len(rows):
            twice = ids.repeated()
            raise _not_prepared(f"chunk {kept.take(twice[:1])['chunk_id'][0]} twice")
        return rows


def _joined(parts: list[Any]) -> Any:
    joined = np.concatenate(parts)
    parts.clear()
    return joined


def _not_prepared(what: str) -> StorageError:
    return StorageError(
        f"the run's rows hold {what}, so they weren't written by `prepare`: clear the run's prepare to "
        "write them again"
    )


def _hashes(batch: pa.RecordBatch) -> Numbers:
    """A hash of each row's text and metadata."""
    # JSON has no zero byte, so no two rows look alike that aren't.
    join: Any = pc.binary_join_element_wise
    whole = join(batch.column("text"), batch.column("metadata"), "\0")
    _, offsets, letters = whole.buffers()
    data = memoryview(letters or b"")
    places = np.frombuffer(memoryview(offsets), np.int32)[whole.offset : whole.offset + len(whole) + 1]
    digests = [
        hashlib.blake2b(data[start:end], digest_size=8).digest()
        for start, end in itertools.pairwise(places.tolist())
    ]
    return np.frombuffer(b"".join(digests), "<i8")


def _batches(storage: Storage, corpus: str, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of these files, with what was extracted from their documents."""
    for path in paths:
        extracted = Extracted(storage, corpus, [range_number(path)])
        with storage.parquet_file(path) as file:
            for batch in file.iter_batches(_READ_ROWS, columns=_READ):
                yield extracted.over(batch)
