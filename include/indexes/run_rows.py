"""The rows of some ranges, judged as they are read and kept where any of them is quickly found.

Texts and metadata go to a scratch file that is mapped, so memory holds ids and numbers only.
"""

from __future__ import annotations

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

from include.contracts import ROW_COLUMNS, RUN_ROW_SCHEMA
from include.indexes import truth
from include.indexes.answers import Keys, Numbers, comparable
from include.indexes.truth import Mask
from include.ledger.connect import Connection
from include.storage import Storage

_READ_ROWS = 10_000
_GIVE_BACK = 64 << 20
_LIGHT = ["chunk_id", "key", "document_id"]
_KEPT = [name for name in ROW_COLUMNS if name != "vector"]


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

    `documents` has each document once, `document` each row's place in it.
    """

    ids: pa.Array[Any]
    keys: Keys
    documents: pa.Array[Any]
    document: npt.NDArray[np.int32]
    current: Mask
    deleted: Mask
    _kept: _Kept

    def __len__(self) -> int:
        return len(self.ids)

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
    """The rows of these range files, until the block ends. The caller holds their documents' locks."""
    with tempfile.TemporaryDirectory(prefix="rows-", ignore_cleanup_errors=True) as scratch:
        file = str(Path(scratch) / "rows.arrow")
        light, states = [], []
        schema = pa.schema([RUN_ROW_SCHEMA.field(name) for name in _KEPT])
        with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in _batches(storage, paths):
                states.append(truth.judge(connection, corpus, batch))
                light.append(batch.select(_LIGHT))
                writer.write_batch(batch.select(_KEPT))
        with open(file, "rb") as source:
            # Closed when its last view is gone, which Arrow decides, not this block.
            memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        columns = pa.Table.from_batches(light, pa.schema([RUN_ROW_SCHEMA.field(name) for name in _LIGHT]))
        documents = columns["document_id"].combine_chunks().dictionary_encode()
        rows = RunRows(
            ids=columns["chunk_id"].combine_chunks(),
            keys=comparable(columns["key"]),
            documents=documents.dictionary,
            document=documents.indices.to_numpy(),
            current=np.concatenate([np.empty(0, bool), *(state.current for state in states)]),
            deleted=np.concatenate([np.empty(0, bool), *(state.deleted for state in states)]),
            _kept=_Kept(memory),
        )
        del light, states, columns, documents
        yield rows


def _batches(storage: Storage, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with storage.parquet_file(path) as file:
            yield from file.iter_batches(_READ_ROWS)
