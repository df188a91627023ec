"""The newest answer to each key, streamed from the results as they lie, so vectors are never copied about.

Results lie by key and rows by document, so one side of their join is read at random. That is the
rows: vectors are the larger part, and come out of the results in ready-made columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import FLOAT_BYTES, KEY_BYTES
from include.errors import IndexMismatch
from include.requests import results
from include.storage import Storage

Keys = npt.NDArray[np.bytes_]
"""Keys as 16-byte strings, which NumPy sorts and compares as bytes; shape (rows,)."""
Numbers = npt.NDArray[np.int64]
"""Numbers of rows; shape (rows,)."""

_NEVER = np.iinfo(np.int64).min


def comparable(keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> Keys:
    """A column of keys as NumPy compares them."""
    matrix = np.ascontiguousarray(results.keys_matrix(keys))
    return matrix.view(f"S{KEY_BYTES}").reshape(-1)


class Answers:
    """The answers to the keys of some rows. Reads their keys when made, their vectors when streamed.

    Raises IndexMismatch where the space's results are of another width than `dimensions`.
    """

    def __init__(self, storage: Storage, space_id: str, dimensions: int, keys: Keys) -> None:
        self._storage = storage
        self._paths = results.files(storage, space_id)
        self._dimensions = dimensions
        self._by_key = np.argsort(keys, kind="stable")
        self._names, self._first = np.unique(keys[self._by_key], return_index=True)
        self._count = np.diff(np.append(self._first, len(keys)))
        self._landed = np.full(len(self._names), _NEVER)
        self._group = np.full(len(self._names), -1, np.int32)
        self._groups: list[tuple[str, int]] = []
        if len(keys):
            self._survey()

    def _survey(self) -> None:
        """Which row group holds the newest answer to each key."""
        for path in self._paths:
            with self._storage.parquet_file(path) as file:
                width = file.schema_arrow.field("vector").type.byte_width // FLOAT_BYTES
                if width != self._dimensions:
                    raise IndexMismatch(
                        f"{self._storage.url(path)} holds vectors of {width} dimensions and the index "
                        f"{self._dimensions}: set embedding.dimensions of the corpus to what the model gives"
                    )
                for group in range(file.num_row_groups):
                    found = file.read_row_group(group, columns=["key", "landed_at"])
                    names, positions = self._match(found["key"])
                    landed = found["landed_at"].cast(pa.int64()).to_numpy()[positions]
                    newer = landed > self._landed[names]
                    self._landed[names[newer]] = landed[newer]
                    self._group[names[newer]] = len(self._groups)
                    self._groups.append((path, group))

    def _match(self, column: pa.ChunkedArray[Any]) -> tuple[Numbers, Numbers]:
        """The keys of a column that are wanted: their numbers, and their positions in the column."""
        keys = comparable(column)
        places = np.searchsorted(self._names, keys)
        places[places == len(self._names)] = 0
        positions = np.flatnonzero(self._names[places] == keys)
        return places[positions], positions

    def answered(self) -> npt.NDArray[np.bool_]:
        """Which rows have an answer; shape (rows,)."""
        mask = np.empty(len(self._by_key), bool)
        mask[self._by_key] = np.repeat(self._landed > _NEVER, self._count)
        return mask

    def stream(
        self, wanted: npt.NDArray[np.bool_], most: int
    ) -> Iterator[tuple[Numbers, pa.FixedSizeListArray[Any]]]:
        """The vectors of the wanted rows that have one, each row once: (numbers of rows, vectors).

        At most `most` rows at a time. A row group in which no key's newest answer is, isn't read.
        """
        holds = np.bincount(self._group[self._group >= 0], minlength=len(self._groups))
        for number in np.flatnonzero(holds):
            path, group = self._groups[number]
            with self._storage.parquet_file(path) as file:
                found = file.read_row_group(group, columns=["key", "vector"])
            names, positions = self._match(found["key"])
            own = self._group[names] == number
            rows, positions = self._rows_of(names[own], positions[own])
            keep = wanted[rows]
            rows, positions = rows[keep], positions[keep]
            for start in range(0, len(rows), most):
                part = slice(start, start + most)
                yield rows[part], results.vectors_lists(_picked(found["vector"], positions[part]))

    def _rows_of(self, names: Numbers, positions: Numbers) -> tuple[Numbers, Numbers]:
        """The rows that want these keys, and for each the position of its answer."""
        first, count = self._first[names], self._count[names]
        ends = np.cumsum(count)
        offsets = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - count, count)
        return self._by_key[np.repeat(first, count) + offsets], np.repeat(positions, count)


def _picked(column: pa.ChunkedArray[Any], positions: Numbers) -> Any:
    """The entries at these positions; a view of them where they lie one after the other."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if len(positions) and bool(np.all(np.diff(positions) == 1)):
        return whole.slice(int(positions[0]), len(positions))
    return whole.take(positions)
