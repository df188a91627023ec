"""Whole files from a provider: downloaded to disk, checked, and only then read line by line.

A body that breaks off, or ends early without an error, is fetched again from its beginning; a
reader never sees half a file. Lines end at `\\n` bytes and nowhere else.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import orjson

from include.errors import ProviderRefused, ProviderUnavailable, room_for

log = logging.getLogger(__name__)

ATTEMPTS = 4
_BACKOFF_SECONDS = 0.5

Fetch = Callable[[IO[bytes]], None]
"""Writes the whole body to the file; raises ProviderUnavailable where it broke off."""


@contextmanager
def downloaded(what: str, fetch: Fetch, size: int | None) -> Iterator[IO[bytes]]:
    """A temporary file with the whole body, at its beginning.

    `size` is the length in bytes that the provider names, None where it names none. Raises
    ProviderUnavailable when no attempt brought a whole file: nothing is read from a short one,
    since what it lacks would be paid for again. Raises DiskFull where there is no room for it.
    """
    with tempfile.TemporaryFile(prefix="batch-output-") as file:
        with room_for(f"{what}: the download to {tempfile.gettempdir()}"):
            _download(what, fetch, size, file)
            file.seek(0)
        yield file


def _download(what: str, fetch: Fetch, size: int | None, file: IO[bytes]) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        file.seek(0)
        file.truncate()
        try:
            with not_found_is_not_gone():
                fetch(file)
            length = file.tell()
            if size is None or length >= size:
                return
            raise ProviderUnavailable(f"{what}: {length:,} of {size:,} bytes arrived")
        except ProviderUnavailable as error:
            if attempt == ATTEMPTS:
                raise
            log.warning("%s; downloading again (%d of %d)", error, attempt + 1, ATTEMPTS)
            time.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1))


@contextmanager
def not_found_is_not_gone() -> Iterator[None]:
    """Around reading what an ended batch names: a 404 says that it isn't to be had now, no more."""
    try:
        yield
    except ProviderRefused as error:
        if error.status != 404:
            raise
        raise ProviderUnavailable(
            f"{error}; the batch names it, so it may come back: try again later", status=404
        ) from error


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file that aren't blank; a binary file splits on `\\n` only."""
    for line in file:
        if line.strip():
            yield line


class WholeLines:
    """Checks downloads of JSON lines whose length nobody tells, by how many there must be.

    Where each of all attempts ends at the same byte, behind a whole line, that is all there is: what
    is missing then is missing at the provider.
    """

    def __init__(self, what: str, expected: int) -> None:
        self._what = what
        self._expected = expected
        self._lengths: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A download begins."""
        self._length = self._lines = 0
        self._tail = b""

    def take(self, chunk: bytes) -> None:
        """Some bytes arrived."""
        self._length += len(chunk)
        self._lines += chunk.count(b"\n")
        self._tail = (self._tail + chunk).rpartition(b"\n")[2]

    def check(self) -> None:
        """The download ended. Raises ProviderUnavailable where it may not be all."""
        self._lengths.append(self._length)
        broken = False
        if self._tail:
            try:
                orjson.loads(self._tail)
                self._lines += 1
            except ValueError:
                broken = True
        if self._lines >= self._expected and not broken:
            return
        told = f"{self._what}: {self._lines:,} of {self._expected:,} lines arrived whole"
        if broken or len(self._lengths) < ATTEMPTS or len(set(self._lengths)) > 1:
            raise ProviderUnavailable(told)
        log.warning("%s, in each of %d downloads; the others count as missing", told, ATTEMPTS)
