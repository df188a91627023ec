"""The files of a run that prepare writes: its rows by range of document id, deletes, bad input."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from include.contracts import RUN_ROW_SCHEMA, RunRef
from include.corpora.records import BadInput
from include.storage import Storage

_BUFFERED_ROWS = 32_768  # over all ranges
_BUFFERED_BYTES = 32 * 1024 * 1024
_READ_ROWS = 10_000

#: Chunks as they are stored for good: `corpora/{corpus}/chunks/{chunking}/{partition}/{run}-NN.parquet`.
#: A part may repeat what another has; a chunk is current where both hashes are the document table's.
CHUNK_SCHEMA = pa.schema([field for field in RUN_ROW_SCHEMA if field.name not in ("key", "input")])

#: What a run deleted: `rows/deleted.parquet`. `range` is the document's, as in `rows/range-NN.parquet`.
_DELETED_FIELDS: list[pa.Field[Any]] = [
    pa.field("document_id", pa.string(), nullable=False),
    pa.field("deleted", pa.bool_(), nullable=False),
    pa.field("range", pa.int32(), nullable=False),
]
DELETED_SCHEMA = pa.schema(_DELETED_FIELDS)


def range_of(document_id: str, ranges: int) -> int:
    """Which of `ranges` ranges a document is in, by the hash of its id."""
    digest = hashlib.blake2b(document_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % ranges


def range_path(run: RunRef, number: int) -> str:
    """A range's rows, relative to the storage root."""
    return f"{run.uri}/rows/range-{number:02d}.parquet"


def range_number(path: str) -> int:
    """The number of the range whose rows a file holds, as `range_path` names it."""
    return int(path.rsplit("-", 1)[1].removesuffix(".parquet"))


class WholeFiles:
    """Files that appear together, whole, when the block ends without an error."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._stack.__exit__(kind, error, trace)

    def _finish(self) -> None:
        """Write what is still buffered."""


class RangeRows(WholeFiles):
    """`rows/range-NN.parquet`, all of them, empty ranges included."""

    def __init__(self, storage: Storage, run: RunRef, ranges: int) -> None:
        super().__init__(storage)
        self._paths = [range_path(run, number) for number in range(ranges)]
        self._writers = [
            self._stack.enter_context(storage.parquet_writer(path, RUN_ROW_SCHEMA, passing=True))
            for path in self._paths
        ]
        self._waiting: list[list[pa.Table]] = [[] for _ in range(ranges)]
        self._rows = [0] * ranges
        self._bytes = [0] * ranges
        self._group = max(256, _BUFFERED_ROWS // ranges)
        self._dropped: dict[int, tuple[array[int], array[int]]] = {}
        self.counts = [0] * ranges
        """How many rows each range has been given."""
        self.dropped_tokens = 0
        """The tokens of the rows dropped; known once the block has ended."""

    def drop(self, number: int, place: int, count: int) -> None:
        """Take back `count` rows of a range, from `place` on: they aren't in its file in the end."""
        if count:
            places, counts = self._dropped.setdefault(number, (array("q"), array("q")))
            places.append(place)
            counts.append(count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            for number in sorted(self._dropped):
                self._rewrite(number)

    def _rewrite(self, number: int) -> None:
        """The range's file without the rows that were dropped."""
        kept = np.ones(self.counts[number], bool)
        for place, count in zip(*self._dropped[number], strict=True):
            kept[place : place + count] = False
        path, row = self._paths[number], 0
        with (
            self._storage.parquet_file(path) as file,
            self._storage.parquet_writer(path, RUN_ROW_SCHEMA, passing=True) as writer,
        ):
            for batch in file.iter_batches(_READ_ROWS):
                mask = kept[row : row + batch.num_rows]
                row += batch.num_rows
                self.dropped_tokens += int(batch.column("tokens").to_numpy()[~mask].sum())
                writer.write_batch(batch.filter(pa.array(mask)))

    def write(self, rows: pa.Table, ranges: npt.NDArray[np.int32]) -> None:
        """Rows of RUN_ROW_SCHEMA; `ranges` has each row's range, shape (rows,)."""
        order = np.argsort(ranges, kind="stable")
        bounds = np.searchsorted(ranges[order], np.arange(len(self._writers) + 1))
        for number in np.unique(ranges).tolist():
            start, end = int(bounds[number]), int(bounds[number + 1])
            # A copy: a slice would keep the other ranges' rows in memory for as long as it waits.
            part = rows.take(order[start:end])
            self._waiting[number].append(part)
            self._rows[number] += part.num_rows
            self._bytes[number] += part.nbytes
            self.counts[number] += part.num_rows
            if self._rows[number] >= self._group:
                self._flush(number)
        while sum(self._bytes) >= _BUFFERED_BYTES:
            self._flush(int(np.argmax(self._bytes)))

    def _flush(self, number: int) -> None:
        if self._waiting[number]:
            self._writers[number].write_table(pa.concat_tables(self._waiting[number]).combine_chunks())
        self._waiting[number] = []
        self._rows[number] = self._bytes[number] = 0

    def _finish(self) -> None:
        for number in range(len(self._writers)):
            self._flush(number)


class BadInputLog(WholeFiles):
    """`bad_input.jsonl`: one row a fault, in the order of reading."""

    def __init__(self, storage: Storage, run: RunRef) -> None:
        super().__init__(storage)
        self._file = self._stack.enter_context(storage.open_write(f"{run.uri}/bad_input.jsonl"))

    def write(self, bad: BadInput) -> None:
        """Add one row."""
        self._file.write(orjson.dumps(bad.as_dict()) + b"\n")


def read_bad_input(storage: Storage, run: RunRef, most: int) -> list[dict[str, Any]]:
    """The first rows of a run's `bad_input.jsonl`; [] where it has none."""
    path = f"{run.uri}/bad_input.jsonl"
    if not storage.exists(path):
        return []
    with storage.open_read(path) as file:
        return [orjson.loads(line) for line in islice(file, most)]


class DeletedRows(WholeFiles):
    """`rows/deleted.parquet`, also where nothing was deleted."""

    def __init__(self, storage: Storage, run: RunRef, ranges: int) -> None:
        super().__init__(storage)
        self._ranges = ranges
        self._writer = self._stack.enter_context(
            storage.parquet_writer(f"{run.uri}/rows/deleted.parquet", DELETED_SCHEMA)
        )

    def write(self, document_ids: Sequence[str]) -> None:
        """Add these documents."""
        columns: list[pa.Array[Any]] = [
            pa.array(document_ids, pa.string()),
            pa.array([True] * len(document_ids), pa.bool_()),
            pa.array([range_of(document, self._ranges) for document in document_ids], pa.int32()),
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=DELETED_SCHEMA))
