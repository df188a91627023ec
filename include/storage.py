"""Files on any fsspec URL. A file that exists is whole.

On `file://` a file is written under a temporary name and moved; object stores make the put itself
atomic. Paths given to these methods are relative to the root, `/`-separated.
"""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, cast

import fsspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from include.errors import StorageError, room_for

_READ_BYTES = 1 << 20
"""Of a Parquet column at a time, instead of a row group's whole."""


@dataclass(frozen=True)
class Storage:
    """A root URL and what lies below it."""

    root: str

    @cached_property
    def _resolved(self) -> tuple[Any, str]:
        fs, base = fsspec.core.url_to_fs(self.root)
        return fs, base.rstrip("/")

    @property
    def fs(self) -> Any:
        """The fsspec file system of the root."""
        return self._resolved[0]

    @property
    def is_local(self) -> bool:
        """Whether files lie on this machine's disk."""
        return isinstance(self.fs, LocalFileSystem)

    def path(self, relative: str) -> str:
        """The file system's own path of `relative` (a plain path where the root is `file://`)."""
        return posixpath.join(self._resolved[1], relative) if relative else self._resolved[1]

    def url(self, relative: str) -> str:
        """The full URL, for people and reports."""
        return cast(str, self.fs.unstrip_protocol(self.path(relative)))

    def exists(self, relative: str) -> bool:
        """Whether a file or folder is there."""
        return bool(self.fs.exists(self.path(relative)))

    def size(self, relative: str) -> int:
        """Bytes of a file."""
        return int(self.fs.size(self.path(relative)))

    def list(self, relative: str, suffix: str = "") -> list[str]:
        """Paths, relative to the root, of the files directly in a folder, sorted; [] if it isn't there."""
        folder = self.path(relative)
        self.fs.invalidate_cache(folder)
        try:
            entries = self.fs.ls(folder, detail=True)
        except FileNotFoundError:
            return []
        names = [
            posixpath.basename(entry["name"].rstrip("/")) for entry in entries if entry["type"] == "file"
        ]
        return sorted(
            posixpath.join(relative, name)
            for name in names
            if name.endswith(suffix) and not name.startswith(".tmp-")
        )

    @contextmanager
    def open_read(self, relative: str) -> Iterator[IO[bytes]]:
        """Open a file for reading bytes. Raises StorageError when it isn't there."""
        try:
            handle = self.fs.open(self.path(relative), "rb")
        except FileNotFoundError:
            raise StorageError(f"{self.url(relative)} isn't there") from None
        with handle:
            yield handle

    @contextmanager
    def open_write(self, relative: str) -> Iterator[IO[bytes]]:
        """Write a file that appears, whole, when the block ends without an error.

        Raises DiskFull where there is no room for it.
        """
        with room_for(self.url(relative)), self._writing(relative) as handle:
            yield handle

    @contextmanager
    def _writing(self, relative: str) -> Iterator[IO[bytes]]:
        target = self.path(relative)
        parent = posixpath.dirname(target)
        if self.is_local:
            os.makedirs(parent, exist_ok=True)
            temporary = posixpath.join(parent, f".tmp-{uuid.uuid4().hex}")
            try:
                with open(temporary, "wb") as handle:
                    yield handle
                    handle.flush()
                    os.fsync(handle.fileno())
                os.replace(temporary, target)
            except BaseException:
                with _suppress_missing():
                    os.unlink(temporary)
                raise
            return
        handle = self.fs.open(target, "wb")
        try:
            yield handle
        except BaseException:
            # Closing would complete the upload of half a file.
            handle.discard() if hasattr(handle, "discard") else None
            raise
        handle.close()

    def read_bytes(self, relative: str) -> bytes:
        """A small file, whole."""
        with self.open_read(relative) as handle:
            return handle.read()

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Write a small file atomically."""
        with self.open_write(relative) as handle:
            handle.write(data)

    def read_json(self, relative: str) -> Any:
        """A small JSON file."""
        return orjson.loads(self.read_bytes(relative))

    def write_json(self, relative: str, value: Any) -> None:
        """Write a small JSON file atomically, indented for people."""
        self.write_bytes(relative, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")

    @contextmanager
    def parquet_writer(
        self, relative: str, schema: pa.Schema, *, passing: bool = False
    ) -> Iterator[pq.ParquetWriter]:
        """A Parquet file that appears, whole, when the block ends without an error.

        `passing` is for what is read several times and soon deleted: it takes more room and less time.
        """
        with (
            self.open_write(relative) as handle,
            pq.ParquetWriter(handle, schema, compression="lz4" if passing else "zstd") as writer,
        ):
            yield writer

    def write_parquet(self, relative: str, table: pa.Table) -> None:
        """Write one table as a Parquet file, atomically."""
        with self.parquet_writer(relative, table.schema) as writer:
            writer.write_table(table)

    @contextmanager
    def parquet_file(self, relative: str) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file to stream its batches. Raises StorageError when it isn't there."""
        if not self.is_local:
            with self.open_read(relative) as handle:
                yield pq.ParquetFile(handle)
            return
        try:
            # Arrow reads its own files without Python's lock and without a copy.
            file = pa.OSFile(self.path(relative), "rb")
        except FileNotFoundError:
            raise StorageError(f"{self.url(relative)} isn't there") from None
        with file:
            yield pq.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)

    def move_in(self, local: str, relative: str) -> None:
        """Make a finished file of this machine appear, whole, under `relative`; it is gone from `local`."""
        target = self.path(relative)
        if self.is_local:
            os.makedirs(posixpath.dirname(target), exist_ok=True)
            os.replace(local, target)
            return
        self.fs.put_file(local, target)
        os.unlink(local)

    def delete(self, relative: str) -> None:
        """Delete a file or folder; one that is gone already is no error."""
        with _suppress_missing():
            self.fs.rm(self.path(relative), recursive=True)


@contextmanager
def _suppress_missing() -> Iterator[None]:
    with suppress(FileNotFoundError):
        yield
