"""What changed is sent and nothing else; the newest truth stands, whatever comes late. As the emulator's
books and the index's rows have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from include.batches import runs
from include.corpora.config import load_corpus
from include.indexes.search import search
from include.requests.keys import item_key
from include.workloads import steps
from include.workloads.plan import Plan
from tests.workloads.conftest import YAML, World

DATED = YAML.replace("overlap: 8", "overlap: 0").replace(
    '*.jsonl"}', '*.jsonl", partition: "[0-9-]{10}", metadata: [topic]}'
)
OLD, NEW = "2026-01-01", "2026-01-02"


def paragraph(name: str) -> str:
    """Some 50 tokens, so that no two go into one chunk of 60."""
    return f"{name} " + "says what it has to say in so many words, " * 5 + "\n\n"


def document(id: str, *names: str, **more: Any) -> dict[str, Any]:
    """A document of a paragraph for each name, each of which is a chunk."""
    return {"id": id, "title": f"About {id}", "text": "".join(map(paragraph, names)), **more}


def chunks(world: World, ref: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """The index's rows by document and by the name of their paragraph."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in world.rows(ref):
        name = row["text"].split()[0]
        assert row["text"] == paragraph(name)
        assert name not in found.setdefault(row["document_id"], {})
        found[row["document_id"]][name] = row
    return found


@pytest.fixture
def dated(world: World) -> World:
    """A world whose files are its partitions, a paragraph a chunk."""
    world.configure(DATED)
    return world


def asked(world: World, *names: str) -> dict[str, int]:
    """The charges that these paragraphs make, once each."""
    space = load_corpus(world.corpora / "letters.yaml").space("emulator").id
    return {item_key(space, paragraph(name)).hex(): 1 for name in names}


def test_exactly_what_changed_and_what_is_new_is_sent(dated: World) -> None:
    dated.put(
        OLD,
        document("changed", "c1", "c2", "c3"),
        document("moved", "m1", "m2"),
        document("shuffled", "s1", "s2", "s3"),
        document("gone", "g1"),
        document("retitled", "r1", "r2", topic="old"),
        document("same", "x1"),
    )
    dated.put(NEW, document("other", "o1"))
    ref, ranges = dated.begin()
    dated.send(ref)
    dated.end(ref, ranges)
    first = ["c1", "c2", "c3", "m1", "m2", "s1", "s2", "s3", "g1", "r1", "r2", "x1", "o1"]
    assert dated.charges() == asked(dated, *first)
    before = chunks(dated, ref)

    dated.put(
        OLD,
        document("changed", "c1", "c4", "c3"),
        document("shuffled", "s3", "s1", "s2"),
        {**document("retitled", "r1", "r2", topic="new"), "title": "Another title"},
        document("same", "x1"),
        document("added", "a1", "a2"),
    )
    dated.put(NEW, document("other", "o1"), document("moved", "m1", "m2"))
    ref, ranges = dated.begin()
    dated.send(ref)
    report = dated.end(ref, ranges)
    assert dated.charges() == asked(dated, *first, "c4", "a1", "a2")
    assert report.requests_sent == 3
    with dated.services.ledger() as ledger:
        assert runs.get(ledger, ref.run).counts["estimate"]["tokens"] == report.input_tokens > 100

    after = chunks(dated, ref)
    assert {id: set(found) for id, found in after.items()} == {
        "changed": {"c1", "c4", "c3"},
        "moved": {"m1", "m2"},
        "shuffled": {"s1", "s2", "s3"},
        "retitled": {"r1", "r2"},
        "same": {"x1"},
        "added": {"a1", "a2"},
        "other": {"o1"},
    }
    for id, found in before.items():
        for name in set(found) & set(after.get(id, {})):
            assert found[name]["chunk_id"] == after[id][name]["chunk_id"]
            assert found[name]["vector"] == after[id][name]["vector"]
    told = {id: {name: row["metadata"] for name, row in found.items()} for id, found in after.items()}
    assert {row["title"] for row in told["retitled"].values()} == {"Another title"}
    assert {row["topic"] for row in told["retitled"].values()} == {"new"}
    assert {row["partition"] for row in told["moved"].values()} == {NEW}
    assert {name: row["position"] for name, row in told["shuffled"].items()} == {"s3": 0, "s1": 1, "s2": 2}
    assert told["same"] == {"x1": before["same"]["x1"]["metadata"]}
    some = np.array(after["same"]["x1"]["vector"], np.float32)
    hits = search(dated.services.storage, "letters", some, k=20, filter={"topic": "new"})
    assert {hit.document_id for hit in hits} == {"retitled"}


def test_an_old_partition_backfilled_later_changes_nothing(dated: World) -> None:
    dated.put(OLD, document("d", "old"), document("only", "here"))
    dated.put(NEW, document("d", "new"))
    dated.run(partitions=[NEW])
    ref, ranges = dated.begin(partitions=[OLD])
    dated.send(ref)
    dated.end(ref, ranges)
    assert dated.charges() == asked(dated, "new", "here")
    assert {id: set(found) for id, found in chunks(dated, ref).items()} == {"d": {"new"}, "only": {"here"}}


def test_a_batch_that_returns_after_a_newer_run_overwrites_nothing(dated: World) -> None:
    dated.put(OLD, document("d", "old", "kept"), document("e", "e1"))
    late, late_ranges = dated.begin()
    steps.probe(dated.services, late)
    (part,) = steps.pack(dated.services, late)
    assert steps.submit(dated.services, late, part) is None
    dated.put(NEW, document("d", "new", "kept"))
    ref, ranges = dated.begin()
    dated.send(ref)
    dated.end(ref, ranges)
    dated.send(late)
    dated.end(late, late_ranges)
    assert {id: set(found) for id, found in chunks(dated, ref).items()} == {
        "d": {"new", "kept"},
        "e": {"e1"},
    }
    assert dated.charges() == asked(dated, "old", "kept", "e1", "new")
    (kept,) = (row for row in dated.rows(ref) if row["text"] == paragraph("kept"))
    assert kept["metadata"]["partition"] == NEW


def test_a_document_deleted_while_its_batch_is_in_flight_stays_deleted(dated: World) -> None:
    dated.put(OLD, document("gone", "g1"), document("stays", "s1"))
    late, late_ranges = dated.begin()
    steps.probe(dated.services, late)
    (part,) = steps.pack(dated.services, late)
    assert steps.submit(dated.services, late, part) is None
    dated.put(OLD, document("stays", "s1"))
    ref, ranges = dated.begin()
    dated.send(ref)
    dated.end(ref, ranges)
    dated.send(late)
    report = dated.end(late, late_ranges)
    assert set(chunks(dated, late)) == {"stays"}
    assert dated.charges() == asked(dated, "g1", "s1")
    assert report.state == "succeeded"


def test_of_the_versions_in_one_run_only_the_newest_is_paid_for(dated: World) -> None:
    """Also where an older one was read first, and shares chunks with it."""
    filler = [document(f"f{n}", "same") for n in range(1_200)]
    dated.put(
        OLD,
        document("d", "one", "kept", updated_at="2026-01-01T01:00:00Z"),
        document("twice", "t1", updated_at="2026-01-01T01:00:00Z"),
        document("twice", "t2", updated_at="2026-01-01T02:00:00Z"),
        *filler,
        document("d", "two", "kept", updated_at="2026-01-01T02:00:00Z"),
    )
    ref, ranges = dated.begin()
    dated.send(ref)
    report = dated.end(ref, ranges)
    assert dated.charges() == asked(dated, "two", "kept", "t2", "same")
    found = chunks(dated, ref)
    assert set(found["d"]) == {"two", "kept"}
    assert set(found["twice"]) == {"t2"}
    assert report.documents_new == 1_202
    assert report.chunks == report.chunks_indexed == 1_203
    plan = Plan.load(dated.services.storage, ref.uri)
    assert plan.prepared["bad_input"] == {"duplicate_id": 2}
    assert plan.prepared["stale"] == 2


def test_a_log_of_changes_is_read_in_its_order(world: World) -> None:
    yaml = DATED.replace("metadata: [topic]", "mode: changes, fields: {deleted: gone}")
    world.configure(yaml)
    world.put(
        OLD,
        document("a", "a1"),
        document("b", "b1"),
        document("a", "a2"),
        {"id": "b", "gone": True},
        document("c", "c1"),
        {"id": "c", "gone": True},
        document("c", "c2"),
    )
    ref, ranges = world.begin()
    world.send(ref)
    report = world.end(ref, ranges)
    assert {id: set(found) for id, found in chunks(world, ref).items()} == {"a": {"a2"}, "c": {"c2"}}
    assert world.charges() == asked(world, "a2", "c2")
    assert report.documents_bad == 0


def test_another_hook_sends_all_anew_and_the_way_back_is_free(world: World) -> None:
    yaml = DATED.replace(', partition: "[0-9-]{10}", metadata: [topic]', "")
    world.configure(yaml)
    world.put("all", document("a", "ada@example.org", "a2"), document("b", "b1"))
    world.run()
    plain = world.charges()
    assert plain == asked(world, "ada@example.org", "a2", "b1")

    world.configure(yaml + "presend: include.corpora.redact.emails\n")
    ref, ranges = world.begin()
    world.send(ref)
    report = world.end(ref, ranges)
    assert report.requests_sent == 3
    assert world.charges() == plain | asked(world, "[email]", "a2", "b1")
    hooked = Plan.load(world.services.storage, ref.uri).version
    assert report.published and hooked in report.places["index"]
    # The source's own text, and the vector of what was sent.
    assert {row["text"].split()[0] for row in world.rows(ref)} == {"ada@example.org", "a2", "b1"}

    paid = world.charges()
    world.configure(yaml)
    ref, ranges = world.begin()
    world.send(ref)
    report = world.end(ref, ranges)
    assert world.charges() == paid
    assert report.requests_sent == 0
    assert Plan.load(world.services.storage, ref.uri).version != hooked


def test_of_a_packed_line_that_fails_only_the_bad_item_is_buried(world: World) -> None:
    world.configure(YAML.replace("dimensions: 32", "dimensions: 32, inputs_per_line: 4"))
    world.put("all", *({"id": f"d{n}", "text": f"text number {n}"} for n in range(10)))
    world.emulator.faults(
        {"on": "line", "when": {"match": "number 7"}, "do": "line_error", "status": 400, "code": "bad_input"}
    )
    ref, ranges = world.begin()
    world.send(ref)
    report = world.end(ref, ranges)
    assert {row["document_id"] for row in world.rows(ref)} == {f"d{n}" for n in range(10) if n != 7}
    assert report.dead_letters == 1
    with world.services.ledger() as ledger:
        letters = ledger.execute("select document_id, class, state from dead_letters").fetchall()
    assert [(each["document_id"], each["class"], each["state"]) for each in letters] == [
        ("d7", "permanent", "open")
    ]
    # Ten items in lines of four are three lines, of which one failed and was paid for by its items.
    charges = world.charges()
    assert set(charges.values()) == {1}
    space = load_corpus(world.corpora / "letters.yaml").space("emulator").id
    alone = {item_key(space, f"text number {n}").hex() for n in range(10)}
    assert 1 <= len(alone & set(charges)) <= 3
    assert len(set(charges) - alone) == 2
    world.emulator.faults()
    paid = world.charges()
    world.run()
    assert world.charges() == paid
