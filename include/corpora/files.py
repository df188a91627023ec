"""The files of a source: listed on any fsspec URL, told apart by partition, opened and unpacked."""

from __future__ import annotations

import io
import lzma
import posixpath
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import pyarrow as pa

from include.corpora.records import partition_name
from include.corpora.source_config import WHOLE, SourceConfig
from include.errors import StorageError

_BUFFER = 1 << 20
_WILDCARD = re.compile(r"[*?\[]")
_PACKED_ENDS = (".gz", ".zst", ".bz2", ".xz")

BOM = b"\xef\xbb\xbf"
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, pa.ArrowInvalid)
"""What opening or reading a broken file raises, beside an OSError without a number."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path on the file system, below the URL's fixed part without the end that names
    its compression, its URL for people, its partition."""

    path: str
    name: str
    url: str
    partition: str


class Files:
    """The files that a source's URL matches, as listed when this was made.

    `wanted` says by name which of them count; None: all. Raises StorageError where the URL can't be listed.
    """

    def __init__(self, config: SourceConfig, wanted: Callable[[str], bool] | None = None) -> None:
        url = str(config.url)
        self._partition = re.compile(config.partition) if config.partition else None
        try:
            self._fs, pattern = fsspec.core.url_to_fs(url)
            self._root = pattern if _is_plain(pattern) and self._fs.isdir(pattern) else _fixed_part(pattern)
            paths = self._list(pattern)
        except (OSError, ValueError, ImportError) as error:
            raise StorageError(f"source.url {url} can't be listed: {error}") from error
        self.by_partition: dict[str, list[SourceFile]] = {}
        for path in sorted(paths):
            below = posixpath.relpath(path, self._root)
            name = unpacked(below)
            if posixpath.basename(path).startswith(".") or (wanted is not None and not wanted(name)):
                continue
            file = SourceFile(path, name, self._fs.unstrip_protocol(path), self._partition_of(path, below))
            self.by_partition.setdefault(file.partition, []).append(file)

    def _list(self, pattern: str) -> list[str]:
        self._fs.invalidate_cache()
        if pattern == self._root:
            return [str(path) for path in self._fs.find(pattern)]
        listing = self._fs.glob(pattern, detail=True)
        return [path for path, info in listing.items() if info["type"] == "file"]

    def _partition_of(self, path: str, below: str) -> str:
        if self._partition is None:
            return WHOLE
        # Below the fixed part of the URL first: a date in the storage's own path isn't the file's.
        match = self._partition.search(below) or self._partition.search(path)
        if match is None:
            return WHOLE
        value = match.groupdict().get("partition")
        if value is None:
            value = match.group(1) if match.re.groups else match.group(0)
        return partition_name(value)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[IO[bytes]]:
        """The file's bytes, unpacked. zstd goes through pyarrow, which needs no further package."""
        with ExitStack() as stack:
            raw: Any = stack.enter_context(self._fs.open(file.path, "rb"))
            codec = fsspec.utils.infer_compression(file.path)
            if file.path.lower().endswith(".zst"):
                raw = stack.enter_context(pa.CompressedInputStream(raw, "zstd"))
            elif codec is not None:
                raw = stack.enter_context(fsspec.compression.compr[codec](raw, mode="rb"))
            yield stack.enter_context(io.BufferedReader(raw, _BUFFER))

    @contextmanager
    def seekable(self, file: SourceFile) -> Iterator[IO[bytes]]:
        """The file's bytes as they are, at any place."""
        with self._fs.open(file.path, "rb") as raw:
            yield raw


class LongLine(Exception):
    """A line is longer than allowed and was passed over; carries its number and size in bytes."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(f"line {number} has {size:,} bytes")
        self.number = number
        self.size = size


class Lines:
    """The lines of a file, ends at `\n` bytes only, at most `limit` bytes of each in memory.

    Iterating raises LongLine for a longer one, and can go on after it.
    """

    def __init__(self, handle: IO[bytes], limit: int) -> None:
        self._handle = handle
        self._limit = limit
        self.number = 0

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> bytes:
        line = self._handle.readline(self._limit + 1)
        if not line:
            raise StopIteration
        self.number += 1
        if self.number == 1:
            line = line.removeprefix(BOM)
        if len(line) > self._limit and not line.endswith(b"\n"):
            raise LongLine(self.number, len(line) + self._skip())
        return line

    def _skip(self) -> int:
        """Read on to the end of the line, in pieces; returns how many bytes that were."""
        size = 0
        while piece := self._handle.readline(_BUFFER):
            size += len(piece)
            if piece.endswith(b"\n"):
                break
        return size


def unpacked(path: str) -> str:
    """The path without the end that names its compression."""
    stem, end = posixpath.splitext(path)
    return stem if end.lower() in _PACKED_ENDS else path


def _fixed_part(pattern: str) -> str:
    """The folder above the first wildcard, or above the file named."""
    wild = _WILDCARD.search(pattern)
    return posixpath.dirname(pattern[: wild.start()] if wild else pattern)


def _is_plain(pattern: str) -> bool:
    return _WILDCARD.search(pattern) is None
