"""What the contract suite runs over: every store, opened for real, and rows to put into it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import VectorStore, row_schema
from include.stores.capabilities import Capability
from include.stores.registry import open_store

STORES: dict[str, Callable[[Path], VectorStore]] = {
    "lancedb": lambda folder: open_store("lancedb", f"file://{folder}/lancedb"),
}
"""By store: how a test opens a fresh one. Two stores opened on one folder are two clients of it."""

DIMENSIONS = 8


def needs(*capabilities: Capability) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test by what it asks of a store: where that is denied, it must fail."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        test.needs = frozenset(capabilities)  # type: ignore[attr-defined]
        return test

    return mark


def chunk_id(number: int | str) -> str:
    """A UUID for the test's chunk of that number."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))


def vectors(count: int, dimensions: int = DIMENSIONS, seed: int = 0) -> npt.NDArray[np.float32]:
    """Random vectors, shape (count, dimensions), the same for the same seed."""
    return np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)


def batch(
    numbers: Sequence[int],
    *,
    seed: int = 0,
    document: Callable[[int], str] = lambda number: f"doc-{number // 3}",
    metadata: Callable[[int], dict[str, object]] = lambda number: {"position": number},
    values: npt.NDArray[np.float32] | None = None,
) -> pa.RecordBatch:
    """Store rows for chunks with these numbers, three a document."""
    values = vectors(len(numbers), seed=seed) if values is None else values
    dimensions = values.shape[1]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([chunk_id(number) for number in numbers], pa.string()),
            pa.array([document(number) for number in numbers], pa.string()),
            pa.array([f"text of {number}" for number in numbers], pa.string()),
            pa.array([json.dumps(metadata(number)) for number in numbers], pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), dimensions),
            pa.array([number + seed for number in numbers], pa.int64()),
        ],
        schema=row_schema(dimensions),
    )
