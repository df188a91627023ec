"""Finding names of 16 bytes among many: keys, and chunk ids, which are UUIDs.

Both are hashes, so their first eight bytes all but decide, and NumPy compares those as numbers.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.requests.results import keys_matrix

Names = npt.NDArray[np.uint64]
"""Names as two numbers each, shape (names, 2); comparing those compares the names."""
Numbers = npt.NDArray[np.int64]
"""Numbers of rows or of names; shape (rows,)."""

_UUID_LENGTH = 36
_DASHES = [8, 13, 18, 23]
_DIGITS = [place for place in range(_UUID_LENGTH) if place not in _DASHES]
_NO_DIGIT = 255
_VALUES = np.full(256, _NO_DIGIT, np.uint8)
_LETTERS = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8)
_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


class Lookup:
    """Distinct names in order, and which rows have them. Rows are numbered as they were given."""

    def __init__(self, names: Names) -> None:
        order = np.lexsort((names[:, 1], names[:, 0]))
        high, low = names[order, 0], names[order, 1]
        first = np.ones(len(order), bool)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        starts = np.flatnonzero(first)
        self._high, self._low = high[starts], low[starts]
        self._order = order.astype(np.int32)
        self._bounds = np.append(starts, len(order)).astype(np.int32)

    def __len__(self) -> int:
        """How many distinct names there are."""
        return len(self._high)

    def names(self, numbers: npt.NDArray[Any]) -> Names:
        """The names with these numbers."""
        return np.stack([self._high[numbers], self._low[numbers]], axis=1)

    @cached_property
    def numbers(self) -> npt.NDArray[np.int32]:
        """The number of each row's name; shape (rows,)."""
        return self.spread(np.arange(len(self), dtype=np.int32))

    def repeated(self) -> Numbers:
        """Rows whose name another row has too, one a name."""
        often = np.flatnonzero(np.diff(self._bounds) > 1)
        return self._order[self._bounds[often]].astype(np.int64)

    def find(self, names: Names) -> Numbers:
        """The number of each of these names, -1 where it isn't among them."""
        if not len(self):
            return np.full(len(names), -1)
        high, low = np.ascontiguousarray(names[:, 0]), names[:, 1]
        places = np.searchsorted(self._high, high)
        last = len(self) - 1
        places[places > last] = last
        # Where the first halves are the same, one after the other.
        while len(wrong := np.flatnonzero((self._high[places] == high) & (self._low[places] < low))):
            wrong = wrong[places[wrong] < last]
            if not len(wrong):
                break
            places[wrong] += 1
        places[(self._high[places] != high) | (self._low[places] != low)] = -1
        return places

    def rows(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """The rows that have these names, and for each its name's place in `numbers`."""
        first = self._bounds[numbers].astype(np.int64)
        count = self._bounds[numbers + 1] - first
        ends = np.cumsum(count)
        offsets = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - count, count)
        rows = self._order[np.repeat(first, count) + offsets]
        return rows.astype(np.int64), np.repeat(np.arange(len(numbers)), count)

    def any_of(self, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which names one of these rows has; shape (names,)."""
        return np.logical_or.reduceat(rows[self._order], self._bounds[:-1]) if len(self) else rows[:0]

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Each row's value, from those of the names; shape (rows,)."""
        spread = np.empty(len(self._order), values.dtype)
        spread[self._order] = np.repeat(values, np.diff(self._bounds))
        return spread


def names_of_keys(keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> Names:
    """A column of keys as names."""
    return keys_matrix(keys).astype(np.uint64)


def keys_of_names(names: Names) -> list[bytes]:
    """Names as keys again."""
    packed = names.astype(">u8").tobytes()
    return [packed[place : place + 16] for place in range(0, len(packed), 16)]


def names_of_uuids(ids: pa.Array[Any]) -> tuple[Names, npt.NDArray[np.bool_]]:
    """UUIDs in their usual text as names, and which of them are such; what isn't has the name zero."""
    names = np.zeros((len(ids), 2), np.uint64)
    length: Any = pc.binary_length
    usual: npt.NDArray[np.bool_] = length(ids).to_numpy() == _UUID_LENGTH
    text = ids if usual.all() else ids.filter(pa.array(usual))
    if len(text):
        buffers: list[Any] = text.buffers()
        offsets, letters = memoryview(buffers[1]), memoryview(buffers[2])
        start = np.frombuffer(offsets, np.int32)[text.offset]
        matrix = np.frombuffer(letters, np.uint8)[start : start + _UUID_LENGTH * len(text)]
        matrix = matrix.reshape(-1, _UUID_LENGTH)
        digits = _VALUES[matrix[:, _DIGITS]]
        names[usual] = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2] & 15).view(">u8")
        usual[usual] = (digits != _NO_DIGIT).all(axis=1) & (matrix[:, _DASHES] == ord("-")).all(axis=1)
    return names, usual


def uuids_of_names(names: Names) -> pa.Array[Any]:
    """Names as UUIDs in their usual text."""
    text = np.full((len(names), _UUID_LENGTH), ord("-"), np.uint8)
    text[:, _DIGITS] = _LETTERS[names.astype(">u8").view(np.uint8)].reshape(-1, len(_DIGITS))
    ends: Any = np.arange(len(names) + 1, dtype=np.int32) * _UUID_LENGTH
    letters: Any = text
    return pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer(letters))
