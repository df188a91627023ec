"""Read-back: what a store says it holds, compared with what it was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import Metric, VectorStore
from include.errors import ReadBackFailed
from include.indexes.held import Held
from include.indexes.run_rows import RunRows
from include.indexes.truth import Mask
from include.requests.lookup import Numbers

SAMPLE = 64
"""Whole rows compared, beside every id."""
TOLERANCE = 1e-3
"""Of a vector's length: a store may keep less than float32."""


def check_ids(index: str, rows: RunRows, which: Mask, held: Held, stamps: Numbers) -> None:
    """Raise ReadBackFailed unless each of `which` rows is held once, with its stamp; shapes (rows,)."""
    missing = np.flatnonzero(which & ((held.times == 0) | (held.stamps != stamps)))
    if len(missing):
        raise ReadBackFailed(
            f"{index} doesn't hold {len(missing)} of {int(which.sum())} chunks as they were written, first "
            f"{rows.chunk_ids(missing[:1])[0]}: run this step again"
        )
    twice = int((which & (held.times > 1)).sum())
    if twice:
        raise ReadBackFailed(
            f"{index} holds {twice} chunks more than once: something else writes to it. Run this step again, "
            "which writes them anew, and give each installation a store of its own"
        )


def check_vectors(
    store: VectorStore, index: str, metric: Metric, ids: pa.Array[Any], given: npt.NDArray[np.float32]
) -> None:
    """Raise ReadBackFailed unless the store gives back these vectors, shape (ids, dimensions).

    Where only directions are compared, a store may keep them at unit length.
    """
    names = [str(name) for name in ids.to_pylist()]
    found = store.fetch(index, names)
    where = {name: place for place, name in enumerate(found["chunk_id"].to_pylist())}
    absent = [name for name in names if name not in where]
    if absent:
        raise ReadBackFailed(f"{index} lists chunk {absent[0]} but doesn't give it back: run this step again")
    order = np.array([where[name] for name in names], np.int64)
    held = matrix(found["vector"])[order]
    check_finite(index, held)
    if metric is Metric.COSINE:
        given, held = _unit(given), _unit(held)
    far = np.linalg.norm(held - given, axis=1) > TOLERANCE * np.maximum(np.linalg.norm(given, axis=1), 1e-9)
    if far.any():
        name = names[int(np.flatnonzero(far)[0])]
        raise ReadBackFailed(f"{index} gives back another vector for chunk {name} than it took: run again")


def check_finite(index: str, vectors: npt.NDArray[np.float32]) -> None:
    """Raise ReadBackFailed where a vector has no direction: not finite, or all zero."""
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise ReadBackFailed(
            f"{index} gives back vectors that are zero or not finite: drop the index and run the ingest again"
        )


def matrix(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> npt.NDArray[np.float32]:
    """A column of fixed-size lists as a matrix, shape (rows, dimensions)."""
    lists: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: npt.NDArray[np.float32] = lists.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(lists), lists.type.list_size)


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: npt.NDArray[np.float32] = vectors / np.maximum(length, 1e-12)
    return unit
