"""Prepare: every chunk in view becomes a row, only the newest truth counts, and a kill loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from include.contracts import PROJECT_ROOT, RUN_ROW_SCHEMA
from include.corpora.prepare import PrepareReport
from include.corpora.rows import range_of
from include.errors import StorageError, TooMuchBadInput
from include.ledger.connect import Connection
from include.ledger.locks import lock_number
from include.requests.keys import item_key
from include.storage import Storage
from tests.corpora.corpus import SPACE, Corpus, config, document
from tests.corpora.test_sources import BAD_LINES

CRANFIELD = PROJECT_ROOT.parent / "shared" / "data" / "cranfield" / "corpus.jsonl"
A, B = "2026-01-01", "2026-01-02"

#: What another session holds to stop a prepare at a moment, so that it can be killed there.
HELD = {
    "while reading": "lock table documents in access exclusive mode",
    "before the merge": f"select pg_advisory_xact_lock({lock_number('documents/small')})",
    "within the merge": "select from documents where document_id = 'gone' for update",
}

#: A process that prepares the run `now`.
PREPARE = """
import sys
from pathlib import Path
from include.ledger.connect import connect
from include.storage import Storage
from tests.corpora.corpus import Corpus

ledger_url, root, folder = sys.argv[1:]
with connect(ledger_url) as ledger:
    Corpus(Path(folder), Storage(root), ledger, {}).run("now")
"""


@pytest.fixture
def corpus(tmp_path: Path, storage: Storage, ledger: Connection) -> Corpus:
    """An empty corpus."""
    return Corpus(tmp_path / "source", storage, ledger, {})


def counts(report: PrepareReport) -> dict[str, int]:
    """The counts of documents that aren't zero."""
    names = ("new", "changed", "moved", "metadata", "unchanged", "deleted", "stale", "bad", "mended")
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def ids(rows: pa.Table) -> set[str]:
    return {str(id) for id in rows["document_id"].to_pylist()}


class TestRows:
    def test_have_all_that_later_steps_need(self, corpus: Corpus) -> None:
        corpus.write(A, document("d", topic="trees", url="https://x/d"))
        report = corpus.run("r")
        rows = corpus.rows("r")
        assert rows.schema.equals(RUN_ROW_SCHEMA)
        assert rows.num_rows == report.chunks > 1
        assert pc.sum(rows["tokens"]).as_py() == report.tokens
        text = document("d")["text"]
        for row in rows.to_pylist():
            told = json.loads(row["metadata"])
            start, end = told.pop("span")
            assert text[start:end] == row["text"]
            assert told == {
                "title": "About d",
                "url": "https://x/d",
                "partition": A,
                "topic": "trees",
                "position": row["position"],
                "heading": [],
            }
            assert row["key"] == item_key(SPACE, row["text"])
            assert row["input"] is None

    def test_of_a_document_are_all_in_one_range(self, corpus: Corpus) -> None:
        corpus.write(A, *(document(f"d{n}") for n in range(40)))
        corpus.run("r", ranges=4)
        assert sorted(corpus.storage.list("runs/r/rows")) == [
            "runs/r/rows/deleted.parquet",
            *(f"runs/r/rows/range-0{n}.parquet" for n in range(4)),
        ]
        for number in range(4):
            there = ids(corpus.table(f"runs/r/rows/range-0{number}.parquet"))
            assert there == {f"d{n}" for n in range(40) if range_of(f"d{n}", 4) == number}

    def test_hold_unchanged_documents_too(self, corpus: Corpus) -> None:
        corpus.write(A, document("a"), document("b"))
        corpus.run("first")
        assert counts(corpus.run("second")) == {"unchanged": 2}
        assert corpus.rows("second").sort_by("chunk_id").equals(corpus.rows("first").sort_by("chunk_id"))

    def test_are_those_of_the_partitions_asked_for(self, corpus: Corpus) -> None:
        corpus.write(A, document("a"))
        corpus.write(B, document("b"))
        report = corpus.run("r", partitions=[B, "2030-01-01"])
        assert ids(corpus.rows("r")) == {"b"}
        assert report.partitions == {B: True}


class TestChanges:
    def test_each_kind_is_told_apart(self, corpus: Corpus) -> None:
        corpus.write(
            A, *(document(name) for name in ("same", "changed", "retitled", "gone")), document("moved")
        )
        corpus.write(B, document("other"))
        corpus.run("first")
        before = corpus.rows("first")
        changed = "What it says now. " * 30
        retitled = {**document("retitled"), "title": "Another title"}
        corpus.write(A, document("same"), document("changed", changed), retitled, document("added"))
        corpus.write(B, document("other"), document("moved"))
        report = corpus.run("second")
        assert counts(report) == {
            "new": 1,
            "changed": 1,
            "moved": 1,
            "metadata": 1,
            "unchanged": 2,
            "deleted": 1,
        }
        assert corpus.deleted("second") == ["gone"]
        after = corpus.rows("second")
        fresh = set(after["key"].to_pylist()) - set(before["key"].to_pylist())
        asked = {row["document_id"] for row in after.to_pylist() if row["key"] in fresh}
        assert asked == {"changed", "added"}
        kept = {row["chunk_id"] for row in before.to_pylist() if row["document_id"] in ("moved", "retitled")}
        assert kept <= set(after["chunk_id"].to_pylist())

    def test_only_what_changed_is_stored_as_chunks_again(self, corpus: Corpus) -> None:
        corpus.write(A, document("same"), document("changed"))
        corpus.run("first")
        corpus.write(A, document("same"), document("changed", "New words. " * 40))
        corpus.run("second")
        chunking = config("x").chunking.fingerprint
        parts = corpus.storage.list(f"corpora/small/chunks/{chunking}/{A}")
        assert [path.rsplit("/", 1)[1] for path in parts] == [
            "dag%2Ffirst-00.parquet",
            "dag%2Fsecond-00.parquet",
        ]
        assert ids(corpus.table(parts[0])) == {"same", "changed"}
        assert ids(corpus.table(parts[1])) == {"changed"}

    def test_a_backfill_of_an_old_partition_leaves_the_newer_version(self, corpus: Corpus) -> None:
        corpus.write(A, document("d", "The old words. " * 20))
        corpus.write(B, document("d", "The new words. " * 20))
        corpus.run("new", partitions=[B])
        report = corpus.run("backfill", partitions=[A])
        assert counts(report) == {"stale": 1}
        assert corpus.rows("backfill").num_rows == 0

    def test_a_limited_or_sampled_run_deletes_nothing(self, corpus: Corpus) -> None:
        corpus.write(A, *(document(f"d{n}") for n in range(30)))
        corpus.run("whole")
        for options in ({"limit": 3}, {"sample": 3}):
            report = corpus.run("partial", **options)
            assert report.partial
            assert counts(report) == {"unchanged": 3}
            assert corpus.deleted("partial") == []

    def test_a_sample_is_spread_and_always_the_same(self, corpus: Corpus) -> None:
        corpus.write(A, *(document(f"a{n}") for n in range(50)))
        corpus.write(B, *(document(f"b{n}") for n in range(50)))
        corpus.run("one", sample=20)
        corpus.run("two", sample=20)
        chosen = ids(corpus.rows("one"))
        assert chosen == ids(corpus.rows("two"))
        assert len(chosen) == 20
        assert {id[0] for id in chosen} == {"a", "b"}

    def test_a_source_of_changes_is_told_what_is_deleted(self, corpus: Corpus) -> None:
        corpus.source = {"mode": "changes", "fields": {"deleted": "gone"}}
        corpus.write(A, document("a"), document("b"))
        corpus.run("first")
        corpus.write(B, {"id": "a", "gone": True})
        report = corpus.run("second", partitions=[B])
        assert counts(report) == {"deleted": 1}
        assert corpus.deleted("second") == ["a"]
        assert counts(corpus.run("old again", partitions=[A])) == {"stale": 1, "unchanged": 1}


class TestBadInput:
    def test_of_every_kind_is_named_and_all_good_documents_are_there(self, corpus: Corpus) -> None:
        lines = [
            line.replace(b'"x"', f'"bad{number}"'.encode()) for number, (line, *_) in enumerate(BAD_LINES)
        ]
        good: list[dict[str, Any] | bytes] = [document(f"good{n}", f"Good text {n}.") for n in range(1000)]
        mixed = list(good)
        for number, line in enumerate(lines):
            mixed.insert(number * 20, line)
        mixed.append(document("good7", "Another text for the same id."))
        corpus.source = {"max_document_bytes": 8192}
        corpus.write(A, *mixed)
        report = corpus.run("r")
        rows = corpus.bad_input("r")
        kept = [number for number, (*_, kept) in enumerate(BAD_LINES) if kept]
        expected = {f"good{n}" for n in range(1000)} | {f"bad{number}" for number in kept}
        assert ids(corpus.rows("r")) == expected
        assert report.read == len(expected)
        assert report.mended == len(kept)
        named = {row["line"] for row in rows}
        assert named == {number * 20 + 1 for number in range(len(lines))} | {len(mixed)}
        assert all(row["file"].endswith(f"{A}.jsonl") and row["done"] and row["reason"] for row in rows)
        assert sum(report.bad_input.values()) == len(rows)
        assert report.bad_input["duplicate_id"] == 1

    def test_a_document_that_cannot_be_read_today_is_not_deleted(self, corpus: Corpus) -> None:
        corpus.write(A, document("a"), document("b"), document("c"))
        corpus.run("first")
        corpus.write(A, document("a"), b'{"id": "b", "text": ""}')
        assert corpus.run("known").deleted == 1
        assert corpus.deleted("known") == ["c"]

    def test_where_a_line_hides_who_it_is_nothing_is_deleted(self, corpus: Corpus) -> None:
        corpus.write(A, document("a"), document("b"))
        corpus.run("first")
        corpus.write(A, document("a"), b'{"id": "b", "text": ')
        report = corpus.run("hidden")
        assert report.deleted == 0
        assert report.partitions == {A: False}

    def test_too_large_a_share_stops_the_run_and_is_logged(self, corpus: Corpus) -> None:
        corpus.source = {"max_bad_share": 0.2}
        corpus.write(A, document("a"), b"{", b"[]")
        with pytest.raises(TooMuchBadInput, match=r"2 of 3 records.*bad_input\.jsonl"):
            corpus.run("r")
        assert [row["reason"] for row in corpus.bad_input("r")] == ["not_json", "not_an_object"]
        assert corpus.storage.list("runs/r/rows") == []
        assert counts(corpus.run("r", limit=1)) == {"new": 1}

    def test_a_source_without_files_is_an_error(self, corpus: Corpus) -> None:
        with pytest.raises(StorageError, match="matches no file"):
            corpus.run("r")
        corpus.write(A, document("a"))
        assert corpus.run("quiet day", partitions=[B]).read == 0


class TestKills:
    def test_a_retry_writes_and_reports_the_same(self, corpus: Corpus) -> None:
        corpus.write(A, *(document(f"d{n}") for n in range(20)), document("gone"))
        corpus.run("before")
        corpus.write(A, *(document(f"d{n}", "Other words. " * 30 if n < 5 else "") for n in range(22)))
        first = corpus.run("now")
        written = corpus.rows("now")
        parts = {path: corpus.table(path) for path in _parts(corpus)}
        assert corpus.run("now") == first
        assert corpus.rows("now").equals(written)
        assert {path: corpus.table(path) for path in _parts(corpus)} == parts

    @pytest.mark.parametrize("moment", HELD)
    def test_at_any_moment_loses_nothing(self, corpus: Corpus, ledger_url: str, moment: str) -> None:
        corpus.write(A, document("a"), document("gone"))
        corpus.run("before")
        corpus.write(A, document("a", "New words. " * 30), document("b"))
        with psycopg.connect(ledger_url, options="-c search_path=batch_inference") as holder:
            holder.execute(HELD[moment])
            process = subprocess.Popen(
                [sys.executable, "-c", PREPARE, ledger_url, corpus.storage.root, str(corpus.folder)],
                cwd=PROJECT_ROOT,
                env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
            )
            _wait_until_held(corpus.ledger, process)
            process.kill()
            assert process.wait() == -signal.SIGKILL
            holder.rollback()
        report = corpus.run("now")
        assert counts(report) == {"new": 1, "changed": 1, "deleted": 1}
        assert ids(corpus.rows("now")) == {"a", "b"}
        assert corpus.deleted("now") == ["gone"]


def _wait_until_held(ledger: Connection, process: subprocess.Popen[bytes]) -> None:
    """Until the process waits for the lock that stops it."""
    deadline = time.monotonic() + 60
    waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    while ledger.execute(waiting).fetchone() is None:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _parts(corpus: Corpus) -> list[str]:
    return corpus.storage.list(f"corpora/small/chunks/{config('x').chunking.fingerprint}/{A}")


@pytest.mark.parametrize("file", [CRANFIELD] if CRANFIELD.exists() else [])
def test_a_real_collection_comes_out_whole(
    tmp_path: Path, storage: Storage, ledger: Connection, file: Path
) -> None:
    records = [json.loads(line) for line in file.read_text().splitlines()]
    corpus = Corpus(tmp_path / "source", storage, ledger, {"fields": {"id": "_id"}})
    corpus.write(A, *records)
    report = corpus.run("r")
    usable = {record["_id"]: record["text"] for record in records if record["text"].strip()}
    assert report.read == len(usable) > 1000
    covered: dict[str, set[int]] = {}
    for row in corpus.rows("r").to_pylist():
        start, end = json.loads(row["metadata"])["span"]
        assert usable[row["document_id"]][start:end] == row["text"]
        covered.setdefault(row["document_id"], set()).update(range(start, end))
    for id, text in usable.items():
        assert covered[id] == set(range(len(text)))
