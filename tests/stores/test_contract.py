"""The contract of vector stores, run over every store there is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from include.contracts import JSON, ROW_COLUMNS, Holds, IndexSpec, Metric, VectorStore
from include.errors import BatchInferenceError, ConfigError, IndexMismatch, IndexMissing, StorageError
from include.stores.capabilities import DENIED, Capability
from tests.emulators import ROOT
from tests.stores.contract import DIMENSIONS, STORES, batch, chunk_id, needs, vectors

INDEX = "docs__1"


@pytest.fixture(params=sorted(STORES))
def kind(request: pytest.FixtureRequest) -> str:
    """The store under test; what it is denied must fail."""
    kind = str(request.param)
    needed: frozenset[Capability] = getattr(request.function, "needs", frozenset())
    denied = needed & DENIED[kind]
    if denied:
        reason = f"{kind} has no {', '.join(sorted(denied))}"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    return kind


@pytest.fixture
def open_again(kind: str, tmp_path: Path) -> Callable[[], VectorStore]:
    """Opens another client of the same store."""
    return lambda: STORES[kind](tmp_path)


@pytest.fixture
def store(open_again: Callable[[], VectorStore]) -> VectorStore:
    store = open_again()
    store.ensure(IndexSpec(INDEX, DIMENSIONS))
    return store


def all_ids(store: VectorStore) -> list[str]:
    return sorted(str(name) for table in store.ids(INDEX) for name in table.column("chunk_id").to_pylist())


class TestIndex:
    def test_is_made_once_and_found_again_by_another_client(
        self, store: VectorStore, open_again: Callable[[], VectorStore]
    ) -> None:
        store.upsert(INDEX, [batch(range(3))])
        other = open_again()
        other.ensure(IndexSpec(INDEX, DIMENSIONS))
        assert other.exists(INDEX) and other.count(INDEX) == 3

    @pytest.mark.parametrize("spec", [IndexSpec(INDEX, 9), IndexSpec(INDEX, DIMENSIONS, Metric.DOT)])
    def test_of_another_shape_is_refused_with_both_shapes_named(
        self, store: VectorStore, spec: IndexSpec
    ) -> None:
        with pytest.raises(IndexMismatch) as refused:
            store.ensure(spec)
        for part in (INDEX, str(DIMENSIONS), "cosine", str(spec.dimensions), spec.metric.value, "re-embed"):
            assert part in str(refused.value)

    def test_that_is_not_there_is_a_clear_error_in_every_call(self, store: VectorStore) -> None:
        assert not store.exists("nothing")
        calls: list[Callable[[], object]] = [
            lambda: store.upsert("nothing", [batch([1])]),
            lambda: store.set_metadata("nothing", batch([1]).select(["chunk_id", "metadata", "stamp"])),
            lambda: store.delete("nothing", [chunk_id(1)]),
            lambda: store.fetch("nothing", [chunk_id(1)]),
            lambda: list(store.ids("nothing")),
            lambda: list(store.ids_of("nothing", pa.array(["doc-0"]))),
            lambda: store.count("nothing"),
            lambda: store.search("nothing", vectors(1)[0], 1),
        ]
        for call in calls:
            with pytest.raises(IndexMissing, match="nothing"):
                call()

    def test_can_be_dropped_twice_and_made_anew(self, store: VectorStore) -> None:
        store.upsert(INDEX, [batch(range(3))])
        store.drop(INDEX)
        store.drop(INDEX)
        assert not store.exists(INDEX)
        store.ensure(IndexSpec(INDEX, 4, Metric.L2))
        assert store.count(INDEX) == 0

    def test_dropped_by_another_client_is_missing_here_too(
        self, store: VectorStore, open_again: Callable[[], VectorStore]
    ) -> None:
        open_again().drop(INDEX)
        assert not store.exists(INDEX)
        store.ensure(IndexSpec(INDEX, DIMENSIONS))
        store.upsert(INDEX, [batch([1])])
        assert store.count(INDEX) == 1


class TestUpsert:
    @needs(Capability.EXACT_VECTORS)
    def test_gives_back_what_it_was_given(self, store: VectorStore) -> None:
        given = batch(range(5))
        store.upsert(INDEX, [given])
        found = store.fetch(INDEX, [chunk_id(number) for number in (*range(5), 99)])
        assert found.schema.names == list(ROW_COLUMNS)
        by_id = {row["chunk_id"]: row for row in found.to_pylist()}
        for row in given.to_pylist():
            back = by_id[row["chunk_id"]]
            assert json.loads(back.pop("metadata")) == json.loads(row.pop("metadata"))
            assert back == row
        assert len(by_id) == 5

    def test_of_the_same_rows_changes_nothing_and_of_new_ones_overwrites(self, store: VectorStore) -> None:
        store.upsert(INDEX, [batch(range(10), seed=1)])
        store.upsert(INDEX, [batch(range(10), seed=1)])
        store.upsert(INDEX, [batch(range(5, 15), seed=2, metadata=lambda number: {"again": True})])
        assert all_ids(store) == sorted(chunk_id(number) for number in range(15))
        row = store.fetch(INDEX, [chunk_id(7)]).to_pylist()[0]
        assert json.loads(row["metadata"]) == {"again": True}
        assert np.allclose(row["vector"], vectors(10, seed=2)[2])

    def test_takes_rows_that_the_caller_knows_to_be_new_or_to_replace_others(
        self, store: VectorStore
    ) -> None:
        store.upsert(INDEX, [batch(range(5)), batch(range(5, 10))], holds="nothing")
        store.upsert(INDEX, [batch(range(10))])
        store.upsert(INDEX, [batch([7, 2], seed=3), batch([3], seed=3)], holds="others")
        assert all_ids(store) == sorted(chunk_id(number) for number in range(10))
        found = {row["chunk_id"]: row for row in store.fetch(INDEX, all_ids(store)).to_pylist()}
        stamps = {number: found[chunk_id(number)]["stamp"] for number in range(10)}
        assert stamps == {number: number + (3 if number in (7, 2, 3) else 0) for number in range(10)}
        assert np.allclose(found[chunk_id(2)]["vector"], vectors(2, seed=3)[1])

    def test_of_nothing_changes_nothing(self, store: VectorStore) -> None:
        store.upsert(INDEX, [])
        store.upsert(INDEX, [batch([1]), batch([2]).slice(0, 0)], holds="nothing")
        assert all_ids(store) == [chunk_id(1)]

    @pytest.mark.parametrize("holds", ["anything", "nothing", "others"])
    def test_raises_what_its_rows_raise(self, store: VectorStore, holds: Holds) -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            yield batch(range(3))
            raise StorageError("the results are gone")

        with pytest.raises(StorageError, match="the results are gone"):
            store.upsert(INDEX, rows(), holds=holds)
        assert store.count(INDEX) == 0

    def test_keeps_metadata_of_every_json_type(self, store: VectorStore) -> None:
        metadata: dict[str, object] = {
            "text": 'it\'s "quoted" \\ \n\x00 é 你好 🎉',
            "number": -7,
            "wide": 2**62 + 1,
            "fraction": 1.5,
            "yes": True,
            "none": None,
            "heading": ["a", {"b": []}],
            "dotted.name": "x",
        }
        store.upsert(INDEX, [batch([1], metadata=lambda _: metadata)])
        assert json.loads(store.fetch(INDEX, [chunk_id(1)])["metadata"][0].as_py()) == metadata

    @needs(Capability.BIG_INTEGERS)
    def test_keeps_integers_beyond_64_bits(self, store: VectorStore) -> None:
        store.upsert(INDEX, [batch([1], metadata=lambda _: {"big": 10**30})])
        assert json.loads(store.fetch(INDEX, [chunk_id(1)])["metadata"][0].as_py()) == {"big": 10**30}

    def test_sets_metadata_and_its_stamp_alone_and_only_of_chunks_that_are_there(
        self, store: VectorStore
    ) -> None:
        store.upsert(INDEX, [batch(range(3))])
        before = store.fetch(INDEX, [chunk_id(1)]).to_pylist()[0]
        changed = batch([1, 99], seed=7, metadata=lambda number: {"title": "new"})
        store.set_metadata(INDEX, changed.select(["chunk_id", "metadata", "stamp"]))
        after = store.fetch(INDEX, [chunk_id(1)]).to_pylist()[0]
        assert json.loads(after["metadata"]) == {"title": "new"}
        assert after == {**before, "metadata": after["metadata"], "stamp": 1 + 7}
        assert store.count(INDEX) == 3

    @needs(Capability.PARALLEL_WRITERS)
    def test_by_several_processes_at_once_leaves_each_row_once(
        self, store: VectorStore, kind: str, tmp_path: Path
    ) -> None:
        command = [sys.executable, "-m", "tests.stores.writer", kind, str(tmp_path), INDEX]
        ready, go = tmp_path / "ready", tmp_path / "go"
        ready.mkdir()
        writers = [
            subprocess.Popen([*command, str(number), str(ready), str(go)], cwd=ROOT) for number in range(3)
        ]
        while len(list(ready.iterdir())) < 3:
            assert all(writer.poll() is None for writer in writers)
        go.touch()
        assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
        ids = all_ids(store)
        assert len(ids) == len(set(ids)) == 300 + 3 * 300

    def test_survives_compaction(self, store: VectorStore) -> None:
        for start in range(0, 50, 5):
            store.upsert(INDEX, [batch(range(start, start + 5))])
        store.delete(INDEX, [chunk_id(3)])
        store.compact(INDEX)
        store.upsert(INDEX, [batch(range(10))])
        assert all_ids(store) == sorted(chunk_id(number) for number in range(50))


class TestDelete:
    def test_takes_away_what_is_named_and_nothing_else(self, store: VectorStore) -> None:
        store.upsert(INDEX, [batch(range(10))])
        store.delete(INDEX, [chunk_id(number) for number in (1, 2, 99)])
        store.delete(INDEX, [])
        assert all_ids(store) == sorted(chunk_id(number) for number in (0, *range(3, 10)))

    def test_of_more_ids_than_one_call_of_the_store_takes(self, store: VectorStore) -> None:
        store.upsert(INDEX, [batch(range(12_000))])
        store.delete(INDEX, [chunk_id(number) for number in range(11_000)])
        assert store.count(INDEX) == 1_000
        assert store.fetch(INDEX, [chunk_id(number) for number in range(12_000)]).num_rows == 1_000


class TestIds:
    def test_are_found_by_document_however_many_there_are(self, store: VectorStore) -> None:
        store.upsert(INDEX, [batch(range(9000), document=lambda number: f"it's {number // 3}")])
        for count in (0, 1, 2999):
            documents = pa.array([f"it's {number}" for number in range(count)], pa.string())
            found = [row for part in store.ids_of(INDEX, documents) for row in part.to_pylist()]
            assert sorted(found, key=lambda row: row["stamp"]) == [
                {"chunk_id": chunk_id(number), "document_id": f"it's {number // 3}", "stamp": number}
                for number in range(count * 3)
            ]
        assert sum(table.num_rows for table in store.ids(INDEX)) == store.count(INDEX) == 9000


class TestSearch:
    @needs(Capability.EXACT_SEARCH)
    @pytest.mark.parametrize("metric", list(Metric))
    def test_finds_the_nearest_by_the_index_s_own_metric(self, store: VectorStore, metric: Metric) -> None:
        values, question = vectors(500, seed=3), vectors(1, seed=4)[0]
        name = f"by_{metric.value}"
        store.ensure(IndexSpec(name, DIMENSIONS, metric))
        store.upsert(name, [batch(range(500), values=values)])
        dots = values @ question
        scores = {
            Metric.DOT: dots,
            Metric.COSINE: dots / np.linalg.norm(values, axis=1) / np.linalg.norm(question),
            Metric.L2: -np.linalg.norm(values - question, axis=1),
        }[metric]
        best = np.argsort(-scores)[:10]
        hits = store.search(name, question, 10)
        assert [hit.chunk_id for hit in hits] == [chunk_id(int(number)) for number in best]
        assert np.allclose([hit.score for hit in hits], scores[best], atol=1e-5)
        assert (hits[0].text, hits[0].document_id) == (f"text of {best[0]}", f"doc-{best[0] // 3}")
        assert hits[0].metadata == {"position": int(best[0])}

    @needs(Capability.TYPED_FILTER)
    @pytest.mark.parametrize(
        ("wanted", "numbers"),
        [
            ({"kind": 'it\'s "a"'}, {0}),
            ({"kind": "1"}, {1}),
            ({"kind": 1}, {2, 3}),
            ({"kind": True}, {4}),
            ({"kind": 0.5}, {5}),
            ({"kind": "true"}, set()),
            ({"dotted.kind": "x"}, {0, 1, 2, 3, 4, 5, 6}),
            ({"dotted.kind": "x", "kind": 2**60 + 1}, {6}),
            ({"missing": "x"}, set()),
        ],
    )
    def test_filters_by_metadata_and_its_type(
        self, store: VectorStore, wanted: dict[str, object], numbers: set[int]
    ) -> None:
        kinds = ['it\'s "a"', "1", 1, 1.0, True, 0.5, 2**60 + 1]
        store.upsert(
            INDEX, [batch(range(7), metadata=lambda number: {"kind": kinds[number], "dotted.kind": "x"})]
        )
        hits = store.search(INDEX, vectors(1)[0], 10, wanted)  # type: ignore[arg-type]
        assert {hit.chunk_id for hit in hits} == {chunk_id(number) for number in numbers}

    @pytest.mark.parametrize(
        ("wanted", "numbers"),
        [
            ({"tags": "a"}, {0, 2}),
            ({"tags": 'it\'s "b"'}, {0}),
            ({"dotted.tags": "c"}, {1}),
            ({"tags": "A"}, set()),
        ],
    )
    def test_filters_by_one_text_of_a_list(
        self, store: VectorStore, wanted: dict[str, JSON], numbers: set[int]
    ) -> None:
        tags = [{"tags": ["a", 'it\'s "b"']}, {"tags": [], "dotted.tags": ["c"]}, {"tags": "a"}, {}]
        store.upsert(INDEX, [batch(range(4), metadata=lambda number: tags[number])])
        hits = store.search(INDEX, vectors(1)[0], 10, wanted)
        assert {hit.chunk_id for hit in hits} == {chunk_id(number) for number in numbers}

    @pytest.mark.parametrize(
        "text", ["", "tab\tand\nline", "\x01\x7f", "ünï 漢字 🦦", "back\\slash/", "null", "[1]"]
    )
    def test_filters_by_any_text(self, store: VectorStore, text: str) -> None:
        told = [{"kind": text}, {"kind": [text, "b"]}, {"kind": text + "x"}, {"kind": {"a": text}}]
        store.upsert(INDEX, [batch(range(4), metadata=lambda number: told[number])])
        hits = store.search(INDEX, vectors(1)[0], 10, {"kind": text})
        assert {hit.chunk_id for hit in hits} == {chunk_id(0), chunk_id(1)}

    @needs(Capability.EXACT_SEARCH)
    def test_with_a_filter_still_gives_k_hits(self, store: VectorStore) -> None:
        store.upsert(INDEX, [batch(range(2000), metadata=lambda number: {"rare": number % 100 == 7})])
        assert len(store.search(INDEX, vectors(1)[0], 20, {"rare": True})) == 20

    @pytest.mark.parametrize(("vector", "filter"), [(vectors(1, 9)[0], None), (vectors(1)[0], {"a": ["b"]})])
    def test_refuses_what_it_cannot_answer(
        self, store: VectorStore, vector: np.ndarray, filter: dict[str, object] | None
    ) -> None:
        store.upsert(INDEX, [batch([1])])
        with pytest.raises(BatchInferenceError) as refused:
            store.search(INDEX, vector, 1, filter)  # type: ignore[arg-type]
        assert isinstance(refused.value, IndexMismatch | ConfigError)
