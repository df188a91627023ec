"""Upsert brings what is current and has a result, and takes out what that replaces, whatever happens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pytest

from include.contracts import IndexSpec
from include.errors import IndexMismatch, StorageError
from include.indexes import versions
from tests.emulators import ROOT
from tests.indexes.world import DIMENSIONS, VERSION, Document, World, chunk_id, vector_of

TITLED = Document("a", ["one", "two"], title="new")


class TestRows:
    def test_go_in_with_text_metadata_and_their_own_vector(self, world: World) -> None:
        run = world.prepare("first", [Document("a", ["one", "two"]), Document("b", ["three", "one"])])
        world.land(["one", "two"])
        world.land(["three"])
        report = world.upsert(run)
        assert (report.rows, report.upserted, report.no_result, report.deleted) == (4, 4, 0, 0)
        assert world.held() == {"a": {"one", "two"}, "b": {"three", "one"}}
        row = world.rows()[chunk_id("b", "one")]
        assert np.array_equal(np.array(row["vector"], np.float32), vector_of("one"))
        assert json.loads(row["metadata"]) == {"title": "title", "position": 1}

    def test_come_back_whole_when_the_index_was_dropped(self, world: World) -> None:
        run = world.prepare("first", [Document(f"d{n}", [f"{n} a", f"{n} b"]) for n in range(50)])
        world.land([f"{n} {part}" for n in range(50) for part in "ab"])
        world.upsert(run)
        before = world.rows()
        world.store.drop(VERSION)
        assert world.upsert(run).upserted == 100
        assert world.rows() == before

    def test_again_change_nothing(self, world: World) -> None:
        run = world.prepare("first", [Document("a", ["one", "two"])])
        world.land(["one", "two"])
        first = world.upsert(run)
        before = world.rows()
        assert world.upsert(run) == replace(first, kept=2)
        assert world.rows() == before

    def test_take_the_newest_landed_of_several_answers(self, world: World) -> None:
        run = world.prepare("first", [Document("a", ["one"])])
        world.land(["one"], again=1, at=datetime(2026, 1, 2, tzinfo=UTC))
        world.land(["one"], again=2, at=datetime(2026, 1, 3, tzinfo=UTC))
        world.land(["one"], again=3, at=datetime(2026, 1, 1, tzinfo=UTC))
        world.upsert(run)
        assert np.allclose(world.rows()[chunk_id("a", "one")]["vector"], vector_of("one", again=2))

    def test_of_an_empty_range_are_no_error(self, world: World) -> None:
        assert world.upsert(world.prepare("first", [])).rows == 0
        assert world.store.count(VERSION) == 0

    def test_known_twice_by_the_index_are_written_anew(self, world: World) -> None:
        run = world.prepare("first", [Document("a", ["one", "two"])])
        world.land(["one", "two"])
        world.upsert(run)
        row = world.store.fetch(VERSION, [chunk_id("a", "one")])
        world.store.upsert(VERSION, row.to_batches(), holds="nothing")
        assert world.store.count(VERSION) == 3
        world.upsert(run)
        assert world.held() == {"a": {"one", "two"}}


class TestRowsThatTheIndexHoldsAlready:
    """Nights over millions of unchanged rows don't write them again; whatever differs is written."""

    def first(self, world: World) -> None:
        world.land(["one", "two"], at=datetime(2026, 1, 2, tzinfo=UTC))
        world.upsert(world.prepare("first", [Document("a", ["one", "two"])]))

    def writes(self, world: World, tmp_path: Path) -> int:
        """How often the index was written to."""
        return int(lancedb.connect(f"{tmp_path}/lancedb").open_table(VERSION).version)

    def test_are_not_written_again(self, world: World, tmp_path: Path) -> None:
        self.first(world)
        before = self.writes(world, tmp_path)
        report = world.upsert(world.prepare("second", [Document("a", ["one", "two"])]))
        assert (report.upserted, report.kept) == (2, 2)
        assert self.writes(world, tmp_path) == before

    def test_are_written_where_they_are_gone(self, world: World) -> None:
        self.first(world)
        before = world.rows()
        world.store.delete(VERSION, [chunk_id("a", "two")])
        assert world.upsert(world.run("first")).kept == 1
        assert world.rows() == before

    @pytest.mark.parametrize(
        "change",
        [
            # The run between them died before its upsert: to the third one the document is unchanged.
            pytest.param(lambda world: world.prepare("second", [TITLED]), id="metadata of a run that died"),
            pytest.param(
                lambda world: world.land(["one"], again=1, at=datetime(2026, 1, 3, tzinfo=UTC)),
                id="a newer answer",
            ),
        ],
    )
    def test_are_written_where_they_are_to_be_otherwise(
        self, world: World, change: Callable[[World], object]
    ) -> None:
        self.first(world)
        change(world)
        world.upsert(world.prepare("third", [TITLED]))
        world.build("docs__2")
        world.upsert(world.run("third"), "docs__2")
        assert world.rows() == world.rows("docs__2")

    def test_are_written_where_only_their_text_is_another(self, world: World) -> None:
        self.first(world)
        run = world.run("first")
        for path in world.storage.list(f"{run.uri}/rows", ".parquet"):
            if "range" in path:
                with world.storage.parquet_file(path) as file:
                    table = file.read()
                hidden = pa.array(
                    [text.as_py().replace("one", "<name>") for text in table["text"]], pa.string()
                )
                place = table.schema.get_field_index("text")
                world.storage.write_parquet(path, table.set_column(place, table.schema.field(place), hidden))
        assert world.upsert(run).kept == 1
        assert world.held() == {"a": {"<name>", "two"}}


class TestTheNewestTruth:
    def test_replaces_changed_chunks_and_keeps_the_others(self, world: World) -> None:
        first = world.prepare("first", [Document("a", ["one", "two"]), Document("b", ["three"])])
        world.land(["one", "two", "three"])
        world.upsert(first)
        second = world.prepare("second", [Document("a", ["one", "new"]), Document("b", ["three"])])
        world.land(["new"])
        assert world.upsert(second).deleted == 1
        assert world.held() == {"a": {"one", "new"}, "b": {"three"}}

    def test_is_not_overwritten_by_a_run_that_returns_late(self, world: World) -> None:
        late = world.prepare("late", [Document("a", ["old"]), Document("b", ["three"])])
        newer = world.prepare("newer", [Document("a", ["new"])])
        world.land(["old", "new", "three"])
        world.upsert(newer)
        report = world.upsert(late)
        assert (report.stale, report.upserted, report.deleted) == (1, 1, 0)
        assert world.held() == {"a": {"new"}, "b": {"three"}}

    def test_of_metadata_is_not_overwritten_either(self, world: World) -> None:
        late = world.prepare("late", [Document("a", ["one"], title="old")])
        newer = world.prepare("newer", [Document("a", ["one"], title="new")])
        world.land(["one"])
        world.upsert(newer)
        assert world.upsert(late).stale == 1
        assert json.loads(world.rows()[chunk_id("a", "one")]["metadata"])["title"] == "new"

    def test_of_metadata_alone_goes_in(self, world: World) -> None:
        world.land(["one"])
        world.upsert(world.prepare("first", [Document("a", ["one"], title="old")]))
        world.upsert(world.prepare("second", [Document("a", ["one"], title="new")]))
        assert json.loads(world.rows()[chunk_id("a", "one")]["metadata"])["title"] == "new"

    def test_takes_deleted_documents_out(self, world: World) -> None:
        world.land(["one", "two", "three"])
        world.upsert(world.prepare("first", [Document(name, [text]) for name, text in TWO]))
        second = world.prepare("second", [Document("b", ["two"])], deleted=["a"])
        assert world.upsert(second).deleted == 1
        assert world.held() == {"b": {"two"}}

    def test_does_not_revive_a_document_deleted_in_flight(self, world: World) -> None:
        run = world.prepare("first", [Document("a", ["one"]), Document("b", ["two"])])
        world.land(["one", "two"])
        world.forget(["a"])
        assert world.upsert(run).stale == 1
        assert world.held() == {"b": {"two"}}

    def test_takes_out_what_was_deleted_while_its_rows_were_on_their_way(self, world: World) -> None:
        world.land(["one", "two"])
        world.upsert(world.prepare("first", [Document("a", ["one"])]))
        second = world.prepare("second", [Document("a", ["one"])])
        world.forget(["a"])
        assert world.upsert(second).deleted == 1
        assert world.held() == {}

    def test_keeps_a_document_that_came_back_after_a_run_saw_it_deleted(self, world: World) -> None:
        world.land(["one"])
        world.upsert(world.prepare("first", [Document("a", ["one"])]))
        late = world.prepare("late", [], deleted=["a"])
        world.prepare("newer", [Document("a", ["one"])])
        assert world.upsert(late).deleted == 0
        assert world.held() == {"a": {"one"}}


TWO = (("a", "one"), ("b", "two"))


class TestARequestThatFailed:
    def change(self, world: World) -> None:
        world.land(["old 1", "old 2"])
        world.upsert(world.prepare("first", [Document("a", ["old 1", "old 2"])]))
        world.prepare("second", [Document("a", ["new 1", "new 2"])])
        world.land(["new 1"])

    def test_leaves_the_old_chunks_beside_the_new_ones(self, world: World) -> None:
        self.change(world)
        report = world.upsert(world.run("second"))
        assert (report.upserted, report.no_result, report.incomplete, report.deleted) == (1, 1, 1, 0)
        assert world.held() == {"a": {"old 1", "old 2", "new 1"}}

    def test_and_is_answered_later_completes_its_document(self, world: World) -> None:
        self.change(world)
        world.upsert(world.run("second"))
        world.land(["new 2"])
        assert world.upsert(world.run("second")).deleted == 2
        assert world.held() == {"a": {"new 1", "new 2"}}

    @pytest.mark.parametrize("cls", ["retryable", "account"])
    def test_and_will_be_asked_again_still_keeps_the_old_chunks(self, world: World, cls: str) -> None:
        self.change(world)
        world.bury("new 2", cls)
        assert world.upsert(world.run("second")).deleted == 0

    @pytest.mark.parametrize("state", ["open", "discarded"])
    def test_for_good_does_not_keep_text_that_its_document_no_longer_has(
        self, world: World, state: str
    ) -> None:
        self.change(world)
        world.bury("new 2", "permanent", state)
        report = world.upsert(world.run("second"))
        assert (report.no_result, report.incomplete, report.deleted) == (1, 0, 2)
        assert world.held() == {"a": {"new 1"}}


class TestRefusals:
    def test_an_index_of_another_shape(self, world: World) -> None:
        run = world.prepare("first", [Document("a", ["one"])])
        world.land(["one"])
        world.store.ensure(IndexSpec(VERSION, DIMENSIONS + 1))
        with pytest.raises(IndexMismatch):
            world.upsert(run)

    def test_results_of_another_width(self, world: World) -> None:
        world.ledger.execute("update index_versions set dimensions = 9")
        run = world.prepare("first", [Document("a", ["one"])])
        world.land(["one"])
        with pytest.raises(IndexMismatch, match=r"results.*8 dimensions and the index 9"):
            world.upsert(run, dimensions=9)

    def test_a_run_of_another_width(self, world: World) -> None:
        with pytest.raises(IndexMismatch, match="new run"):
            world.upsert(world.prepare("first", []), dimensions=9)

    def test_rows_that_are_not_there(self, world: World) -> None:
        with pytest.raises(StorageError, match="range-00"):
            world.upsert(world.run("never"))


def test_killed_at_any_moment_and_run_again_gives_the_undisturbed_index(
    world: World, ledger_url: str, tmp_path: Path
) -> None:
    world.ranges = 1
    documents = [Document(f"d{n}", [f"{n} old {part}" for part in range(3)]) for n in range(400)]
    world.land(text for document in documents for text in document.chunks)
    first = world.prepare("first", documents)
    world.upsert(first)
    changed = [Document(d.name, [d.chunks[0], f"{d.name} new", f"{d.name} more"]) for d in documents]
    added = [Document(f"e{n}", [f"e{n} {part}" for part in range(3)]) for n in range(400)]
    world.land(text for document in [*changed, *added] for text in document.chunks)
    second = world.prepare("second", [*changed[50:], *added], deleted=[d.name for d in documents[:50]])
    world.build("docs__2")
    world.upsert(first, "docs__2")
    world.upsert(second, "docs__2")

    command = [sys.executable, "-m", "tests.indexes.upsert_process", ledger_url, world.storage.root]
    killed = 0
    for seen in (1300, 2200, 3050):  # while new rows go in, and just before old ones go
        process = subprocess.Popen([*command, f"file://{tmp_path}/lancedb", "second", "100"], cwd=ROOT)
        while process.poll() is None and world.store.count(VERSION) < seen:
            pass
        process.kill()
        killed += process.wait() == -signal.SIGKILL
    assert killed >= 2
    world.upsert(second, batch_rows=100)
    assert world.rows() == world.rows("docs__2")
    assert versions.get(world.ledger, VERSION).state == "building"


def test_of_two_runs_over_the_same_documents_at_once_the_newest_truth_stands(
    world: World, ledger_url: str, tmp_path: Path
) -> None:
    documents = [Document(f"d{n}", [f"{n} old"]) for n in range(500)]
    world.land(text for document in documents for text in document.chunks)
    world.prepare("late", documents)
    newest = [Document(d.name, [f"{d.name} new"]) for d in documents[:250]]
    world.land(text for document in newest for text in document.chunks)
    world.prepare("newer", newest)
    command = [sys.executable, "-m", "tests.indexes.upsert_process", ledger_url, world.storage.root]
    processes = [
        subprocess.Popen([*command, f"file://{tmp_path}/lancedb", run, "50"], cwd=ROOT)
        for run in ("late", "newer", "late")
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    assert world.held() == {d.name: set(d.chunks) for d in (*newest, *documents[250:])}
