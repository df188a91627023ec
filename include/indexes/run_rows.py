"""The rows of some ranges, judged as they are read and kept where any of them is quickly found.

Texts and metadata go to scratch files, so memory holds ids and numbers only.
"""

from __future__ import annotations

import hashlib
import itertools
import os
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

from include import memory
from include.corpora.rows import range_number
from include.errors import StorageError
from include.indexes import truth
from include.indexes.extracted import Extracted
from include.indexes.truth import Mask
from include.ledger.connect import Connection
from include.requests.lookup import Lookup, Names, Numbers, names_of_keys, names_of_uuids, uuids_of_names
from include.storage import Storage

_READ_ROWS = 10_000
_WRITE_BYTES = 1 << 20
_READ = ["chunk_id", "key", "document_id", "content_hash", "metadata_hash", "text", "metadata"]


class _Texts:
    """One column's texts, one after the other in a scratch file. Their places are in memory, 8 bytes a row.

    They are read one by one: of a mapped file more and more would count as this process's memory.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=_WRITE_BYTES)
        self._parts: list[Numbers] = [np.zeros(1, np.int64)]
        self._size = 0

    def add(self, column: Any) -> None:
        """Add the next rows' texts."""
        if len(column):
            _, offsets, letters = column.buffers()
            ends = np.frombuffer(memoryview(offsets), np.int32)[
                column.offset : column.offset + len(column) + 1
            ]
            if letters is not None:
                self._file.write(memoryview(letters)[ends[0] : ends[-1]])
            self._parts.append(ends[1:].astype(np.int64) - ends[0] + self._size)
            self._size = int(self._parts[-1][-1])

    def complete(self) -> None:
        """All texts are there: they can be taken from now on."""
        self._file.flush()
        self._ends = _joined(self._parts)

    def take(self, rows: Numbers) -> pa.Array[Any]:
        """These rows' texts, in their order."""
        starts = self._ends[rows]
        lengths = self._ends[rows + 1] - starts
        file = self._file.fileno()
        places = zip(lengths.tolist(), starts.tolist(), strict=True)
        texts = b"".join([os.pread(file, length, start) for length, start in places])
        offsets: Any = np.append(0, np.cumsum(lengths)).astype(np.int32)
        return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(texts))

    def close(self) -> None:
        """Give up the file."""
        self._file.close()


@dataclass(frozen=True)
class RunRows:
    """Rows of a run, numbered from 0. `current` and `deleted` say what is true of each now.

    `ids` has each row once. `documents` has each document once, `document` each row's place in it.
    """

    ids: Lookup
    keys: Lookup
    documents: pa.Array[Any]
    document: npt.NDArray[np.int32]
    current: Mask
    deleted: Mask
    _texts: _Texts
    _metadata: _Texts

    def __len__(self) -> int:
        return len(self.document)

    def take(self, rows: Numbers) -> list[pa.Array[Any]]:
        """These rows' chunk_id, document_id, text and metadata, in their order."""
        return [
            self.chunk_ids(rows),
            self.documents.take(self.document[rows]),
            self._texts.take(rows),
            self._metadata.take(rows),
        ]

    def content(self, rows: Numbers, texts: Any = None, metadata: Any = None) -> Numbers:
        """A hash of what an index is to hold of these rows, but for their vectors: key, text, metadata.

        The latter two are those of `take`, for who has them at hand.
        """
        if texts is None:
            parts = [rows[start : start + _READ_ROWS] for start in range(0, len(rows), _READ_ROWS)]
            hashes = [self.content(part, *self.take(part)[2:]) for part in parts]
            return np.concatenate([np.empty(0, np.int64), *hashes])
        keys = self.keys.names(self.keys.numbers[rows])
        return _hashes(texts, metadata) ^ keys[:, 0].view(np.int64)

    def chunk_ids(self, rows: Numbers) -> pa.Array[Any]:
        """These rows' chunk ids, in their order."""
        return uuids_of_names(self.ids.names(self.ids.numbers[rows]))

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
        with _Gathered(Path(scratch)) as gathered:
            for batch in _batches(storage, corpus, paths):
                gathered.add(batch, truth.judge(connection, corpus, batch))
            rows = gathered.rows()
            memory.give_back()
            yield rows


class _Gathered:
    """What is held of each row while rows are read: numbers, and each document's name once."""

    def __init__(self, scratch: Path) -> None:
        self._texts = _Texts(scratch / "texts")
        self._metadata = _Texts(scratch / "metadata")
        self._ids: list[Names] = [np.empty((0, 2), np.uint64)]
        self._keys: list[Names] = [np.empty((0, 2), np.uint64)]
        self._current: list[Mask] = [np.empty(0, bool)]
        self._deleted: list[Mask] = [np.empty(0, bool)]
        self._documents: list[pa.Array[Any]] = []

    def __enter__(self) -> _Gathered:
        return self

    def __exit__(self, *failure: object) -> None:
        self._texts.close()
        self._metadata.close()

    def add(self, batch: pa.RecordBatch, true: truth.Truth) -> None:
        """Add rows of RUN_ROW_SCHEMA."""
        ids, usual = names_of_uuids(batch.column("chunk_id"))
        if not usual.all():
            raise _not_prepared(f"chunk {batch.column('chunk_id')[int(np.argmin(usual))]}, which is no UUID")
        self._ids.append(ids)
        self._keys.append(names_of_keys(batch.column("key")))
        self._current.append(true.current)
        self._deleted.append(true.deleted)
        self._documents.append(batch.column("document_id").dictionary_encode())
        self._texts.add(batch.column("text"))
        self._metadata.add(batch.column("metadata"))

    def rows(self) -> RunRows:
        """All of them; empties this."""
        self._texts.complete()
        self._metadata.complete()
        empty = pa.array([], pa.string()).dictionary_encode()
        documents: Any = pa.chunked_array([empty, *self._documents]).combine_chunks()
        self._documents.clear()
        ids = Lookup(_joined(self._ids))
        rows = RunRows(
            ids=ids,
            keys=Lookup(_joined(self._keys)),
            documents=documents.dictionary,
            document=documents.indices.to_numpy(),
            current=_joined(self._current),
            deleted=_joined(self._deleted),
            _texts=self._texts,
            _metadata=self._metadata,
        )
        if len(ids) != len(rows):
            raise _not_prepared(f"chunk {rows.chunk_ids(ids.repeated()[:1])[0]} twice")
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


def _hashes(texts: pa.Array[Any], metadata: pa.Array[Any]) -> Numbers:
    """A hash of each row's text and metadata."""
    # JSON has no zero byte, so no two rows look alike that aren't.
    join: Any = pc.binary_join_element_wise
    whole = join(texts, metadata, "\0")
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
            for batch in file.iter_batches(_READ_ROWS, columns=_READ, use_threads=False):
                yield extracted.over(batch)
