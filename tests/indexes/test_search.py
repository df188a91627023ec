"""A reader asks the live index, and a golden set says how well it answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from include.contracts import Vector
from include.errors import ConfigError, IndexMissing
from include.indexes.live import LivePointer, write_pointer
from include.indexes.search import GoldenQuestion, evaluate, load_golden, search
from tests.indexes.test_publish import pointer
from tests.indexes.world import CORPUS, VERSION, Document, World, vector_of


@pytest.fixture
def live(world: World) -> World:
    """An index that answers: each text is its own best question."""
    texts = [f"text {number}" for number in range(20)]
    world.land(texts)
    world.upsert(
        world.prepare("first", [Document(f"d{n}", [text], title=f"t{n % 2}") for n, text in enumerate(texts)])
    )
    write_pointer(world.storage, CORPUS, pointer())
    return world


def embed(pointer: LivePointer, questions: Sequence[str]) -> list[Vector]:
    assert pointer.model == f"model of {VERSION}"
    return [vector_of(question) for question in questions]


def test_a_question_goes_to_the_index_the_pointer_names(live: World) -> None:
    hits = search(live.storage, CORPUS, vector_of("text 7"), 3, store=live.store)
    assert (hits[0].document_id, hits[0].text, len(hits)) == ("d7", "text 7", 3)
    assert hits[0].score == pytest.approx(1.0)


def test_a_question_is_embedded_with_the_model_the_pointer_names(live: World) -> None:
    hits = search(
        live.storage,
        CORPUS,
        lambda pointer: embed(pointer, ["text 3"])[0],
        1,
        {"title": "t1"},
        store=live.store,
    )
    assert [hit.document_id for hit in hits] == ["d3"]


def test_nothing_is_found_while_nothing_is_published(world: World) -> None:
    with pytest.raises(IndexMissing):
        search(world.storage, CORPUS, vector_of("x"))


def test_recall_is_the_mean_share_of_what_must_be_found(live: World) -> None:
    golden = [
        GoldenQuestion("text 1", frozenset({"d1"})),
        GoldenQuestion("text 2", frozenset({"d2", "nowhere"})),
        GoldenQuestion("text 3", frozenset({"nowhere"})),
        GoldenQuestion("text 4", topic="not a topic"),
    ]
    recall = evaluate(pointer(), golden, embed, k=1, store=live.store)
    assert (recall.questions, recall.k, recall.recall) == (4, 1, 1.5 / 4)
    assert recall.missed == ("text 2", "text 3", "text 4")


def test_a_golden_set_is_read_and_its_bad_line_named(tmp_path: Path) -> None:
    file = tmp_path / "golden.jsonl"
    rows = [{"question": "a", "topic": "x"}, {"question": "b", "document_ids": ["1"]}]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert [question.topic for question in load_golden(file)] == ["x", None]
    for bad in ('{"question": "c"}', "[1]", "not JSON"):
        file.write_text(json.dumps(rows[0]) + "\n" + bad)
        with pytest.raises(ConfigError, match="line 2"):
            load_golden(file)
