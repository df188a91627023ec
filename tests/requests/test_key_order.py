"""Key order: whatever the amount and wherever it is held, every item comes once, in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from include.requests import key_order
from include.requests.key_order import in_key_order
from include.requests.keys import item_keys

SPACE = "00" * 16
Rows = list[tuple[bytes, str, int]]


def batches(rows: Rows, size: int) -> Iterator[pa.RecordBatch]:
    schema = pa.schema({"key": pa.binary(), "input": pa.string(), "tokens": pa.int32()})
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        columns = [list(column) for column in zip(*part, strict=True)]
        yield pa.record_batch(columns, schema=schema)
        yield pa.record_batch([[], [], []], schema=schema)


def sorted_rows(rows: Rows, size: int, scratch: Path) -> Rows:
    found = in_key_order(batches(rows, size), len(rows), str(scratch))
    return [row for columns in found for row in zip(*columns, strict=True)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(max_size=30), max_size=60),
    size=st.integers(1, 10),
    held=st.sampled_from([0, 50, 2_000, 10_000, 100_000]),
    run=st.sampled_from([1, 40, 400]),
)
def test_in_memory_and_on_disk_alike(
    texts: list[str], size: int, held: int, run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_order, "_HELD_BYTES", held)
    monkeypatch.setattr(key_order, "_RUN_BYTES", run)
    monkeypatch.setattr(key_order, "_BUCKET_BYTES", 50)
    rows = list(zip(item_keys(SPACE, texts), texts, range(len(texts)), strict=True))
    found = sorted_rows(rows, size, tmp_path)
    once = {key: text for key, text, _ in rows}
    assert [(key, text) for key, text, _ in found] == sorted(once.items())
    assert all(texts[place] == text for _, text, place in found)
    assert list(tmp_path.iterdir()) == []


def test_a_stretch_longer_than_one_stream_block_comes_out_whole(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(5_000)] + ["text 7"] * 10
    rows = list(zip(item_keys(SPACE, texts), texts, [1] * len(texts), strict=True))
    found = sorted_rows(rows, 700, tmp_path)
    assert [row[0] for row in found] == sorted(set(item_keys(SPACE, texts)))
