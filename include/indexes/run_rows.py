"""The rows of some ranges, judged as they are read and kept where any of them is quickly found.

Texts and metadata go to scratch files, so memory holds ids and numbers only.
"""

from __future__ import annotations

import hashlib
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


class _Records:
    """Each row's text and metadata, one after the other in a scratch file; their places are in memory,
    12 bytes a row. They are read row by row: of a mapped file ever more would count as this process's
    memory."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=_WRITE_BYTES)
        self._parts: list[Numbers] = [np.zeros(1, np.int64)]
        self._text_parts: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
        self._size = 0

    def add(self, texts: pa.Array[Any], metadata: pa.Array[Any]) -> None:
        """Add the next rows."""
        if not len(texts):
            return
        # JSON has no zero byte, so no two records look alike that aren't.
        join: Any = pc.binary_join_element_wise
        length: Any = pc.binary_length
        _, offsets, letters = join(texts, metadata, "\0").buffers()
        ends = np.frombuffer(memoryview(offsets), np.int32)[: len(texts) + 1]
        self._file.write(memoryview(letters)[: ends[-1]])
        self._parts.append(ends[1:].astype(np.int64) + self._size)
        self._text_parts.append(length(texts).to_numpy())
        self._size = int(self._parts[-1][-1])

    def complete(self) -> None:
        """All rows are there: they can be taken from now on."""
        self._file.flush()
        self._ends: Numbers = _joined(self._parts)
        self._text_lengths: npt.NDArray[np.int32] = _joined(self._text_parts)

    def take(self, rows: Numbers) -> tuple[pa.Array[Any], pa.Array[Any], Numbers]:
        """These rows' texts and metadata, and a hash of both, in their order."""
        records = self._read(rows)
        cuts = self._text_lengths[rows]
        pairs = list(zip(records, cuts.tolist(), strict=True))
        lengths = self._ends[rows + 1] - self._ends[rows] - cuts - 1
        return (
            _strings([record[:cut] for record, cut in pairs], cuts),
            _strings([record[cut + 1 :] for record, cut in pairs], lengths),
            _hashes(records),
        )

    def hashes(self, rows: Numbers) -> Numbers:
        """The hashes alone."""
        return _hashes(self._read(rows))

    def _read(self, rows: Numbers) -> list[bytes]:
        file, starts = self._file.fileno(), self._ends[rows]
        lengths = self._ends[rows + 1] - starts
        return [
            os.pread(file, size, start) for size, start in zip(lengths.tolist(), starts.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Give up the file."""
        self._file.close()


def _strings(texts: list[bytes], lengths: npt.NDArray[Any]) -> pa.Array[Any]:
    offsets: Any = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)))


def _hashes(records: list[bytes]) -> Numbers:
    digests = [hashlib.blake2b(record, digest_size=8).digest() for record in records]
    return np.frombuffer(b"".join(digests), "<i8")


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
    _records: _Records

    def __len__(self) -> int:
        return len(self.document)

    def take(self, rows: Numbers) -> tuple[list[pa.Array[Any]], Numbers]:
        """These rows' chunk_id, document_id, text and metadata, and their contents, in their order."""
        texts, metadata, hashes = self._records.take(rows)
        documents = self.documents.take(self.document[rows])
        return [self.chunk_ids(rows), documents, texts, metadata], self._content(rows, hashes)

    def content(self, rows: Numbers) -> Numbers:
        """A hash of what an index is to hold of these rows, but for their vectors: key, text, metadata."""
        parts = [rows[start : start + _READ_ROWS] for start in range(0, len(rows), _READ_ROWS)]
        hashes = [self._content(part, self._records.hashes(part)) for part in parts]
        return np.concatenate([np.empty(0, np.int64), *hashes])

    def _content(self, rows: Numbers, hashes: Numbers) -> Numbers:
        keys = self.keys.names(self.keys.numbers[rows])
        return hashes ^ keys[:, 0].view(np.int64)

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
        self._records = _Records(scratch / "records")
        self._ids: list[Names] = [np.empty((0, 2), np.uint64)]
        self._keys: list[Names] = [np.empty((0, 2), np.uint64)]
        self._current: list[Mask] = [np.empty(0, bool)]
        self._deleted: list[Mask] = [np.empty(0, bool)]
        self._documents: list[pa.Array[Any]] = []

    def __enter__(self) -> _Gathered:
        return self

    def __exit__(self, *failure: object) -> None:
        self._records.close()

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
        self._records.add(batch.column("text"), batch.column("metadata"))

    def rows(self) -> RunRows:
        """All of them; empties this."""
        self._records.complete()
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
            _records=self._records,
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


def _batches(storage: Storage, corpus: str, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of these files, with what was extracted from their documents."""
    for path in paths:
        extracted = Extracted(storage, corpus, [range_number(path)])
        with storage.parquet_file(path) as file:
            for batch in file.iter_batches(_READ_ROWS, columns=_READ, use_threads=False):
                yield extracted.over(batch)
