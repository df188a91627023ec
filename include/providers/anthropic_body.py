"""The body of a create, made of a shard's lines while it is sent: 256 MB are never in memory at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

_HEAD, _TAIL = b'{"requests":[', b"]}"
_PIECE_BYTES = 1 << 20

OVERHEAD_BYTES = len(_HEAD) + len(_TAIL)
"""How much longer a body is than its lines, at most."""


class CreateBody:
    """`{"requests":[…]}` over a file of lines, each a request with its newline.

    JSON has no newline but between lines, so every one of them becomes a comma, and the last nothing.
    `size` is the body's length in bytes, known before anything is read.
    """

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines
        self._length = lines.seek(0, os.SEEK_END)
        self.size = len(_HEAD) + max(0, self._length - 1) + len(_TAIL)

    def __iter__(self) -> Iterator[bytes]:
        self._lines.seek(0)
        yield _HEAD
        left = self._length - 1
        while left > 0:
            piece = self._lines.read(min(_PIECE_BYTES, left))
            if not piece:
                raise ValueError(f"the request file ends {left:,} bytes early")
            left -= len(piece)
            yield piece.replace(b"\n", b",")
        yield _TAIL
