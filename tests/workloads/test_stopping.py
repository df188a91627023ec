"""A run that can't go on stops sending, says why, and goes on where it stopped."""

from __future__ import annotations

import httpx
import pytest

from include.batches import runs, submissions
from include.batches.cancel import cancel_run
from include.contracts import RunRef
from include.errors import AccountError, BatchInferenceError, RunCancelled, RunStopped
from include.workloads import steps
from include.workloads.report import Report
from include.workloads.steps import shared
from tests.workloads.conftest import YAML, World

TEXTS = {"a": "text of a", "b": "text of b", "c": "text of c"}
KEY_REFUSED = {
    "on": "files.create",
    "do": "status",
    "status": 401,
    "body": {"error": {"code": "invalid_api_key", "message": "Incorrect API key", "type": "", "param": None}},
}
NO_CREDIT = {
    "on": "batches.create",
    "do": "status",
    "status": 429,
    "body": {"error": {"code": "insufficient_quota", "message": "No credit", "type": "", "param": None}},
}


def calls(world: World) -> dict[str, int]:
    """How often each operation was called that uploads or creates."""
    requests = world.emulator.state()["requests"]
    return {name: requests.get(name, 0) for name in ("files.create", "batches.create")}


def finish(world: World, ref: RunRef, ranges: list[str]) -> Report:
    """The rest of a run whose first round has landed."""
    for part in steps.pack_retry(world.services, ref):
        world.process(ref, part)
    steps.dead_letters(world.services, ref)
    return world.end(ref, ranges)


def all_charged_once(world: World) -> bool:
    charges = world.emulator.state()["charges"]
    return len(charges) == len(TEXTS) and set(charges.values()) == {1}


@pytest.fixture
def three(world: World) -> tuple[World, RunRef, list[str], list[str]]:
    """A run of three shards, about to submit: the world, the run, the parts of upsert, those to submit."""
    world.write(TEXTS)
    world.limit(requests_per_batch=1)
    return world, *world.packed()


Three = tuple[World, RunRef, list[str], list[str]]


class TestAnAccountThatRefuses:
    @pytest.mark.parametrize("fault", [KEY_REFUSED, NO_CREDIT])
    def test_is_asked_once_and_the_run_goes_on_when_it_is_mended(
        self, three: Three, fault: dict[str, object]
    ) -> None:
        world, ref, ranges, parts = three
        world.emulator.faults(fault)
        with pytest.raises(AccountError, match="mend the account"):
            steps.submit(world.services, ref, parts[0])
        before = calls(world)
        for part in parts[1:]:
            with pytest.raises(RunStopped, match=r"(?s)mend the account.*clear"):
                steps.submit(world.services, ref, part)
        assert calls(world) == before
        report = steps.report(world.services, ref)
        assert report is not None and report.state == "failed"
        assert any(note.startswith("it stopped sending") for note in report.notes)
        world.emulator.faults()
        for part in parts:
            world.process(ref, part)
        assert finish(world, ref, ranges).state == "succeeded"
        assert all_charged_once(world)

    def test_is_asked_again_by_the_next_run(self, three: Three) -> None:
        world, ref, _, parts = three
        world.emulator.faults(KEY_REFUSED)
        with pytest.raises(AccountError):
            steps.submit(world.services, ref, parts[0])
        world.emulator.faults()
        assert world.run().chunks_indexed == 3
        assert all_charged_once(world)

    def test_does_not_keep_what_was_sent_from_landing(self, three: Three) -> None:
        world, ref, ranges, parts = three
        assert steps.submit(world.services, ref, parts[0]) is None
        world.emulator.faults(KEY_REFUSED)
        with pytest.raises(AccountError):
            steps.submit(world.services, ref, parts[1])
        world.emulator.faults()
        world.process(ref, parts[0])
        with world.services.ledger() as ledger:
            runs.resume(ledger, ref.run)
        for part in parts[1:]:
            world.process(ref, part)
        assert finish(world, ref, ranges).state == "succeeded"

    def test_by_failing_a_whole_batch_stops_the_rest(self, three: Three) -> None:
        world, ref, _, parts = three
        world.emulator.faults(
            {"on": "batch", "do": "fail_batch", "code": "billing_hard_limit_reached", "message": "No credit"}
        )
        world.process(ref, parts[0])
        with pytest.raises(RunStopped, match=r"billing_hard_limit_reached 1 times: No credit"):
            steps.submit(world.services, ref, parts[1])

    def test_a_key_that_is_rotated_while_a_batch_runs_takes_nothing_from_the_run(self, three: Three) -> None:
        world, ref, ranges, parts = three
        assert steps.submit(world.services, ref, parts[0]) is None
        keys = {"keys": ["new"]}
        httpx.patch(f"{world.emulator.url}/_control/settings", json=keys).raise_for_status()
        waiting = steps.watch(world.services, ref, parts[0])
        assert waiting is not None and len(waiting["batch_ids"]) == 1
        with pytest.raises(AccountError):
            steps.submit(world.services, ref, parts[1])
        world.use_key("new")
        with world.services.ledger() as ledger:
            runs.resume(ledger, ref.run)
        for part in parts:
            world.process(ref, part)
        assert finish(world, ref, ranges).state == "succeeded"
        assert all_charged_once(world)


class TestPoison:
    """Shards of 100 items of which 60 are refused."""

    @pytest.fixture
    def poisoned(self, world: World) -> Three:
        world.write({f"d{n}": f"text {n} {'bad' if n % 5 < 3 else 'good'}" for n in range(300)})
        world.limit(requests_per_batch=150)
        world.emulator.faults(line_error(400, "invalid_request"))
        return world, *world.packed()

    def test_stops_the_rest_and_is_named_by_its_codes(self, poisoned: Three) -> None:
        world, ref, ranges, parts = poisoned
        world.process(ref, parts[0])
        with pytest.raises(
            RunStopped, match=r"of the first 150 items failed.*max_failed_share 0.5.*invalid_r"
        ):
            steps.submit(world.services, ref, parts[1])
        assert len(world.emulator.state()["batches"]) == 1
        report = steps.report(world.services, ref)
        assert report is not None and report.state == "failed"
        world.emulator.faults()
        world.process(ref, parts[1])
        assert finish(world, ref, ranges).state == "succeeded"

    def test_is_only_what_fails_by_itself(self, poisoned: Three) -> None:
        world, ref, _, parts = poisoned
        world.emulator.faults(line_error(500, "server_error"))
        world.process(ref, parts[0])
        assert steps.submit(world.services, ref, parts[1]) is None

    def test_is_allowed_where_the_corpus_says_so(self, world: World) -> None:
        world.configure(YAML + "max_failed_share: null\n")
        world.write({f"d{n}": f"text {n} bad" for n in range(200)})
        world.limit(requests_per_batch=100)
        world.emulator.faults(line_error(400, "invalid_request"))
        ref, _, parts = world.packed()
        world.process(ref, parts[0])
        assert steps.submit(world.services, ref, parts[1]) is None


def line_error(status: int, code: str) -> dict[str, object]:
    return {"on": "line", "when": {"match": "bad"}, "do": "line_error", "status": status, "code": code}


def cancel(world: World, ref: RunRef) -> None:
    with world.services.ledger() as ledger:
        cancel_run(
            ledger,
            world.services.storage,
            world.services.endpoint("openai", "openai_default").provider,
            ref.run,
        )


def stop(world: World, ref: RunRef) -> None:
    with world.services.ledger() as ledger:
        runs.stop(ledger, ref.run, "too much fails")


@pytest.mark.parametrize(("end", "error"), [(cancel, RunCancelled), (stop, RunStopped)])
def test_a_part_of_several_shards_lands_those_that_were_sent(
    world: World, monkeypatch: pytest.MonkeyPatch, end: object, error: type[BatchInferenceError]
) -> None:
    monkeypatch.setattr(shared, "MAX_PARTS", 1)
    world.write(TEXTS)
    world.limit(requests_per_batch=1, live_batches=2)
    ref, _, (part,) = world.packed()
    waiting = steps.submit(world.services, ref, part)
    assert waiting is not None and "2 of 2 live batches" in waiting["reason"]
    assert callable(end)
    end(world, ref)
    assert steps.submit(world.services, ref, part) is None
    world.advance(3600)
    assert steps.watch(world.services, ref, part) is None
    with pytest.raises(error):
        steps.land(world.services, ref, part)
    with world.services.ledger() as ledger:
        states = sorted(row.state for row in submissions.listed_by(ledger, ref.run))
    assert states[:2] == ["landed", "landed"]


def test_a_part_of_which_nothing_was_sent_is_refused_at_once(three: Three) -> None:
    world, ref, _, parts = three
    stop(world, ref)
    with pytest.raises(RunStopped, match="too much fails"):
        steps.submit(world.services, ref, parts[0])
