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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import orjson
import pyarrow as pa

from include.batches.failures import Failure
from include.contracts import (
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

_BLOCK_BYTES = 1 << 20
_BLOCKS_WAITING = 4
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
        if limits.enqueued_requests is not None:
            lines = min(lines, max(1, limits.enqueued_requests // _QUEUE_SHARE))
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
        self._read: Callable[[str], Any] | None = orjson.loads if structured else None
        self.shards: list[Shard] = []
        self.refused: list[Failure] = []

    def write(self, columns: Iterable[ItemColumns], progress: Callable[[int], None]) -> None:
        """Write all items, which come in key order; one shard is open at a time."""
        limits = self._limits
        with ThreadPoolExecutor(1, thread_name_prefix="shard") as thread:
            shard: _OpenShard | None = None
            try:
                for items in self._lines(columns, progress):
                    custom_id = (
                        line_id([item.key for item in items]) if len(items) > 1 else items[0].key.hex()
                    )
                    body = self._make(self._space, items, custom_id)
                    size = len(body)
                    if size > limits.bytes:
                        self._refuse_large(items, size)
                        continue
                    tokens = sum(item.tokens for item in items) if len(items) > 1 else items[0].tokens
                    if shard is not None and not shard.takes(size, len(items), tokens):
                        self.shards.append(shard.close())
                        shard = None
                    if shard is None:
                        shard = _OpenShard(self._storage, self._space, limits, thread)
                    shard.add(custom_id, items, body, tokens)
                if shard is not None:
                    self.shards.append(shard.close())
                    shard = None
            finally:
                if shard is not None:
                    shard.abandon()

    def _lines(
        self, columns: Iterable[ItemColumns], progress: Callable[[int], None]
    ) -> Iterator[tuple[Item, ...]]:
        """Group items into lines within the limits of a line."""
        most, most_tokens = self._limits.inputs_per_line, self._limits.tokens_per_line
        group: list[Item] = []
        group_tokens = 0
        for some in columns:
            for item in self._items(some):
                if most == 1:
                    yield (item,)
                    continue
                if group and (len(group) == most or group_tokens + item.tokens > most_tokens):
                    yield tuple(group)
                    group, group_tokens = [], 0
                group.append(item)
                group_tokens += item.tokens
            progress(len(some[0]))
        if group:
            yield tuple(group)

    def _items(self, columns: ItemColumns) -> Iterator[Item]:
        """The items that an input's limits allow; the others are refused."""
        longest, read = self._limits.tokens_per_input, self._read
        for key, text, tokens in zip(*columns, strict=True):
            if tokens > longest:
                self._refuse(key, "too_long", f"{tokens:,} tokens, more than the {longest:,.0f} of one input")
                continue
            yield Item(key, text if read is None else read(text), tokens)

    def _refuse(self, key: bytes, code: str, message: str, alone: bool = True) -> None:
        self.refused.append(Failure(key, OutcomeClass.PERMANENT, code, message, alone))

    def _refuse_large(self, items: tuple[Item, ...], size: int) -> None:
        for item in items:
            self._refuse(
                item.key,
                "too_large",
                f"its line has {size:,} bytes, more than the {self._limits.bytes:,} of a whole batch",
                alone=len(items) == 1,
            )


class _OpenShard:
    """A shard that is being written. Its lines so far are within the limits."""

    def __init__(
        self, storage: Storage, space: Space, limits: ShardLimits, thread: ThreadPoolExecutor
    ) -> None:
        self._storage = storage
        self._space = space
        self._limits = limits
        self._thread = thread
        self._check = LineCheck(space)
        self._temporary = _temporary(storage)
        self._file: IO[bytes] = open(self._temporary, "wb", buffering=0)  # noqa: SIM115  closed by close
        self._hasher = hashlib.blake2b(bytes.fromhex(space.id), digest_size=KEY_BYTES)
        self._waiting: deque[Future[None]] = deque()
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._line_ids: list[str] = []
        self._line_items: list[int] = []
        self._keys: list[bytes] = []
        self._item_tokens: list[int] = []
        self._bytes = 0
        self._tokens = 0

    def takes(self, size: int, inputs: int, tokens: int) -> bool:
        """Whether one more line fits. A line larger than the queue's share gets a shard of its own."""
        limits = self._limits
        return (
            len(self._line_ids) < limits.lines
            and self._bytes + size <= limits.bytes
            and len(self._keys) + inputs <= limits.inputs
            and self._tokens + tokens <= limits.tokens
        )

    def add(self, custom_id: str, items: tuple[Item, ...], body: bytes, tokens: int) -> None:
        """Append a line, once it is checked."""
        self._check(body, custom_id)
        self._block.append(body)
        self._line_ids.append(custom_id)
        self._line_items.append(len(items))
        for item in items:
            self._keys.append(item.key)
            self._item_tokens.append(item.tokens)
        self._tokens += tokens
        self._bytes += len(body)
        self._block_bytes += len(body)
        if self._block_bytes >= _BLOCK_BYTES:
            self._hand_over()

    def close(self) -> Shard:
        """Finish the files under the shard's name. Files that are there already are left as they are."""
        self._hand_over()
        while self._waiting:
            self._waiting.popleft().result()
        lines = len(self._line_ids)
        if len(set(self._line_ids)) != lines:
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

    def _hand_over(self) -> None:
        """Give the block to the thread, and wait while it is some blocks behind."""
        if not self._block:
            return
        self._waiting.append(self._thread.submit(self._write, self._block))
        self._block, self._block_bytes = [], 0
        while len(self._waiting) > _BLOCKS_WAITING:
            self._waiting.popleft().result()

    def _write(self, block: list[bytes]) -> None:
        joined = b"".join(block)
        self._hasher.update(joined)
        self._file.write(joined)

    def _key_table(self) -> pa.Table:
        counts = np.array(self._line_items)
        line = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        ids = pa.array(self._line_ids, pa.string())
        return pa.table(
            [
                ids if len(ids) == len(line) else ids.take(line),
                keys_array(b"".join(self._keys)),
                pa.array(line),
                pa.array(self._item_tokens, pa.int32()),
            ],
            schema=SHARD_KEYS_SCHEMA,
        )


class LineCheck:
    """Checks a line before it is uploaded: one bad line can fail a whole file.

    A line is one line of JSON, bears its custom_id, and names the space's endpoint and model
    wherever it names any.
    """

    def __init__(self, space: Space) -> None:
        import simdjson

        self._parser = simdjson.Parser()
        self._endpoint = space.endpoint
        self._model = space.model

    def __call__(self, body: bytes, custom_id: str) -> None:
        """Raises BatchInferenceError that says what is wrong with which line."""
        record: Any = None
        inner: Any = None
        try:
            record = self._parser.parse(body)
            named = record["custom_id"]
            url = record.get("url")
            inner = record.get("body") or record.get("params")
            model = None if inner is None else inner.get("model")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._bad(custom_id, f"isn't a JSON object with a custom_id ({error})") from None
        finally:
            # The parser can't be used again while objects of its last document live.
            record = inner = None
        if named != custom_id:
            raise self._bad(custom_id, f"bears the custom_id {named!r}")
        if url is not None and url != self._endpoint:
            raise self._bad(custom_id, f"is for {url!r}, the batch for {self._endpoint!r}")
        if model is not None and model != self._model:
            raise self._bad(custom_id, f"is for the model {model!r}, the space for {self._model!r}")
        if body[-1:] != b"\n" or body.find(b"\n") != len(body) - 1:
            raise self._bad(custom_id, "must be one line with its newline")

    def _bad(self, custom_id: str, what: str) -> BatchInferenceError:
        return BatchInferenceError(
            f"the line of request {custom_id} {what}; nothing was sent: mend the provider's `line`"
        )


def _temporary(storage: Storage) -> str:
    """Where a shard grows: beside its target on a local disk, so that a move is enough."""
    if not storage.is_local:
        return os.path.join(tempfile.gettempdir(), f"shard-{uuid.uuid4().hex}.jsonl")
    folder = storage.path("shards")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f".tmp-{uuid.uuid4().hex}")
