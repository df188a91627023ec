"""Before publishing, the index is what the document table says, or it's repaired, or it isn't published."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from include.contracts import row_schema
from include.errors import IndexMissing, PublishRefused, ReadBackFailed
from include.indexes.verify import VerifyReport, verify
from tests.indexes.world import CORPUS, DIMENSIONS, VERSION, Document, World, chunk_id, vector_of


def check(world: World, run: str = "first") -> VerifyReport:
    rows = [path for path in world.storage.list(f"{world.run(run).uri}/rows", ".parquet") if "range-" in path]
    return verify(world.ledger, world.storage, world.store, corpus=CORPUS, version=VERSION, rows=rows)


def put(world: World, document: str, text: str, vector: np.ndarray | None = None) -> None:
    """Write a chunk behind the project's back."""
    values = vector_of(text) if vector is None else vector
    row = {
        "chunk_id": chunk_id(document, text),
        "document_id": document,
        "text": text,
        "metadata": "{}",
        "stamp": 0,
    }
    rows = pa.Table.from_pylist([{**row, "vector": values.tolist()}], row_schema(DIMENSIONS))
    world.store.upsert(VERSION, rows.to_batches(), holds="nothing")


def filled(world: World) -> World:
    world.land(["one", "two", "three"])
    world.upsert(world.prepare("first", [Document("a", ["one", "two"]), Document("b", ["three"])]))
    return world


def test_an_index_that_is_as_it_must_be_passes(world: World) -> None:
    assert check(filled(world)) == VerifyReport(held=3, expected=3)


def test_documents_of_earlier_runs_are_expected_too(world: World) -> None:
    filled(world)
    world.upsert(world.prepare("second", [Document("c", ["one"], partition="all")]))
    assert check(world, "second") == VerifyReport(held=4, expected=4)


def test_ids_of_no_document_of_deleted_ones_and_of_older_versions_are_removed(world: World) -> None:
    filled(world)
    put(world, "unknown", "one")
    put(world, "a", "older")
    world.forget(["b"])
    assert check(world) == VerifyReport(held=2, expected=2, removed=3)
    assert world.held() == {"a": {"one", "two"}}


def test_a_document_that_has_no_chunks_any_more_leaves_none(world: World) -> None:
    filled(world)
    world.prepare("second", [Document("b", [])])
    assert check(world, "second").removed == 1
    assert world.held() == {"a": {"one", "two"}}


def test_a_chunk_lost_although_it_is_paid_for_stops_the_publishing(world: World) -> None:
    filled(world)
    world.store.delete(VERSION, [chunk_id("a", "two")])
    with pytest.raises(PublishRefused, match=r"lacks 1 .*upsert"):
        check(world)
    world.upsert(world.run("first"))
    assert check(world).held == 3


def test_a_chunk_that_is_there_twice_loses_a_copy_and_the_next_upsert_puts_it_right(world: World) -> None:
    before = filled(world).rows()
    put(world, "a", "two")
    assert check(world) == VerifyReport(held=3, expected=3, removed=1)
    assert set(world.rows()) == set(before)
    world.upsert(world.run("first"))
    assert world.rows() == before


def test_a_chunk_without_a_result_waits_and_keeps_its_document_s_old_ones(world: World) -> None:
    filled(world)
    world.upsert(world.prepare("second", [Document("a", ["one", "new"])]))
    assert check(world, "second") == VerifyReport(held=3, expected=3, waiting=1, unaccounted=1)
    assert world.held()["a"] == {"one", "two"}
    world.bury("new", "permanent")
    assert check(world, "second") == VerifyReport(held=2, expected=3, waiting=1, removed=1)
    assert world.held()["a"] == {"one"}


def test_a_document_whose_chunks_are_not_stored_is_left_alone(world: World) -> None:
    filled(world)
    world.know([Document("a", ["elsewhere"])])
    assert check(world) == VerifyReport(held=3, expected=1, unjudged=1)
    assert world.held()["a"] == {"one", "two"}


def test_vectors_that_are_not_finite_or_zero_are_refused(world: World) -> None:
    filled(world)
    world.know([Document("c", ["zero"])])
    put(world, "c", "zero", np.zeros(DIMENSIONS, np.float32))
    with pytest.raises(ReadBackFailed, match="zero or not finite"):
        check(world)


def test_an_index_that_is_not_there_is_refused(world: World) -> None:
    with pytest.raises(IndexMissing):
        check(world)
