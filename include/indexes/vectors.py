"""The vectors that a range of rows wants, gathered from the results into one matrix on disk.

Results lie by key and rows by document, so joining them means random access in one of the two.
The matrix takes it: results are streamed once and each vector goes to its key's place. Its pages
are given back as it is written, so memory stays flat however large the range.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import KEY_BYTES
from include.errors import IndexMismatch
from include.indexes import readback
from include.requests import results
from include.storage import Storage

Places = npt.NDArray[np.int64]
"""For each row its row in the matrix, or -1 where its key has no result; shape (rows,)."""


IN_MEMORY = 128 << 20
"""Bytes of a matrix up to which no file is made; and of a larger one, what is touched before its
pages are given back."""


class Vectors:
    """Vectors by key. Made by `gathered`."""

    def __init__(self, keys: pa.ChunkedArray[Any], dimensions: int, memory: mmap.mmap | None) -> None:
        self._memory = memory
        self._touched = 0
        self._names = np.unique(_comparable(keys))
        shape = (len(self._names), dimensions)
        self._matrix = (
            np.frombuffer(memory, np.float32).reshape(shape) if memory else np.empty(shape, np.float32)
        )
        self._landed = np.full(len(self._names), np.iinfo(np.int64).min)

    def places(self, keys: pa.ChunkedArray[Any]) -> Places:
        """Where each key's vector is. Keys must be among those gathered for."""
        places = np.searchsorted(self._names, _comparable(keys))
        return np.where(self._landed[places] > np.iinfo(np.int64).min, places, -1)

    def take(self, places: Places) -> npt.NDArray[np.float32]:
        """The vectors at these places, none of them -1; shape (places, dimensions)."""
        taken: npt.NDArray[np.float32] = self._matrix[places]
        self._touch(taken.nbytes)
        return taken

    def put(self, found: pa.Table) -> None:
        """Take in a table of the results schema; of several answers to a key the newest stays."""
        places = np.searchsorted(self._names, _comparable(found["key"]))
        landed = found["landed_at"].cast(pa.int64()).to_numpy()
        newer = landed > self._landed[places]
        values = readback.matrix(found["vector"])
        if not newer.all():
            places, values, landed = places[newer], values[newer], landed[newer]
        self._matrix[places] = values
        self._landed[places] = landed
        self._touch(values.nbytes)

    def _touch(self, size: int) -> None:
        self._touched += size
        if self._memory is not None and self._touched > IN_MEMORY and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)
            self._touched = 0


@contextmanager
def gathered(
    storage: Storage, space_id: str, dimensions: int, keys: pa.ChunkedArray[Any]
) -> Iterator[Vectors]:
    """The newest landed vector of each of these keys that has one, until the block ends.

    Raises IndexMismatch where the space's results are of another width.
    """
    distinct: Any = keys.unique()
    with tempfile.TemporaryFile(prefix="vectors-") as file:
        size = len(distinct) * dimensions * 4
        memory = None
        if size > IN_MEMORY:
            file.truncate(size)
            # The map is closed when its last view is gone, which NumPy decides, not this block.
            memory = mmap.mmap(file.fileno(), size)
        vectors = Vectors(distinct, dimensions, memory)
        paths: Sequence[str] = results.files(storage, space_id) if size else ()
        for found in results.read(storage, paths, distinct, ["key", "vector", "landed_at"]):
            width = found.schema.field("vector").type.list_size
            if width != dimensions:
                raise IndexMismatch(
                    f"the results of space {space_id} hold {width} dimensions and the index {dimensions}: "
                    "set embedding.dimensions of the corpus to what the model gives"
                )
            vectors.put(found)
        yield vectors


def _comparable(keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[Any]:
    """Keys as 16-byte strings, which NumPy sorts and compares as bytes."""
    matrix = np.ascontiguousarray(results.keys_matrix(keys))
    return matrix.view(f"S{KEY_BYTES}").reshape(-1)
