"""Chunk parts: all chunks of a partition in few files, in whatever order partitions come."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from include.corpora import parts
from include.corpora.parts import StoredChunks, by_partition
from include.corpora.rows import CHUNK_SCHEMA
from include.ledger.connect import Connection
from include.storage import Storage
from tests.corpora.corpus import Corpus, document

PARTITIONS = 60


def chunks(names: list[str], first: int) -> pa.Table:
    """A chunk of some text for each name of a partition."""
    count = len(names)
    columns: dict[str, Any] = {
        "chunk_id": [str(first + place) for place in range(count)],
        "document_id": ["d"] * count,
        "content_hash": [bytes(16)] * count,
        "metadata_hash": [bytes(16)] * count,
        "partition": names,
        "position": [0] * count,
        "text": [os.urandom(200).hex()] * count,
        "tokens": [9] * count,
        "metadata": ["{}"] * count,
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in CHUNK_SCHEMA], CHUNK_SCHEMA)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Little memory to wait in, and a place of its own for what is set aside."""
    monkeypatch.setattr(parts, "_BUFFERED_BYTES", 40_000)
    monkeypatch.setattr(parts, "_WRITTEN_BYTES", 10_000)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))


def stored(storage: Storage, partition: str) -> list[str]:
    """The chunks of a partition."""
    found: list[str] = []
    for path in storage.list(f"corpora/c/chunks/k/{partition}"):
        with storage.parquet_file(path) as file:
            rows = file.read()
        assert set(rows["partition"].to_pylist()) == {partition}
        found += rows["chunk_id"].to_pylist()
    return found


def test_partitions_in_any_order_are_a_file_each(storage: Storage, tmp_path: Path) -> None:
    chosen = random.Random(1)
    expected: dict[str, list[str]] = {}
    with StoredChunks(storage, "c", "k", "r") as kept:
        for batch in range(40):
            names = [f"p{chosen.randrange(PARTITIONS)}" for _ in range(50)]
            for place, name in enumerate(names):
                expected.setdefault(name, []).append(str(batch * 50 + place))
            for name, rows in by_partition(chunks(names, batch * 50)):
                kept.write(name, rows)
            assert kept._size <= 60_000
    assert len(expected) == PARTITIONS
    for name, ids in expected.items():
        assert len(storage.list(f"corpora/c/chunks/k/{name}")) == 1
        assert stored(storage, name) == ids
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_large_partition_is_written_as_it_comes(storage: Storage, tmp_path: Path) -> None:
    with StoredChunks(storage, "c", "k", "r") as kept:
        for batch in range(40):
            kept.write("p", chunks(["p"] * 50, batch * 50))
            assert list((tmp_path / "scratch").iterdir()) == []
    assert stored(storage, "p") == [str(number) for number in range(2000)]


def test_nothing_is_left_of_a_try_that_failed(storage: Storage, tmp_path: Path) -> None:
    def fail() -> None:
        with StoredChunks(storage, "c", "k", "r") as kept:
            for batch in range(40):
                for name, rows in by_partition(chunks([f"p{n}" for n in range(50)], batch * 50)):
                    kept.write(name, rows)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert stored(storage, "p1") == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_records_of_many_days_in_any_order_are_stored_by_day(
    tmp_path: Path, storage: Storage, ledger: Connection
) -> None:
    corpus = Corpus(
        tmp_path / "source",
        storage,
        ledger,
        {"partition": None, "fields": {"partition": "day"}, "metadata": []},
    )
    chosen = random.Random(2)
    days = {f"d{n}": f"2026-{chosen.randrange(1, 13):02d}-{chosen.randrange(1, 29):02d}" for n in range(400)}
    corpus.write("all", *(document(id, day=day) for id, day in days.items()))
    report = corpus.run("r")
    folder = Path(storage.path("corpora/small/chunks"))
    files = list(folder.glob("*/*/*.parquet"))
    assert len(files) == len(set(days.values())) == len(report.partitions)
    found = pa.concat_tables(corpus.table(str(file.relative_to(storage.path("")))) for file in files)
    assert found.num_rows == report.chunks
    assert {row["document_id"]: row["partition"] for row in found.to_pylist()} == days
