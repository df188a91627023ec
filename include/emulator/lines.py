"""Files of JSON lines: read from an offset, and written so that a killed process writes no line twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CHUNK_LINES = 512
CHUNK_BYTES = 4 * 1024 * 1024
SLOW_CHUNK_LINES = 32
"""Lines at a time where one takes a real model some milliseconds, so that progress shows."""


def file_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Lines with the offset after each, split on the byte `\\n` only; blank ones are skipped."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            if line.strip():
                yield offset, line


def write_at(path: Path, length: int, content: bytes) -> None:
    """Cut the file back to `length`, what the last commit knows of, and append."""
    path.touch()
    with path.open("r+b") as file:
        file.truncate(length)
        file.seek(length)
        file.write(content)
