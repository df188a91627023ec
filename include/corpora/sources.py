"""Documents of a source, streamed: files on any fsspec URL, partition by partition, line by line.

Partitions are read newest name first, so that where a document stands in several, its newest
version is met first. Nothing here raises for one bad record or file: it becomes a `BadInput`.
"""

from __future__ import annotations

import io
import lzma
import posixpath
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote

import fsspec
import pyarrow as pa

from include.corpora.config import CorpusConfig, Fields, SourceConfig
from include.corpora.headings import first_heading
from include.corpora.records import BadInput, Document, Reason, Refused, document_of, parse_line
from include.errors import StorageError

_BUFFER = 1 << 20
_WILDCARD = re.compile(r"[*?\[]")
_BOM = b"\xef\xbb\xbf"
_TEXT_ENDS = (".md", ".markdown", ".txt", ".text", ".rst")
_PACKED_ENDS = (".gz", ".zst", ".bz2", ".xz")
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, pa.ArrowInvalid)

SKIPPED = "skipped; a version indexed earlier stays"
LOST = "skipped; nothing of this partition is deleted in this run"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path on the file system, its URL for people, its partition."""

    path: str
    url: str
    partition: str


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """A partition was read to its end. `whole`: each record in it is known by its id, so that what
    is missing from a snapshot is really gone."""

    partition: str
    whole: bool


Event = Document | BadInput | PartitionEnd


class Source:
    """The files of one corpus's source, as listed when this was made.

    Raises StorageError where the URL can't be listed.
    """

    def __init__(self, config: CorpusConfig) -> None:
        self.config: SourceConfig = config.source
        self._markdown = config.chunking.format == "markdown"
        self._partition = re.compile(self.config.partition) if self.config.partition else None
        try:
            self._fs, pattern = fsspec.core.url_to_fs(self.config.url)
            self._root = pattern if _is_plain(pattern) and self._fs.isdir(pattern) else _fixed_part(pattern)
            paths = self._list(pattern)
        except (OSError, ValueError, ImportError) as error:
            raise StorageError(f"source.url {self.config.url} can't be listed: {error}") from error
        self.files: dict[str, list[SourceFile]] = {}
        for path in sorted(paths):
            file = SourceFile(path, self._fs.unstrip_protocol(path), self._partition_of(path))
            self.files.setdefault(file.partition, []).append(file)

    @property
    def partitions(self) -> list[str]:
        """All partitions that have files, newest name first."""
        return sorted(self.files, reverse=True)

    def read(self, partitions: list[str] | None = None) -> Iterator[Event]:
        """Every document and bad record of these partitions (None: of all), each closed by its end.

        Only files of the partitions asked for are opened.
        """
        wanted = self.partitions if partitions is None else sorted(set(partitions), reverse=True)
        for partition in wanted:
            if partition not in self.files:
                continue
            whole = True
            for file in self.files[partition]:
                for event in self._file(file):
                    if isinstance(event, BadInput) and is_unknown(event):
                        whole = False
                    yield event
            yield PartitionEnd(partition, whole)

    def _list(self, pattern: str) -> list[str]:
        self._fs.invalidate_cache()
        if pattern == self._root:
            found = self._fs.find(pattern)
        else:
            listing = self._fs.glob(pattern, detail=True)
            found = [path for path, info in listing.items() if info["type"] == "file"]
        if self.config.kind == "folder":
            found = [path for path in found if _unpacked(path).lower().endswith(_TEXT_ENDS)]
        return [path for path in found if not posixpath.basename(path).startswith(".")]

    def _partition_of(self, path: str) -> str:
        if self._partition is None:
            return "all"
        # Below the fixed part of the URL first: a date in the storage's own path isn't the file's.
        match = self._partition.search(posixpath.relpath(path, self._root)) or self._partition.search(path)
        if match is None:
            return "all"
        value = match.groupdict().get("partition")
        if value is None:
            value = match.group(1) if match.re.groups else match.group(0)
        # A partition is also a folder's name in storage.
        return quote(value or "all", safe=" =+@,")

    def _file(self, file: SourceFile) -> Iterator[Event]:
        """One file's events; what is wrong with the file as a whole is one more of them."""
        line: int | None = None
        try:
            for event in self._lines(file) if self.config.kind == "jsonl" else self._whole_file(file):
                line = event.line or line
                yield event
        except FileNotFoundError:
            yield _bad(file, None, Reason.VANISHED_FILE, "it was listed and is gone", LOST)
        except PermissionError as error:
            yield _bad(file, None, Reason.UNREADABLE_FILE, str(error), LOST)
        except (OSError, *_DAMAGED) as error:
            if getattr(error, "errno", None) is not None:
                raise StorageError(f"reading {file.url} failed: {error}; try again") from error
            detail = f"damaged {f'after line {line}' if line else 'from its start'}: {error}"
            yield _bad(file, line, Reason.UNREADABLE_FILE, detail, f"the rest was {LOST}")

    def _lines(self, file: SourceFile) -> Iterator[Document | BadInput]:
        limit = self.config.max_document_bytes
        number = 0
        with self._open(file.path) as handle:
            while line := handle.readline(limit + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BOM)
                if len(line) > limit and not line.endswith(b"\n"):
                    size = len(line) + _skip_line(handle)
                    detail = f"a line of {size:,} bytes; source.max_document_bytes is {limit:,}"
                    yield _bad(file, number, Reason.TOO_LONG, detail, LOST)
                elif line.strip():
                    try:
                        record = parse_line(line)
                    except Refused as refused:
                        yield _bad(file, number, refused.reason, refused.detail, LOST)
                    else:
                        yield from self._record(file, number, record, self.config.fields)
                else:
                    yield _bad(file, number, Reason.BLANK_LINE, "nothing on it", "skipped")
        if not number:
            yield _bad(file, None, Reason.EMPTY_FILE, "no bytes in it", LOST)

    def _whole_file(self, file: SourceFile) -> Iterator[Document | BadInput]:
        document_id = _unpacked(posixpath.relpath(file.path, self._root))
        limit = self.config.max_document_bytes
        with self._open(file.path) as handle:
            data = handle.read(limit + 1)
        if len(data) > limit:
            detail = f"more than {limit:,} bytes, which is source.max_document_bytes"
            yield _bad(file, None, Reason.TOO_LONG, detail, SKIPPED, document_id)
        elif not data:
            yield _bad(file, None, Reason.EMPTY_FILE, "no bytes in it", SKIPPED, document_id)
        else:
            try:
                text = data.removeprefix(_BOM).decode("utf-8")
            except UnicodeDecodeError as error:
                detail = f"byte {error.start} isn't UTF-8"
                yield _bad(file, None, Reason.UNDECODABLE, detail, SKIPPED, document_id)
                return
            record = {"id": document_id, "text": text, "title": self._title(document_id, text)}
            yield from self._record(file, None, record, Fields())

    def _record(
        self, file: SourceFile, line: int | None, record: dict[str, Any], fields: Fields
    ) -> Iterator[Document | BadInput]:
        try:
            document, mends = document_of(
                record, fields, self.config.metadata, partition=file.partition, file=file.url, line=line
            )
        except Refused as refused:
            done = LOST if refused.document_id is None else SKIPPED
            yield _bad(file, line, refused.reason, refused.detail, done, refused.document_id)
            return
        for mend in mends:
            yield _bad(file, line, mend.reason, mend.detail, mend.done, document.id, kept=True)
        yield document

    def _title(self, document_id: str, text: str) -> str:
        """The first heading of a Markdown file, else the file's name without its end."""
        title = first_heading(text) if self._markdown else None
        return title or posixpath.splitext(posixpath.basename(document_id))[0]

    @contextmanager
    def _open(self, path: str) -> Iterator[IO[bytes]]:
        """The file's bytes, unpacked. zstd goes through pyarrow, which needs no further package."""
        with ExitStack() as stack:
            raw: Any = stack.enter_context(self._fs.open(path, "rb"))
            codec = fsspec.utils.infer_compression(path)
            if path.lower().endswith(".zst"):
                raw = stack.enter_context(pa.CompressedInputStream(raw, "zstd"))
            elif codec is not None:
                raw = stack.enter_context(fsspec.compression.compr[codec](raw, mode="rb"))
            yield stack.enter_context(io.BufferedReader(raw, _BUFFER))


def is_unknown(bad: BadInput) -> bool:
    """Whether a document may hide behind this row without our knowing its id."""
    return bad.document_id is None and bad.reason is not Reason.BLANK_LINE


def _bad(
    file: SourceFile,
    line: int | None,
    reason: Reason,
    detail: str,
    done: str,
    document_id: str | None = None,
    *,
    kept: bool = False,
) -> BadInput:
    return BadInput(file.url, line, file.partition, reason, detail, done, document_id, kept)


def _skip_line(handle: IO[bytes]) -> int:
    """Read on to the end of the line, in pieces; returns how many bytes that were."""
    size = 0
    while piece := handle.readline(_BUFFER):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size


def _unpacked(path: str) -> str:
    """The path without the end that names its compression."""
    stem, end = posixpath.splitext(path)
    return stem if end.lower() in _PACKED_ENDS else path


def _fixed_part(pattern: str) -> str:
    """The folder above the first wildcard, or above the file named."""
    wild = _WILDCARD.search(pattern)
    return posixpath.dirname(pattern[: wild.start()] if wild else pattern)


def _is_plain(pattern: str) -> bool:
    return _WILDCARD.search(pattern) is None
