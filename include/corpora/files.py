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
from include.corpora.source_config import DAY_GROUPS, WHOLE, SourceConfig
from include.errors import StorageError

_BUFFER = 1 << 20
_WILDCARD = re.compile(r"[*?\[]")
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_FOREIGN = {
    b"\xff\xfe": "UTF-16; save it as UTF-8",
    b"\xfe\xff": "UTF-16; save it as UTF-8",
    b"PK\x03\x04": "a zip archive; pack each file by itself, with gzip or zstd",
    b"\x1f\x8b": "packed with gzip; give it the end .gz",
    b"\x28\xb5\x2f\xfd": "packed with zstd; give it the end .zst",
    b"BZh": "packed with bzip2; give it the end .bz2",
    b"\xfd7zXZ": "packed with xz; give it the end .xz",
    b"PAR1": "Parquet; its kind is parquet",
}

BOM = b"\xef\xbb\xbf"
DAMAGED = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
)
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
        groups = match.groupdict()
        if all(groups.get(name) for name in DAY_GROUPS):
            year, month, day = (groups[name] for name in DAY_GROUPS)
            return partition_name(f"{year}-{month:0>2}-{day:0>2}")
        value = groups.get("partition")
        if value is None:
            value = match.group(1) if match.re.groups else match.group(0)
        return partition_name(value)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[IO[bytes]]:
        """The file's bytes, unpacked. zstd goes through pyarrow, which needs no further package."""
        with ExitStack() as stack:
            raw: Any = stack.enter_context(self._fs.open(file.path, "rb"))
            codec = _CODECS.get(posixpath.splitext(file.path)[1].lower())
            if codec == "zstd":
                raw = stack.enter_context(pa.CompressedInputStream(raw, "zstd"))
            elif codec is not None:
                raw = stack.enter_context(fsspec.compression.compr[codec](raw, mode="rb"))
            yield stack.enter_context(io.BufferedReader(raw, _BUFFER))

    @contextmanager
    def seekable(self, file: SourceFile) -> Iterator[IO[bytes]]:
        """The file's bytes as they are, at any place."""
        with self._fs.open(file.path, "rb") as raw:
            yield raw


class Foreign(Exception):
    """A file of lines isn't one; the message says what it is instead."""


def refuse_foreign(handle: IO[bytes]) -> None:
    """Raise Foreign where a file's first bytes are those of another kind: each of its lines would be
    a fault of its own. `handle` is one that `Files.open` gave."""
    begin = handle.peek(8)  # type: ignore[attr-defined]
    for mark, what in _FOREIGN.items():
        if begin.startswith(mark):
            raise Foreign(f"it is {what}")


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
    return stem if end.lower() in _CODECS else path


def _fixed_part(pattern: str) -> str:
    """The folder above the first wildcard, or above the file named."""
    wild = _WILDCARD.search(pattern)
    return posixpath.dirname(pattern[: wild.start()] if wild else pattern)


def _is_plain(pattern: str) -> bool:
    return _WILDCARD.search(pattern) is None
