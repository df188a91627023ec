"""What was paid for: `spaces/{space}/results/{submission}.parquet`, written once, read by key.

A file holds the answers of one submission and is named after it, so landing again overwrites the
same file and nothing is ever there twice. Rows are sorted by key within a row group; row groups
are about 32 MB, so that neither writer nor reader needs more memory for a larger file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pendulum
import pyarrow as pa
import pyarrow.parquet as pq

from include.contracts import FLOAT_BYTES, KEY_BYTES, results_schema
from include.storage import Storage

_GROUP_BYTES = 32 << 20
_TEXT_BYTES = 2048
_MOST_ROWS = 65_536


def folder(space_id: str) -> str:
    """The folder of a space's results, relative to the storage root."""
    return f"spaces/{space_id}/results"


def path(space_id: str, submission: str) -> str:
    """The results file of one submission, relative to the storage root."""
    return f"{folder(space_id)}/{submission}.parquet"


def submission_of(results_path: str) -> str:
    """The submission that a results file is named after; what stands behind its first dot is not it."""
    return results_path.rsplit("/", 1)[-1].partition(".")[0]


def files(storage: Storage, space_id: str) -> list[str]:
    """All results files of a space, relative to the storage root, sorted."""
    return storage.list(folder(space_id), ".parquet")


def group_rows(dimensions: int | None) -> int:
    """Rows of a row group: about 32 MB of values. `dimensions` None means text."""
    width = _TEXT_BYTES if dimensions is None else FLOAT_BYTES * dimensions
    return max(1, min(_MOST_ROWS, _GROUP_BYTES // width))


def keys_array(keys: bytes | bytearray) -> pa.Array[Any]:
    """Keys that lie one after the other, 16 bytes each, as an Arrow array."""
    buffer = pa.py_buffer(bytes(keys))
    length = len(keys) // KEY_BYTES
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), length, [None, buffer])


def keys_matrix(keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[np.uint64]:
    """Keys as two big-endian numbers a row, shape (n, 2): comparing them compares the keys."""
    array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    buffer = array.buffers()[1]
    whole = np.frombuffer(memoryview(buffer), dtype=">u8").reshape(-1, 2) if buffer is not None else _NO_KEYS
    return whole[array.offset : array.offset + len(array)]


def key_list(keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[bytes]:
    """Keys as bytes objects, for few of them."""
    found: list[Any] = keys.to_pylist()
    return found


_NO_KEYS: npt.NDArray[np.uint64] = np.empty((0, 2), dtype=">u8")


def key_order(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp] | None:
    """The order that sorts keys of `keys_matrix`; None where they are sorted already."""
    high, low = keys[:, 0], keys[:, 1]
    if bool(np.all((high[:-1] < high[1:]) | ((high[:-1] == high[1:]) & (low[:-1] <= low[1:])))):
        return None
    return np.lexsort((low, high))


def vectors_column(matrix: npt.NDArray[np.float32]) -> pa.Array[Any]:
    """Vectors as results hold them, from shape (n, dimensions); a view of the matrix where it's in order."""
    ordered: Any = np.ascontiguousarray(matrix, "<f4")
    kind = pa.binary(FLOAT_BYTES * matrix.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(matrix), [None, pa.py_buffer(ordered)])


def vectors_lists(column: pa.Array[Any]) -> pa.FixedSizeListArray[Any]:
    """The same vectors as lists of float32, as Arrow has them elsewhere; a view, nothing is copied."""
    size = column.type.byte_width // FLOAT_BYTES
    numbers = pa.Array.from_buffers(
        pa.float32(), len(column) * size, [None, column.buffers()[1]], offset=column.offset * size
    )
    return pa.FixedSizeListArray.from_arrays(numbers, size)


class ResultsWriter:
    """Writes blocks of answers, each one a row group. Made by `writing`."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema, landed_at: pendulum.DateTime) -> None:
        self._writer = writer
        self._schema = schema
        self._landed_at = landed_at
        self.rows = 0

    def write(
        self,
        keys: bytes | bytearray,
        values: npt.NDArray[np.float32] | Sequence[str],
        input_tokens: Sequence[int],
        output_tokens: Sequence[int],
        models: Sequence[str],
    ) -> None:
        """Write one row group of n answers.

        `keys` are n times 16 bytes, `values` a float32 matrix of shape (n, dimensions) or n texts.
        The buffers may be used again when this returns.
        """
        key_column = keys_array(keys)
        size = len(key_column)
        if size == 0:
            return
        order = key_order(keys_matrix(key_column))
        column: pa.Array[Any]
        if isinstance(values, np.ndarray):
            matrix = values if order is None else values[order]
            column = vectors_column(matrix)
        else:
            column = pa.array(values, pa.string())
            if order is not None:
                column = column.take(order)
        small = pa.table(
            {
                "key": key_column,
                "input_tokens": pa.array(input_tokens, pa.int32()),
                "output_tokens": pa.array(output_tokens, pa.int32()),
                "model": pa.array(models, pa.string()).dictionary_encode(),
            }
        )
        if order is not None:
            small = small.take(order)
        landed_at = pa.repeat(pa.scalar(self._landed_at, pa.timestamp("us", tz="UTC")), size)
        ordered = small["key"]
        table = pa.table(
            [
                ordered,
                ordered,
                column,
                small["input_tokens"],
                small["output_tokens"],
                small["model"],
                landed_at,
            ],
            schema=self._schema,
        )
        self._writer.write_table(table, row_group_size=size)
        self.rows += size


@contextmanager
def writing(
    storage: Storage, results_path: str, dimensions: int | None, landed_at: pendulum.DateTime
) -> Iterator[ResultsWriter]:
    """A results file that appears, whole, when the block ends without an error.

    Keys and vectors are stored plain: hashes, and float32 of a model, hardly compress, and trying costs
    more than the whole rest of landing.
    """
    schema = results_schema(dimensions)
    compression: dict[str, Any] = {
        field.name: "none" if pa.types.is_fixed_size_binary(field.type) else "zstd" for field in schema
    }
    dictionaries: Any = ["model", "landed_at"]
    statistics: Any = ["key", "landed_at"]
    with (
        storage.open_write(results_path) as handle,
        pq.ParquetWriter(
            handle,
            schema,
            compression=compression,
            use_dictionary=dictionaries,
            write_statistics=statistics,
        ) as writer,
    ):
        yield ResultsWriter(writer, schema, landed_at)


def read(
    storage: Storage,
    paths: Sequence[str],
    keys: pa.Array[Any] | pa.ChunkedArray[Any],
    columns: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """The answers to these keys, in tables of the results schema (or of these columns of it); other
    keys' are left out.

    A key that several files answer comes several times; `landed_at` tells which is newest. Only
    the key column is read of row groups that hold none of the keys.
    """
    wanted = keys_matrix(keys)
    order = key_order(wanted)
    wanted = wanted if order is None else wanted[order]
    if len(wanted) == 0:
        return
    for results_path in paths:
        with storage.parquet_file(results_path) as file:
            for group in range(file.num_row_groups):
                found = _found(file.read_row_group(group, columns=["key"])["key"], wanted)
                if len(found):
                    rows = file.read_row_group(group, columns=list(columns) if columns else None)
                    yield rows if len(found) == rows.num_rows else rows.take(found)


def _found(column: pa.ChunkedArray[Any], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """The positions in `column` of keys that are in `wanted`, which is sorted."""
    there = keys_matrix(column)
    # One comparable number an entry: the key's bytes as NumPy orders them, zero bytes included.
    have = _comparable(there)
    want = _comparable(wanted)
    positions = np.searchsorted(want, have)
    positions[positions == len(want)] = 0
    return np.flatnonzero(want[positions] == have)


def _comparable(keys: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(keys).view(f"S{KEY_BYTES}").reshape(-1)
