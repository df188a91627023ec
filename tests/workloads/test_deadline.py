"""A run's deadline: what is done by then is kept, the rest is sent again or buried, and nothing is lost."""

from __future__ import annotations

import pytest

from include.contracts import OutcomeClass, RunRef
from include.workloads import steps
from tests.workloads.conftest import YAML, World

TEXTS = {f"d{n}": f"text number {n}" for n in range(4)}
HOUR = 3600.0


@pytest.fixture
def slow(world: World) -> World:
    """Batches take two hours, of which the run allows one; only one runs at a time."""
    world.write(TEXTS)
    world.limit(requests_per_batch=2, live_batches=1)
    world.emulator.faults({"on": "batch", "do": "pace", "batch_seconds": 2 * HOUR})
    return world


def first_round(world: World) -> tuple[RunRef, list[str]]:
    """A run whose first batch is half done at its deadline, and whose second never got room."""
    ref, ranges, (one, two) = world.packed()
    assert steps.submit(world.services, ref, one) is None
    waiting = steps.submit(world.services, ref, two)
    assert waiting is not None and "live batches" in waiting["reason"]
    pending = steps.watch(world.services, ref, one)
    assert pending is not None and 0 < pending["seconds"] <= HOUR
    world.advance(HOUR + 60)
    assert steps.watch(world.services, ref, one) is not None, "it was told to stop, and hasn't ended"
    assert steps.submit(world.services, ref, two) is None, "it isn't sent any more"
    world.advance(60)
    for part in (one, two):
        assert steps.watch(world.services, ref, part) is None
        steps.land(world.services, ref, part)
    return ref, ranges


def test_the_rest_is_sent_again_with_the_same_time_anew(slow: World) -> None:
    slow.configure(YAML + "deadline: {hours: 1, then: send_again}\n")
    ref, ranges = first_round(slow)
    assert slow.emulator.state()["batches"][0]["status"] == "cancelled"
    slow.emulator.faults()
    slow.advance(HOUR)
    parts = steps.pack_retry(slow.services, ref)
    assert slow.counts(ref, "pack_retry")["sent"] == 3
    for part in parts:
        slow.process(ref, part)
    steps.dead_letters(slow.services, ref)
    report = slow.end(ref, ranges)
    assert (report.state, report.chunks_indexed, report.dead_letters) == ("succeeded", 4, 0)
    assert set(slow.emulator.state()["charges"].values()) == {1}


def test_or_it_is_buried_and_the_next_run_sends_it(slow: World) -> None:
    slow.configure(YAML + "deadline: {hours: 1, then: dead_letter}\n")
    ref, ranges = first_round(slow)
    assert steps.pack_retry(slow.services, ref) == []
    steps.dead_letters(slow.services, ref)
    report = slow.end(ref, ranges)
    assert (report.chunks_indexed, report.dead_letters) == (1, 3)
    assert sorted(letter.code for letter in slow.letters("open")) == [
        "batch_cancelled",
        "deadline",
        "deadline",
    ]
    assert {letter.cls for letter in slow.letters("open")} == {OutcomeClass.RETRYABLE}
    slow.emulator.faults()
    tomorrow = slow.run()
    assert (tomorrow.requests_sent, tomorrow.chunks_indexed) == (3, 4)
    assert slow.letters("open") == []
    assert set(slow.emulator.state()["charges"].values()) == {1}


def test_what_another_run_waits_for_too_goes_on(slow: World) -> None:
    slow.configure(YAML + "deadline: {hours: 1}\n")
    ref, _, parts = slow.packed()
    assert steps.submit(slow.services, ref, parts[0]) is None
    slow.configure(YAML)
    slow.packed()
    slow.advance(HOUR + 60)
    assert steps.watch(slow.services, ref, parts[0]) is not None
    slow.advance(2 * HOUR)
    assert steps.watch(slow.services, ref, parts[0]) is None
    assert [batch["status"] for batch in slow.emulator.state()["batches"]] == ["completed"]


def test_a_run_that_is_taken_up_again_after_its_end_has_its_time_anew(slow: World) -> None:
    slow.configure(YAML + "deadline: {hours: 1}\n")
    ref, _, (one, _) = slow.packed()
    assert steps.report(slow.services, ref)
    slow.advance(24 * HOUR)
    assert steps.submit(slow.services, ref, one) is None
    assert len(slow.emulator.state()["batches"]) == 1
