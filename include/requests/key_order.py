"""Items in key order: held in memory while they are few, in buckets on disk when they aren't.

Sorting what is sent needs its texts at hand. A bucket holds a range of keys, and keys are hashes,
so buckets come out alike in size and one at a time is held: memory stays the same however many
items there are. Texts are decoded only once, on their way out.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import KEY_BYTES
from include.requests.results import keys_matrix

ItemColumns = tuple[list[bytes], list[str], list[int]]
"""Some items in key order: keys, inputs, token counts; lists of one length."""

_HELD_BYTES = 128 << 20
_ROW_BYTES = 200
"""What a row that is held takes beside its text: key, places, and the objects made of it."""
_RUN_BYTES = 8 << 20
_BUCKET_BYTES = 16 << 20
_MOST_BUCKETS = 512
_SAMPLE_ROWS = 4096
_STREAM_ROWS = 256
_HEADER = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class _Part:
    """Items in any order: `text[starts[i]:ends[i]]` is the input of `keys[i]`, UTF-8."""

    keys: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    text: memoryview

    @property
    def size(self) -> int:
        return int(self.ends[-1] - self.starts[0]) if len(self.ends) else 0

    def column(self) -> pa.Array[Any]:
        """The texts as they lie, none copied: one begins where the one before it ends."""
        offsets = np.concatenate([self.starts, self.ends[-1:]])
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            len(self.starts),
            [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(self.text)],
        )


def in_key_order(batches: Iterable[pa.RecordBatch], expected: int, scratch: str) -> Iterator[ItemColumns]:
    """Sort a stream of (key, input, tokens) by key, each key once.

    `expected` is about how many rows there are, `scratch` a folder for what doesn't fit memory.
    """
    held: list[_Part] = []
    rows = size = 0
    buckets: _Buckets | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        part = _part(batch)
        held.append(part)
        rows, size = rows + len(part.keys), size + part.size
        if buckets is None:
            foreseen = size + rows * _ROW_BYTES
            if rows >= _SAMPLE_ROWS:
                foreseen = foreseen * max(expected, rows) // rows
            if foreseen > _HELD_BYTES:
                buckets = _Buckets(scratch, foreseen)
        if buckets is not None and size >= _RUN_BYTES:
            buckets.add(held)
            held, size = [], 0
            # From here on only what is held counts.
            rows = 0
    if buckets is None:
        yield from _ordered(held)
        return
    buckets.add(held)
    del held
    for parts in buckets.read():
        yield from _ordered(parts)


def _part(batch: pa.RecordBatch) -> _Part:
    text: Any = batch.column(1).cast(pa.large_string())
    offsets = np.frombuffer(memoryview(text.buffers()[1]), np.int64)[
        text.offset : text.offset + len(text) + 1
    ]
    data = text.buffers()[2]
    return _Part(
        keys=keys_matrix(batch.column(0).cast(pa.binary(KEY_BYTES))).astype(np.uint64),
        tokens=batch.column(2).to_numpy(),
        starts=offsets[:-1],
        ends=offsets[1:],
        text=memoryview(data) if data is not None else memoryview(b""),
    )


class _Buckets:
    """Files of items, each of one range of keys."""

    def __init__(self, scratch: str, foreseen: int) -> None:
        self._count = min(_MOST_BUCKETS, max(2, -(-foreseen // _BUCKET_BYTES)))
        self._paths = [os.path.join(scratch, f"items-{number:03d}") for number in range(self._count)]

    def add(self, parts: list[_Part]) -> None:
        """Append items to the buckets of their keys."""
        if not parts:
            return
        keys, order = _sorted_keys(parts)
        tokens = np.concatenate([part.tokens for part in parts])[order]
        text: Any = pa.concat_arrays([part.column() for part in parts]).take(order)
        _, offsets_of, data = text.buffers()
        offsets = np.frombuffer(memoryview(offsets_of), np.int64)[: len(text) + 1]
        # The top 32 bits of a key, scaled to the number of buckets.
        bucket = ((keys[:, 0] >> np.uint64(32)) * np.uint64(self._count)) >> np.uint64(32)
        edges = np.searchsorted(bucket, np.arange(self._count + 1, dtype=np.uint64))
        for path, start, end in zip(self._paths, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if start == end:
                continue
            first, after = int(offsets[start]), int(offsets[end])
            with open(path, "ab") as file:
                file.write(_HEADER.pack(end - start, after - first))
                file.write(keys[start:end].tobytes())
                file.write(tokens[start:end].tobytes())
                file.write(np.diff(offsets[start : end + 1]).tobytes())
                file.write(memoryview(data)[first:after] if data is not None else b"")

    def read(self) -> Iterator[list[_Part]]:
        """Each bucket in key order, whole; its file is gone afterwards."""
        for path in self._paths:
            if os.path.exists(path):
                with open(path, "rb") as file:
                    content = memoryview(file.read())
                os.unlink(path)
                yield list(_parts(content))


def _parts(content: memoryview) -> Iterator[_Part]:
    position = 0
    while position < len(content):
        rows, size = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        keys = np.frombuffer(content, np.uint64, 2 * rows, position).reshape(-1, 2)
        position += keys.nbytes
        tokens = np.frombuffer(content, np.int32, rows, position)
        position += tokens.nbytes
        lengths = np.frombuffer(content, np.int64, rows, position)
        position += lengths.nbytes
        ends = np.cumsum(lengths)
        yield _Part(keys, tokens, ends - lengths, ends, content[position : position + size])
        position += size


def _sorted_keys(parts: list[_Part]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The keys of several parts in order, and from where each came."""
    keys = np.concatenate([part.keys for part in parts])
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    return keys[order], order


class _Run:
    """The items of several parts in key order. Texts stay where they are."""

    def __init__(self, parts: list[_Part]) -> None:
        self._texts = [part.text for part in parts]
        part_of = np.repeat(np.arange(len(parts)), [len(part.keys) for part in parts])
        self.keys, order = _sorted_keys(parts)
        self.tokens = np.concatenate([part.tokens for part in parts])[order]
        self._part_of = part_of[order]
        self._starts = np.concatenate([part.starts for part in parts])[order]
        self._ends = np.concatenate([part.ends for part in parts])[order]

    def texts(self, start: int, end: int) -> list[memoryview]:
        """The inputs of a stretch, UTF-8."""
        texts = self._texts
        spans = zip(
            self._part_of[start:end].tolist(),
            self._starts[start:end].tolist(),
            self._ends[start:end].tolist(),
            strict=True,
        )
        return [texts[part][first:after] for part, first, after in spans]


def _ordered(parts: list[_Part]) -> Iterator[ItemColumns]:
    """The items of some parts, in key order, each key once."""
    if not parts:
        return
    run = _Run(parts)
    again = np.zeros(len(run.keys), bool)
    again[1:] = (run.keys[1:] == run.keys[:-1]).all(axis=1)
    repeated = set(np.flatnonzero(again).tolist())
    for start in range(0, len(run.keys), _STREAM_ROWS):
        end = min(start + _STREAM_ROWS, len(run.keys))
        packed = run.keys[start:end].astype(">u8").tobytes()
        keys = [packed[place : place + KEY_BYTES] for place in range(0, len(packed), KEY_BYTES)]
        texts = [str(text, "utf-8") for text in run.texts(start, end)]
        tokens = run.tokens[start:end].tolist()
        if repeated and not repeated.isdisjoint(range(start, end)):
            kept = [place for place in range(end - start) if start + place not in repeated]
            keys = [keys[place] for place in kept]
            texts = [texts[place] for place in kept]
            tokens = [tokens[place] for place in kept]
        yield keys, texts, tokens
