"""The newest answer to each key, streamed from the results as they lie, so vectors are never copied about.

Results lie by key and rows by document, so one side of their join is read at random. That is the
rows: vectors are the larger part, and come out of the results in ready-made columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import FLOAT_BYTES
from include.errors import IndexMismatch
from include.requests import results
from include.requests.lookup import Lookup, Numbers, names_of_keys
from include.storage import Storage

NEVER = int(np.iinfo(np.int64).min)
"""When the answer to a key landed that has none."""


class Answers:
    """The answers to some keys. Reads their keys when made, their vectors when streamed.

    Raises IndexMismatch where the space's results are of another width than `dimensions`.
    """

    def __init__(self, storage: Storage, space_id: str, dimensions: int, keys: Lookup) -> None:
        self._storage = storage
        self._paths = results.files(storage, space_id)
        self._dimensions = dimensions
        self._keys = keys
        self._landed = np.full(len(keys), NEVER)
        self._group = np.full(len(keys), -1, np.int32)
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
                    numbers, positions = self._match(found["key"])
                    landed = found["landed_at"].cast(pa.int64()).to_numpy()[positions]
                    newer = landed > self._landed[numbers]
                    self._landed[numbers[newer]] = landed[newer]
                    self._group[numbers[newer]] = len(self._groups)
                    self._groups.append((path, group))

    def _match(self, column: Any) -> tuple[Numbers, Numbers]:
        """The keys of a column that are wanted: their numbers, and their positions in the column."""
        numbers = self._keys.find(names_of_keys(column))
        positions = np.flatnonzero(numbers >= 0)
        return numbers[positions], positions

    def landed(self) -> Numbers:
        """When each row's answer landed, in microseconds since 1970, NEVER without one; shape (rows,)."""
        return self._keys.spread(self._landed)

    def stream(
        self, wanted: npt.NDArray[np.bool_], most: int
    ) -> Iterator[tuple[Numbers, pa.FixedSizeListArray[Any]]]:
        """The vectors of the wanted rows that have one, each row once: (numbers of rows, vectors).

        At most `most` rows at a time. A row group is read only where it holds an answer for one of them.
        """
        for path, numbers in itertools.groupby(self._holding(wanted), lambda number: self._groups[number][0]):
            with self._storage.parquet_file(path) as file:
                for number in numbers:
                    group = self._groups[number][1]
                    for found in file.iter_batches(
                        most, row_groups=[group], columns=["key", "vector"], use_threads=False
                    ):
                        rows, positions = self._rows_of(found.column("key"), number)
                        keep = wanted[rows]
                        rows, positions = rows[keep], positions[keep]
                        for start in range(0, len(rows), most):
                            part = slice(start, start + most)
                            picked = _picked(found.column("vector"), positions[part])
                            yield rows[part], results.vectors_lists(picked)

    def _rows_of(self, column: pa.Array[Any], group: int) -> tuple[Numbers, Numbers]:
        """The rows whose newest answers this column of a row group has, and their positions in it."""
        names, positions = self._match(column)
        own = self._group[names] == group
        rows, places = self._keys.rows(names[own])
        return rows, positions[own][places]

    def _holding(self, wanted: npt.NDArray[np.bool_]) -> list[int]:
        """The row groups with the newest answers for these rows."""
        groups = self._keys.spread(self._group)[wanted]
        return [int(number) for number in np.unique(groups) if number >= 0]


def _picked(column: Any, positions: Numbers) -> Any:
    """The entries at these positions; a view of them where they lie one after the other."""
    if bool(np.all(np.diff(positions) == 1)):
        return column.slice(int(positions[0]), len(positions))
    return column.take(positions)
