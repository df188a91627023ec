"""Shard files: a stream of items becomes request files within every limit, each named by its content.

`shards/{shard}/requests.jsonl` is what the provider is sent, `keys.parquet` maps its lines to
items. The name is a hash over space and lines, known only when the file is whole: it is written
under a temporary name and moved. Hashing and writing go on in a thread of their own, beside the
encoding of the next lines.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa

from include.batches.failures import Failure
from include.batches.line_check import LineCheck
from include.contracts import (
    JSON,
    KEY_BYTES,
    SHARD_KEYS_SCHEMA,
    BatchProvider,
    Item,
    Limits,
    OutcomeClass,
    Shard,
    Space,
)
from include.errors import BatchInferenceError
from include.requests.key_order import ItemColumns
from include.requests.keys import line_id
from include.requests.results import keys_array
from include.storage import Storage

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_BLOCKS_WAITING = 2
_QUEUE_SHARE = 4
"""A shard takes at most a quarter of what the account may have enqueued, so that several fit."""


def requests_path(shard_id: str) -> str:
    """The request file of a shard, relative to the storage root."""
    return f"shards/{shard_id}/requests.jsonl"


def keys_path(shard_id: str) -> str:
    """The map from a shard's lines to items, relative to the storage root."""
    return f"shards/{shard_id}/keys.parquet"


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """What one shard and one line may hold."""

    lines: int
    bytes: int
    inputs: int
    tokens: float
    inputs_per_line: int
    tokens_per_line: float
    tokens_per_input: float

    @classmethod
    def within(cls, limits: Limits, inputs_per_line: int) -> ShardLimits:
        """The provider's limits, and at most a quarter of the account's queue."""
        infinite = float("inf")
        lines = limits.requests_per_batch
        for queued in (limits.enqueued_requests, limits.account_requests):
            if queued is not None:
                lines = min(lines, max(1, queued // _QUEUE_SHARE))
        queue = infinite if limits.enqueued_tokens is None else limits.enqueued_tokens / _QUEUE_SHARE
        inputs = limits.inputs_per_batch or lines * limits.inputs_per_request
        tokens_per_line = infinite if limits.tokens_per_request is None else limits.tokens_per_request
        tokens_per_input = infinite if limits.tokens_per_input is None else limits.tokens_per_input
        return cls(
            lines=lines,
            bytes=limits.bytes_per_batch,
            inputs=inputs,
            tokens=queue,
            inputs_per_line=max(1, min(inputs_per_line, limits.inputs_per_request, inputs)),
            tokens_per_line=tokens_per_line,
            tokens_per_input=min(tokens_per_input, tokens_per_line),
        )


@dataclass(slots=True)
class _Lines:
    """Some lines. The lists `ids`, `bodies`, `inputs` (how many items each) and `tokens` have an
    entry a line, `keys` and `item_tokens` one an item."""

    ids: list[str]
    bodies: list[bytes]
    inputs: list[int]
    tokens: list[int]
    keys: list[bytes]
    item_tokens: list[int]


class ShardWriter:
    """Turns items into shards. `shards` and `refused` are complete once `write` has returned."""

    def __init__(
        self,
        storage: Storage,
        provider: BatchProvider,
        space: Space,
        limits: ShardLimits,
        *,
        structured: bool = False,
    ) -> None:
        self._storage = storage
        self._make = provider.line
        self._space = space
        self._limits = limits
        self._structured = structured
        self._check = LineCheck(space)
        self.shards: list[Shard] = []
        self.refused: list[Failure] = []

    def write(self, columns: Iterable[ItemColumns], progress: Callable[[int], None]) -> None:
        """Write all items, which come in key order; one shard is open at a time.

        Raises BatchInferenceError where the provider made a line that its own service would refuse.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="shard") as thread:
            shard: _OpenShard | None = None
            try:
                for lines in self._lines(columns, progress):
                    self._check(lines.bodies, lines.ids)
                    done = 0
                    while done < len(lines.ids):
                        if shard is None:
                            shard = _OpenShard(self._storage, self._space, self._limits, thread)
                        taken = shard.take(lines, done)
                        done += taken
                        if done < len(lines.ids):
                            self.shards.append(shard.close())
                            shard = None
                if shard is not None:
                    self.shards.append(shard.close())
                    shard = None
            finally:
                if shard is not None:
                    shard.abandon()

    def _lines(self, columns: Iterable[ItemColumns], progress: Callable[[int], None]) -> Iterator[_Lines]:
        """Make lines of items, some thousand at a time."""
        grouped = self._limits.inputs_per_line > 1
        group: list[Item] = []
        for some in columns:
            keys, inputs, tokens = self._short_enough(some)
            if self._structured:
                inputs = [orjson.loads(text) for text in inputs]
            if grouped:
                items = [*group, *map(Item, keys, inputs, tokens)]
                groups = self._groups(items)
                # The last one may still grow.
                group = groups.pop() if groups else []
                yield self._grouped(groups)
            else:
                yield self._single(keys, inputs, tokens)
            progress(len(keys))
        if group:
            yield self._grouped([group])

    def _single(self, keys: list[bytes], inputs: Sequence[JSON], tokens: list[int]) -> _Lines:
        """A line for each item."""
        make, space = self._make, self._space
        joined = b"".join(keys).hex()
        ids = [joined[place : place + 2 * KEY_BYTES] for place in range(0, len(joined), 2 * KEY_BYTES)]
        bodies = [
            make(space, (Item(key, given, count),), custom_id)
            for key, given, count, custom_id in zip(keys, inputs, tokens, ids, strict=True)
        ]
        if bodies and max(map(len, bodies)) > self._limits.bytes:
            small = self._small_enough([(key,) for key in keys], bodies)
            return self._single(_at(small, keys), _at(small, inputs), _at(small, tokens))
        return _Lines(ids, bodies, [1] * len(ids), tokens, keys, tokens)

    def _groups(self, items: list[Item]) -> list[list[Item]]:
        """Divide items into lines, within the limits of a line."""
        most, most_tokens = self._limits.inputs_per_line, self._limits.tokens_per_line
        groups: list[list[Item]] = []
        tokens = 0
        for item in items:
            if not groups or len(groups[-1]) == most or tokens + item.tokens > most_tokens:
                groups.append([])
                tokens = 0
            groups[-1].append(item)
            tokens += item.tokens
        return groups

    def _grouped(self, groups: list[list[Item]]) -> _Lines:
        """A line for each group of items."""
        keys = [tuple(item.key for item in group) for group in groups]
        ids = [line_id(of_line) for of_line in keys]
        bodies = [
            self._make(self._space, group, custom_id) for group, custom_id in zip(groups, ids, strict=True)
        ]
        if bodies and max(map(len, bodies)) > self._limits.bytes:
            return self._grouped([groups[line] for line in self._small_enough(keys, bodies)])
        return _Lines(
            ids,
            bodies,
            [len(group) for group in groups],
            [sum(item.tokens for item in group) for group in groups],
            [key for of_line in keys for key in of_line],
            [item.tokens for group in groups for item in group],
        )

    # ----------------------------------------------------------------- refusing

    def _short_enough(self, columns: ItemColumns) -> tuple[list[bytes], list[Any], list[int]]:
        """The items that an input's limit allows; the others are refused."""
        longest = self._limits.tokens_per_input
        keys, inputs, tokens = columns
        if not tokens or max(tokens) <= longest:
            return keys, inputs, tokens
        for key, count in zip(keys, tokens, strict=True):
            if count > longest:
                message = f"{count:,} tokens, more than the {longest:,.0f} of one input"
                self.refused.append(Failure(key, OutcomeClass.PERMANENT, "too_long", message))
        kept = [place for place, count in enumerate(tokens) if count <= longest]
        return _at(kept, keys), _at(kept, inputs), _at(kept, tokens)

    def _small_enough(self, keys: Sequence[Sequence[bytes]], bodies: list[bytes]) -> list[int]:
        """The lines that a batch's bytes allow; the items of the others are refused."""
        kept = []
        for line, (of_line, body) in enumerate(zip(keys, bodies, strict=True)):
            if len(body) <= self._limits.bytes:
                kept.append(line)
                continue
            message = f"its line has {len(body):,} bytes, more than the {self._limits.bytes:,} of a batch"
            alone = len(of_line) == 1
            self.refused.extend(
                Failure(key, OutcomeClass.PERMANENT, "too_large", message, alone) for key in of_line
            )
        return kept


class _OpenShard:
    """A shard that is being written. Its lines so far are within the limits."""

    def __init__(
        self, storage: Storage, space: Space, limits: ShardLimits, thread: ThreadPoolExecutor
    ) -> None:
        self._storage = storage
        self._space = space
        self._limits = limits
        self._thread = thread
        self._temporary = _temporary(storage)
        self._file: IO[bytes] = open(self._temporary, "wb", buffering=0)  # noqa: SIM115  closed by close
        self._hasher = hashlib.blake2b(bytes.fromhex(space.id), digest_size=KEY_BYTES)
        self._waiting: deque[Future[None]] = deque()
        self._ids: list[str] = []
        self._inputs: list[int] = []
        self._keys: list[bytes] = []
        self._item_tokens: list[int] = []
        self._bytes = 0
        self._tokens = 0

    def take(self, lines: _Lines, start: int) -> int:
        """Append lines from `start` on, as many as fit; returns how many.

        An empty shard takes at least one: a line larger than the queue's share goes by itself.
        """
        limits = self._limits
        sizes = np.cumsum([len(body) for body in lines.bodies[start:]])
        inputs = np.cumsum(lines.inputs[start:])
        tokens = np.cumsum(lines.tokens[start:])
        fit = min(
            limits.lines - len(self._ids),
            int(np.searchsorted(sizes, limits.bytes - self._bytes, "right")),
            int(np.searchsorted(inputs, limits.inputs - len(self._keys), "right")),
            int(np.searchsorted(tokens, limits.tokens - self._tokens, "right")),
            len(sizes),
        )
        fit = max(fit, 0 if self._ids else 1)
        if fit == 0:
            return 0
        end = start + fit
        before = sum(lines.inputs[:start])
        after = before + int(inputs[fit - 1])
        self._ids += lines.ids[start:end]
        self._inputs += lines.inputs[start:end]
        self._keys += lines.keys[before:after]
        self._item_tokens += lines.item_tokens[before:after]
        self._bytes += int(sizes[fit - 1])
        self._tokens += int(tokens[fit - 1])
        self._hand_over(lines.bodies[start:end])
        return fit

    def close(self) -> Shard:
        """Finish the files under the shard's name. Files that are there already are left as they are."""
        while self._waiting:
            self._waiting.popleft().result()
        lines = len(self._ids)
        if len(set(self._ids)) != lines:
            raise BatchInferenceError(
                f"space {self._space.id}: two lines of one shard have the same custom_id; nothing was sent"
            )
        shard = Shard(
            id=self._hasher.hexdigest(),
            space=self._space.id,
            items=len(self._keys),
            lines=lines,
            bytes=self._bytes,
            tokens=self._tokens,
        )
        target = requests_path(shard.id)
        if self._storage.exists(target) and self._storage.size(target) == shard.bytes:
            self.abandon()
        else:
            os.fsync(self._file.fileno())
            self._file.close()
            self._storage.move_in(self._temporary, target)
        if not self._storage.exists(keys_path(shard.id)):
            self._storage.write_parquet(keys_path(shard.id), self._key_table())
        log.info("Shard %s: %d lines, %d bytes, %d tokens", shard.id, lines, shard.bytes, shard.tokens)
        return shard

    def abandon(self) -> None:
        """Leave nothing behind."""
        for future in self._waiting:
            future.cancel()
        self._thread.submit(self._file.close).result()
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def _hand_over(self, bodies: list[bytes]) -> None:
        """Give lines to the thread, and wait while it is some blocks behind."""
        self._waiting.append(self._thread.submit(self._write, bodies))
        while len(self._waiting) > _BLOCKS_WAITING:
            self._waiting.popleft().result()

    def _write(self, bodies: list[bytes]) -> None:
        block = b"".join(bodies)
        self._hasher.update(block)
        self._file.write(block)

    def _key_table(self) -> pa.Table:
        counts = np.array(self._inputs)
        line = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        ids = pa.array(self._ids, pa.string())
        return pa.table(
            [
                ids if len(ids) == len(line) else ids.take(line),
                keys_array(b"".join(self._keys)),
                pa.array(line),
                pa.array(self._item_tokens, pa.int32()),
            ],
            schema=SHARD_KEYS_SCHEMA,
        )


def _at(places: Sequence[int], column: Sequence[_T]) -> list[_T]:
    return [column[place] for place in places]


def _temporary(storage: Storage) -> str:
    """Where a shard grows: beside its target on a local disk, so that a move is enough."""
    if not storage.is_local:
        return os.path.join(tempfile.gettempdir(), f"shard-{uuid.uuid4().hex}.jsonl")
    folder = storage.path("shards")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f".tmp-{uuid.uuid4().hex}")
