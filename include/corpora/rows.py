"""The files that prepare writes: a run's rows by range of document id, chunk parts, bad input."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from include.contracts import RUN_ROW_SCHEMA, RunRef
from include.corpora.records import BadInput
from include.storage import Storage

_BUFFERED_ROWS = 32_768  # over all ranges
_ROWS_A_PART = 200_000
_BUFFERED_BYTES = 32 * 1024 * 1024
_READ_ROWS = 10_000
_OPEN_PARTS = 8

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


class _Files:
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


class RangeRows(_Files):
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
        rows = rows.take(order)
        bounds = np.searchsorted(ranges[order], np.arange(len(self._writers) + 1))
        for number in np.unique(ranges).tolist():
            start, end = int(bounds[number]), int(bounds[number + 1])
            part = rows.slice(start, end - start)
            self._waiting[number].append(part)
            self._rows[number] += part.num_rows
            self._bytes[number] += part.nbytes
            self.counts[number] += part.num_rows
            if self._rows[number] >= self._group:
                self._flush(number)
        while sum(self._bytes) >= 2 * _BUFFERED_BYTES:
            self._flush(int(np.argmax(self._bytes)))

    def _flush(self, number: int) -> None:
        if self._waiting[number]:
            self._writers[number].write_table(pa.concat_tables(self._waiting[number]).combine_chunks())
        self._waiting[number] = []
        self._rows[number] = self._bytes[number] = 0

    def _finish(self) -> None:
        for number in range(len(self._writers)):
            self._flush(number)


class ChunkParts:
    """A partition's chunk parts of one run; parts that an earlier try left over are removed."""

    def __init__(self, storage: Storage, corpus: str, chunking: str, partition: str, run: str) -> None:
        self._storage = storage
        self._folder = f"corpora/{corpus}/chunks/{chunking}/{partition}"
        self._name = f"{quote(run, safe=' =+@,')}-"
        self._written: list[str] = []
        self._part = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Add rows of RUN_ROW_SCHEMA or CHUNK_SCHEMA."""
        if not rows.num_rows:
            return
        if self._writer is None:
            path = f"{self._folder}/{self._name}{len(self._written):02d}.parquet"
            self._writer = self._part.enter_context(self._storage.parquet_writer(path, CHUNK_SCHEMA))
            self._written.append(path)
        self._writer.write_table(rows.select(CHUNK_SCHEMA.names))
        self._rows += rows.num_rows
        if self._rows >= _ROWS_A_PART:
            self.close_part()

    def close(self) -> None:
        """Complete the last part."""
        self.close_part()
        for path in self._storage.list(self._folder):
            if path.startswith(f"{self._folder}/{self._name}") and path not in self._written:
                self._storage.delete(path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self._part.__exit__(kind, error, trace)

    def __enter__(self) -> ChunkParts:
        return self

    def close_part(self) -> None:
        """Complete the part under way; what comes later begins another."""
        self._part.close()
        self._writer = None
        self._rows = 0


class StoredChunks(_Files):
    """The chunk parts of all partitions of a run, which may come in any order.

    What waits to be written is bounded, and so is the number of files open at once.
    """

    def __init__(self, storage: Storage, corpus: str, chunking: str, run: str) -> None:
        super().__init__(storage)
        self._names = (corpus, chunking, run)
        self._parts: dict[str, ChunkParts] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._open: dict[str, None] = {}

    def write(self, partition: str, rows: pa.Table) -> None:
        """Add rows of RUN_ROW_SCHEMA or CHUNK_SCHEMA, all of this partition."""
        if not rows.num_rows:
            return
        self._waiting.setdefault(partition, []).append(rows.select(CHUNK_SCHEMA.names))
        self._sizes[partition] = self._sizes.get(partition, 0) + rows.nbytes
        self._size += rows.nbytes
        if self._sizes[partition] >= _BUFFERED_BYTES // 4:
            self._flush(partition)
        while self._size >= _BUFFERED_BYTES:
            self._flush(max(self._sizes, key=self._sizes.__getitem__))

    def _flush(self, partition: str) -> None:
        parts = self._parts.get(partition)
        if parts is None:
            corpus, chunking, run = self._names
            parts = ChunkParts(self._storage, corpus, chunking, partition, run)
            self._parts[partition] = self._stack.enter_context(parts)
        self._size -= self._sizes.pop(partition)
        parts.write(pa.concat_tables(self._waiting.pop(partition)).combine_chunks())
        self._open.pop(partition, None)
        self._open[partition] = None
        if len(self._open) > _OPEN_PARTS:
            longest = next(iter(self._open))
            del self._open[longest]
            self._parts[longest].close_part()

    def _finish(self) -> None:
        for partition in list(self._waiting):
            self._flush(partition)


class BadInputLog(_Files):
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


class DeletedRows(_Files):
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
