"""Several versions of a document in one run, in any order: only the newest leaves rows, and it is whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from include.contracts import RUN_ROW_SCHEMA, RunRef
from include.corpora import prepare
from include.corpora.chunking import Chunker
from include.corpora.documents import View
from include.corpora.rows import RangeRows, range_path
from include.ledger.connect import Connection
from include.storage import Storage
from tests.corpora.corpus import Corpus

A, B = "2026-01-01", "2026-01-02"
SHARED = "This paragraph is in every version, word for word, so that its chunk has one id in all of them.\n\n"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that versions meet in a batch, and across batches."""
    monkeypatch.setattr(prepare, "_BATCH_DOCUMENTS", 4)


@pytest.fixture
def corpus(tmp_path: Path, storage: Storage, ledger: Connection) -> Corpus:
    return Corpus(tmp_path / "source", storage, ledger, {})


def record(random: random.Random, number: int, changes: bool, mixed: bool) -> dict[str, Any]:
    """A version of one of a few documents, whose text tells which. All of a document's tell their time,
    or none does, unless they are `mixed`."""
    body = f"Version {number} says something of its own at some length. " * random.randint(0, 4)
    found: dict[str, Any] = {"id": random.choice("abcdefgh"), "text": SHARED + body + f"End of {number}."}
    if random.random() < 0.6 if mixed else found["id"] > "c":
        found["updated_at"] = f"2026-01-01T00:00:{random.randint(0, 9):02d}Z"
    if changes and random.random() < 0.2:
        found["gone"] = True
    return found


def newest(records: list[tuple[str, dict[str, Any]]], changes: bool) -> dict[str, dict[str, Any]]:
    """What stands in the end of (partition, record) in the order of reading."""
    stands: dict[str, tuple[str, dict[str, Any]]] = {}
    for partition, found in records:
        if found["id"] in stands:
            where, before = stands[found["id"]]
            one, other = found.get("updated_at"), before.get("updated_at")
            later = one > other if one and other and one != other else changes and where == partition
            if not later:
                continue
        stands[found["id"]] = partition, found
    return {id: found for id, (_, found) in stands.items() if not found.get("gone")}


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_only_the_newest_version_leaves_rows(corpus: Corpus, changes: bool, mixed: bool, seed: int) -> None:
    if changes:
        corpus.source = {"mode": "changes", "fields": {"deleted": "gone"}}
    chosen = random.Random(seed)
    log = [record(chosen, number, changes, mixed) for number in range(60)]
    corpus.write(B, *log[:30])
    corpus.write(A, *log[30:])
    expected = newest([(B, each) for each in log[:30]] + [(A, each) for each in log[30:]], changes)
    report = corpus.run("r", ranges=2)
    rows = corpus.rows("r")
    chunker = Chunker(config_of(corpus).chunking)
    texts = {id: [chunk.text for chunk in chunker.chunks(found["text"])] for id, found in expected.items()}
    found: dict[str, list[str]] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: row["position"]):
        found.setdefault(row["document_id"], []).append(row["text"])
    assert found == texts
    assert len(set(rows["chunk_id"].to_pylist())) == rows.num_rows == report.chunks
    assert pc.sum(rows["tokens"]).as_py() == report.tokens
    assert report.read + report.bad == 60
    kinds = ("new", "changed", "moved", "metadata", "unchanged", "stale", "deleted")
    assert sum(getattr(report, kind) for kind in kinds) == report.read
    if mixed:
        return
    # The same again, now that the table knows them all.
    again = corpus.run("again", ranges=2)
    assert corpus.rows("again").sort_by("chunk_id").equals(rows.sort_by("chunk_id"))
    assert (again.new, again.changed, again.moved) == (0, 0, 0)


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_also_where_records_name_their_partitions_in_any_order(
    corpus: Corpus, changes: bool, seed: int
) -> None:
    """A record that tells no time is as new as its day."""
    corpus.source = {"partition": None, "fields": {"partition": "day"}}
    if changes:
        corpus.source = {
            **corpus.source,
            "mode": "changes",
            "fields": {"partition": "day", "deleted": "gone"},
        }
    chosen = random.Random(seed)
    log = [
        {**record(chosen, number, changes, mixed=True), "day": chosen.choice((A, B))} for number in range(60)
    ]
    corpus.write("all", *log)
    timed = [{"updated_at": f"{each['day']}T00:00:00Z", **each} for each in log]
    expected = newest([(each["day"], each) for each in timed], changes)
    report = corpus.run("r", ranges=2)
    found: dict[str, str] = {}
    for row in sorted(corpus.rows("r").to_pylist(), key=lambda row: row["position"]):
        found[row["document_id"]] = row["text"].rstrip().rpartition("End of ")[2]
    assert found == {id: each["text"].rpartition("End of ")[2] for id, each in expected.items()}
    assert corpus.rows("r").num_rows == report.chunks
    again = corpus.run("again", ranges=2)
    assert (again.new, again.changed, again.moved) == (0, 0, 0)


def test_versions_that_alternate_take_no_query_each(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_BATCH_DOCUMENTS", 1_000)
    judged: list[int] = []
    judge = View.judge
    monkeypatch.setattr(View, "judge", lambda view, batch: judged.append(len(batch)) or judge(view, batch))
    corpus.source = {"mode": "changes"}
    stamps = [f"2026-01-01T{n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d}Z" for n in range(5_000)]
    corpus.write(
        A, *({"id": f"d{n % 50}", "text": f"{n} says.", "updated_at": at} for n, at in enumerate(stamps))
    )
    report = corpus.run("r")
    assert sum(judged) == 50
    assert (report.new, report.stale) == (50, 4_950)
    assert {row["text"] for row in corpus.rows("r").to_pylist()} == {
        f"{n} says." for n in range(4_950, 5_000)
    }


def config_of(corpus: Corpus) -> Any:
    from tests.corpora.corpus import config

    return config(f"{corpus.folder}/*.jsonl", **corpus.source)


def test_long_chunks_wait_in_little_memory(storage: Storage) -> None:
    """Chunks of 32 kB: by their number alone, a gigabyte of them would wait."""
    before = pa.total_allocated_bytes()
    run = RunRef("r", "initial_ingest", "c", "runs/r")
    peak = 0
    with RangeRows(storage, run, 16) as rows:
        for number in range(60):
            count = 160
            columns: dict[str, Any] = {
                "chunk_id": [f"{number}-{place}" for place in range(count)],
                "key": [bytes(16)] * count,
                "document_id": ["d"] * count,
                "content_hash": [bytes(16)] * count,
                "metadata_hash": [bytes(16)] * count,
                "partition": ["p"] * count,
                "position": list(range(count)),
                "text": ["x" * 32_000] * count,
                "input": [None] * count,
                "tokens": [8000] * count,
                "metadata": ["{}"] * count,
            }
            table = pa.table([pa.array(columns[f.name], f.type) for f in RUN_ROW_SCHEMA], RUN_ROW_SCHEMA)
            rows.write(table, pa.array([place % 16 for place in range(count)], pa.int32()).to_numpy())
            del table, columns
            peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 200_000_000
    counts = [storage.parquet_file(range_path(run, number)) for number in range(16)]
    total = 0
    for file in counts:
        with file as opened:
            total += opened.metadata.num_rows
    assert total == 60 * 160
