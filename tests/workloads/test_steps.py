"""The steps as a whole, on a real ledger and emulator, without Airflow in between."""

from __future__ import annotations

import json

from include.batches import runs
from include.corpora.config import load_corpus
from include.ledger.connect import connect
from include.workloads import steps
from tests.workloads.conftest import YAML, World


def test_a_dry_run_leaves_the_truth_that_others_are_indexing_as_it_was(world: World) -> None:
    world.write({"a": "first text of a", "b": "first text of b"})
    ref, ranges = world.begin()
    world.send(ref)
    world.write({"a": "second text of a", "b": "second text of b"})
    dry, _ = world.begin(dry_run=True)
    steps.reconcile(world.services, dry)
    report = world.end(ref, ranges)
    assert report.chunks_indexed == report.chunks == 2
    assert world.published


def test_an_index_is_not_published_while_chunks_are_missing_that_nobody_accounts_for(world: World) -> None:
    world.write({"a": "first text of a", "b": "first text of b"})
    ref, ranges = world.begin()
    world.send(ref)
    world.write({"a": "second text of a", "b": "second text of b"})
    newer, newer_ranges = world.begin()
    assert world.end(ref, ranges).chunks_indexed == 0
    assert not world.published
    world.send(newer)
    assert world.end(newer, newer_ranges).chunks_indexed == 2
    assert world.published


def test_a_width_that_is_unknown_is_asked_for_even_where_nothing_is_to_be_sent(world: World) -> None:
    (world.corpora / "letters.yaml").write_text(YAML.replace(", dimensions: 32", ""))
    world.write({"a": "text of a"})
    ref, ranges = world.begin()
    world.send(ref)
    world.end(ref, ranges)
    with connect(world.services.settings.ledger_url) as ledger:
        ledger.execute(
            "truncate coverage, index_versions, submissions, run_shards, shards, spaces, runs cascade"
        )
    world.services.storage.delete("corpora/letters/live.json")
    again, ranges = world.begin()
    world.send(again)
    report = world.end(again, ranges)
    assert report.requests_sent == 0
    assert report.chunks_indexed == 1
    assert world.published


def test_a_step_that_is_run_again_reopens_its_run(world: World) -> None:
    world.write({"a": "text of a"})
    ref, ranges = world.begin()
    world.send(ref)
    assert world.end(ref, ranges).state == "succeeded"
    steps.dead_letters(world.services, ref)
    report = steps.report(world.services, ref)
    assert report is not None
    assert report.state == "failed", "a run whose last step didn't run again hasn't succeeded"
    steps.publish(world.services, ref)
    again = steps.report(world.services, ref)
    assert again is not None
    assert again.state == "succeeded"


def test_the_yaml_is_found_by_its_corpus_whatever_its_file_is_called(world: World) -> None:
    (world.corpora / "letters.yaml").rename(world.corpora / "other.yaml")
    assert load_corpus(world.corpora / "other.yaml").corpus == "letters"
    world.write({"a": "text of a"})
    assert world.begin()[1]


def test_what_a_failed_run_never_sent_is_in_the_next_ones_estimate(world: World) -> None:
    world.write({"a": "text of a", "b": "text of b"})
    failed, _ = world.begin()
    steps.probe(world.services, failed)
    steps.pack(world.services, failed)
    report = steps.report(world.services, failed)
    assert report is not None and report.state == "failed"
    world.write({"b": "text of b"})
    ref, ranges = world.begin()
    with connect(world.services.settings.ledger_url) as ledger:
        assert runs.get(ledger, ref.run).counts["estimate"]["to_send"] == 1
    world.send(ref)
    assert world.end(ref, ranges).requests_landed == 1


def test_second_attempts_are_among_the_requests_sent(world: World) -> None:
    world.write({"a": "text of a", "b": "text of b"})
    ref, ranges = world.begin()
    world.emulator.faults({"on": "line", "when": {"nth": 1}, "do": "line_error", "status": 500, "code": "x"})
    world.send(ref)
    report = world.end(ref, ranges)
    assert (report.requests_sent, report.second_attempts, report.requests_landed) == (3, 1, 2)


def test_a_bad_line_is_named_and_does_not_keep_the_good_rest_from_readers(world: World) -> None:
    good = json.dumps({"id": "a", "text": "text of a"})
    world.services.storage.write_bytes("sources/all.jsonl", f"{good}\n{{not json\n".encode())
    ref, ranges = world.begin()
    world.send(ref)
    report = world.end(ref, ranges)
    assert world.published
    assert report.chunks_indexed == 1
    assert report.documents_bad == 1
    assert any("bad_input.jsonl" in note for note in report.notes)
    assert report.places["bad input"].endswith("bad_input.jsonl")


def test_a_submit_that_is_cleared_reopens_its_run_before_it_sends(world: World) -> None:
    world.write({"a": "text of a"})
    ref, ranges = world.begin()
    steps.probe(world.services, ref)
    (part,) = steps.pack(world.services, ref)
    assert steps.report(world.services, ref)
    with connect(world.services.settings.ledger_url) as ledger:
        assert runs.get(ledger, ref.run).state == "failed"
        assert steps.submit(world.services, ref, part) is None
        assert runs.get(ledger, ref.run).state == "running"
    world.send(ref)
    report = world.end(ref, ranges)
    assert report.state == "succeeded"
    assert set(world.emulator.state()["charges"].values()) == {1}
