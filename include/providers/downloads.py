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

from include.errors import ProviderUnavailable

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
    since what it lacks would be paid for again.
    """
    with tempfile.TemporaryFile(prefix="batch-output-") as file:
        for attempt in range(1, ATTEMPTS + 1):
            file.seek(0)
            file.truncate()
            try:
                fetch(file)
                length = file.tell()
                if size is None or length >= size:
                    break
                raise ProviderUnavailable(f"{what}: {length:,} of {size:,} bytes arrived")
            except ProviderUnavailable as error:
                if attempt == ATTEMPTS:
                    raise
                log.warning("%s; downloading again (%d of %d)", error, attempt + 1, ATTEMPTS)
                time.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1))
        file.seek(0)
        yield file


def lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file that aren't blank; a binary file splits on `\\n` only."""
    for line in file:
        if line.strip():
            yield line
