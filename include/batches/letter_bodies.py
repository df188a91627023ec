"""Bodies of dead letters: `dead_letters/{corpus}/….jsonl`, one line a letter, addressed by byte range.

A body outlives the run's rows and the shard: it holds all that a person needs to mend the input
and all that a replay needs to ask again. The file is named by its content, so that burying again
never moves a line that an older letter points to.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import orjson

from include.contracts import RunRef
from include.errors import StorageError
from include.storage import Storage


class BodyWriter:
    """Appends bodies to a file whose name is known only at the end. Made by `writing`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hasher = hashlib.blake2b(digest_size=8)
        self._offset = 0

    def add(self, body: dict[str, Any]) -> str:
        """Append one body; returns its byte range, the part of its address behind the `#`."""
        line = orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
        self._file.write(line)
        self._hasher.update(line)
        start, self._offset = self._offset, self._offset + len(line)
        return f"{start}-{self._offset}"

    def keep(self, storage: Storage, run: RunRef) -> str:
        """Put the finished bodies into the storage; returns the file's path, relative to the root."""
        name = run.uri.rstrip("/").rsplit("/", 1)[-1]
        path = f"dead_letters/{run.corpus}/{run.workload}-{name}-{self._hasher.hexdigest()}.jsonl"
        self._file.seek(0)
        with storage.open_write(path) as target:
            shutil.copyfileobj(self._file, target, 1 << 20)
        return path


@contextmanager
def writing() -> Iterator[BodyWriter]:
    """A writer on a temporary file of this machine."""
    with tempfile.TemporaryFile(prefix="batch-letters-") as file:
        yield BodyWriter(file)


def read(storage: Storage, body_uri: str) -> dict[str, Any]:
    """One letter's body. Raises StorageError when it isn't there any more."""
    path, _, span = body_uri.partition("#")
    start, _, end = span.partition("-")
    if not (path and start.isdigit() and end.isdigit()):
        raise StorageError(f"{body_uri!r} is no address of a dead letter's body")
    with storage.open_read(path) as handle:
        handle.seek(int(start))
        line = handle.read(int(end) - int(start))
    return dict(orjson.loads(line))
