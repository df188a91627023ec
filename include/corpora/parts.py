"""Chunk parts: what a run chunked anew, by partition, kept for good.

A partition's chunks are few files of some size, in whatever order partitions come: what waits for its
partition beyond some memory is set aside on the local disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from include.corpora.rows import CHUNK_SCHEMA, WholeFiles
from include.storage import Storage

_ROWS_A_PART = 200_000
_BUFFERED_BYTES = 32 * 1024 * 1024
_WRITTEN_BYTES = _BUFFERED_BYTES // 4
_OPEN_PARTS = 8


def by_partition(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Rows of RUN_ROW_SCHEMA or CHUNK_SCHEMA by their partitions, each in the order it had."""
    names = rows["partition"].combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    rows = rows.take(order) if len(names.dictionary) > 1 else rows
    bounds = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1))
    for number, name in enumerate(names.dictionary.to_pylist()):
        yield str(name), rows.slice(int(bounds[number]), int(bounds[number + 1] - bounds[number]))


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
        """Add rows of CHUNK_SCHEMA."""
        if not rows.num_rows:
            return
        if self._writer is None:
            path = f"{self._folder}/{self._name}{len(self._written):02d}.parquet"
            self._writer = self._part.enter_context(self._storage.parquet_writer(path, CHUNK_SCHEMA))
            self._written.append(path)
        self._writer.write_table(rows)
        self._rows += rows.num_rows
        if self._rows >= _ROWS_A_PART:
            self.close_part()

    def close_part(self) -> None:
        """Complete the part under way; what comes later begins another."""
        self._part.close()
        self._writer = None
        self._rows = 0

    def __enter__(self) -> ChunkParts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close_part()
            for path in self._storage.list(self._folder):
                if path.startswith(f"{self._folder}/{self._name}") and path not in self._written:
                    self._storage.delete(path)
        self._part.__exit__(kind, error, trace)


class StoredChunks(WholeFiles):
    """The chunk parts of all partitions of a run, which may come in any order.

    What waits in memory is bounded, and so is the number of files open at once.
    """

    def __init__(self, storage: Storage, corpus: str, chunking: str, run: str) -> None:
        super().__init__(storage)
        self._names = (corpus, chunking, run)
        self._parts: dict[str, ChunkParts] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._open: dict[str, None] = {}
        self._aside: _Aside | None = None

    def write(self, partition: str, rows: pa.Table) -> None:
        """Add rows of RUN_ROW_SCHEMA or CHUNK_SCHEMA, all of this partition."""
        if not rows.num_rows:
            return
        rows = rows.select(CHUNK_SCHEMA.names)
        self._waiting.setdefault(partition, []).append(rows)
        self._sizes[partition] = self._sizes.get(partition, 0) + rows.nbytes
        self._size += rows.nbytes
        if self._sizes[partition] >= _WRITTEN_BYTES:
            self._write(partition, self._taken(partition))
        elif self._size >= _BUFFERED_BYTES:
            self._set_aside()

    def _set_aside(self) -> None:
        if self._aside is None:
            self._aside = self._stack.enter_context(_Aside())
        for partition in list(self._waiting):
            self._aside.put(partition, self._taken(partition))

    def _taken(self, partition: str) -> pa.Table:
        self._size -= self._sizes.pop(partition)
        return pa.concat_tables(self._waiting.pop(partition)).combine_chunks()

    def _write(self, partition: str, rows: pa.Table) -> None:
        parts = self._parts.get(partition)
        if parts is None:
            corpus, chunking, run = self._names
            parts = ChunkParts(self._storage, corpus, chunking, partition, run)
            self._parts[partition] = self._stack.enter_context(parts)
        parts.write(rows)
        self._open.pop(partition, None)
        self._open[partition] = None
        if len(self._open) > _OPEN_PARTS:
            longest = next(iter(self._open))
            del self._open[longest]
            self._parts[longest].close_part()

    def _finish(self) -> None:
        if self._aside is not None:
            self._set_aside()
            for partition, rows in self._aside.by_name():
                self._write(partition, rows)
        for partition in list(self._waiting):
            self._write(partition, self._taken(partition))


class _Aside:
    """Tables of CHUNK_SCHEMA on the local disk, until the block ends; each has a name."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._places: dict[str, list[int]] = {}
        self._count = 0

    def __enter__(self) -> _Aside:
        folder = tempfile.TemporaryDirectory(prefix="chunks-", ignore_cleanup_errors=True)
        self._file = str(Path(self._stack.enter_context(folder)) / "chunks.arrow")
        sink = self._stack.enter_context(pa.OSFile(self._file, "wb"))
        self._writer: Any = self._stack.enter_context(pa.ipc.new_file(sink, CHUNK_SCHEMA))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def put(self, name: str, table: pa.Table) -> None:
        """Set a table aside."""
        for batch in table.to_batches():
            self._writer.write_batch(batch)
            self._places.setdefault(name, []).append(self._count)
            self._count += 1

    def by_name(self) -> Iterator[tuple[str, pa.Table]]:
        """All that was set aside, name by name, joined to tables of some size; the end of putting."""
        self._writer.close()
        with pa.OSFile(self._file, "rb") as source:
            reader = pa.ipc.open_file(source)
            for name, places in self._places.items():
                joined: list[pa.RecordBatch] = []
                for place in places:
                    joined.append(reader.get_batch(place))
                    if sum(batch.nbytes for batch in joined) >= _WRITTEN_BYTES:
                        yield name, pa.Table.from_batches(joined).combine_chunks()
                        joined = []
                if joined:
                    yield name, pa.Table.from_batches(joined).combine_chunks()
