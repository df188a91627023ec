"""Shard files: whatever comes in, every item is in exactly one line, and no limit is passed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.batches.shard_files import ShardLimits, ShardWriter, keys_path, requests_path
from include.contracts import Limits
from include.requests.key_order import ItemColumns
from include.requests.keys import item_keys, line_id
from include.storage import Storage
from tests.batches.packing import OFFLINE
from tests.batches.submitting import SPACE


def items_of(texts: list[str], tokens: list[int]) -> Iterator[ItemColumns]:
    """Items in key order, three at a time, as the plan streams them."""
    ordered = sorted(zip(item_keys(SPACE.id, texts), texts, tokens, strict=True))
    for start in range(0, len(ordered), 3):
        part = ordered[start : start + 3]
        yield [row[0] for row in part], [row[1] for row in part], [row[2] for row in part]


def write(
    storage: Storage, texts: list[str], tokens: list[int], limits: Limits, inputs_per_line: int
) -> ShardWriter:
    writer = ShardWriter(storage, OFFLINE, SPACE, ShardLimits.within(limits, inputs_per_line))
    writer.write(items_of(texts, tokens), lambda count: None)
    return writer


LIMITS = st.builds(
    Limits,
    requests_per_batch=st.integers(1, 8),
    bytes_per_batch=st.integers(250, 3_000),
    inputs_per_batch=st.none() | st.integers(1, 10),
    inputs_per_request=st.integers(1, 5),
    tokens_per_request=st.none() | st.integers(5, 60),
    tokens_per_input=st.none() | st.integers(5, 40),
    enqueued_tokens=st.none() | st.integers(20, 400),
    enqueued_requests=st.none() | st.integers(4, 40),
)


class TestEveryItemIsInOneLine:
    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.text(max_size=60), max_size=25, unique=True),
        st.data(),
        LIMITS,
        st.integers(1, 6),
    )
    def test_for_any_texts_and_limits(
        self, texts: list[str], data: st.DataObject, limits: Limits, inputs_per_line: int
    ) -> None:
        tokens = data.draw(st.lists(st.integers(1, 50), min_size=len(texts), max_size=len(texts)))
        with tempfile.TemporaryDirectory() as folder:
            storage = Storage(f"file://{folder}")
            writer = write(storage, texts, tokens, limits, inputs_per_line)
            text_of = dict(zip(item_keys(SPACE.id, texts), texts, strict=True))
            tokens_of = dict(zip(item_keys(SPACE.id, texts), tokens, strict=True))
            seen: list[bytes] = [failure.key for failure in writer.refused]
            for shard in writer.shards:
                body = storage.read_bytes(requests_path(shard.id))
                lines = body.splitlines(keepends=True)
                with storage.parquet_file(keys_path(shard.id)) as file:
                    rows = file.read().to_pylist()
                assert (shard.lines, shard.items, shard.bytes) == (len(lines), len(rows), len(body))
                assert shard.tokens == sum(row["tokens"] for row in rows)
                check_limits(limits, shard.lines, shard.items, shard.bytes, shard.tokens)
                for number, line in enumerate(lines):
                    of_line = [row for row in rows if row["line"] == number]
                    keys = [row["key"] for row in of_line]
                    record = orjson.loads(line)
                    assert record["custom_id"] == line_id(keys) == of_line[0]["custom_id"]
                    given_inputs = record["body"]["input"]
                    inputs = [given_inputs] if isinstance(given_inputs, str) else given_inputs
                    assert inputs == [text_of[key] for key in keys]
                    assert len(keys) <= min(inputs_per_line, limits.inputs_per_request)
                    if limits.tokens_per_request is not None:
                        assert sum(tokens_of[key] for key in keys) <= limits.tokens_per_request
                    seen.extend(keys)
            assert sorted(seen) == sorted(text_of)

    def test_the_same_items_make_the_same_shard(self, storage: Storage) -> None:
        texts, tokens = ["one", "two", "three"], [1, 1, 1]
        limits = Limits(10, 10_000)
        first = write(storage, texts, tokens, limits, 1)
        second = write(storage, texts[::-1], tokens, limits, 1)
        assert first.shards == second.shards
        assert storage.list("shards") == []

    def test_nothing_is_left_behind_when_writing_breaks_off(self, storage: Storage) -> None:
        def broken() -> Iterator[ItemColumns]:
            yield from items_of(["one"], [1])
            raise RuntimeError("the disk is gone")

        writer = ShardWriter(storage, OFFLINE, SPACE, ShardLimits.within(Limits(10, 10_000), 1))
        with pytest.raises(RuntimeError, match="disk"):
            writer.write(broken(), lambda count: None)
        assert storage.fs.ls(storage.path("shards")) == []


def check_limits(limits: Limits, lines: int, items: int, size: int, tokens: int) -> None:
    assert lines <= limits.requests_per_batch
    assert size <= limits.bytes_per_batch
    if limits.inputs_per_batch is not None:
        assert items <= limits.inputs_per_batch
    if lines == 1:
        return  # what is larger than the account's share all the same is a shard by itself
    if limits.enqueued_requests is not None:
        assert lines <= max(1, limits.enqueued_requests // 4)
    if limits.enqueued_tokens is not None:
        assert tokens <= limits.enqueued_tokens / 4
