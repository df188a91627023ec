"""Runs that go wrong, from end to end; the emulator's books say what was paid for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest

from include.batches import submissions
from include.batches.cancel import cancel_run
from include.contracts import RunRef
from include.errors import BudgetExceeded
from include.reference import price_for
from include.workloads import steps
from include.workloads.report import Report
from tests.workloads.conftest import YAML, World

TEXTS = {f"d{n}": f"text number {n}" for n in range(10)}
ROUND_SECONDS = 300.0


def line(word: str, do: str = "line_error", **options: Any) -> dict[str, Any]:
    """A fault of every line whose text has this word."""
    return {"on": "line", "when": {"match": rf"\b{word}\b"}, "do": do, **options}


def statuses(world: World) -> list[str]:
    """How the batches at the provider ended, oldest first."""
    return [batch["status"] for batch in world.emulator.state()["batches"]]


def drive(world: World, *runs: tuple[RunRef, list[str]]) -> list[str]:
    """Submit, watch and land all parts as their tasks would, every five minutes; the runs in the order
    that their parts landed in."""
    todo = [(ref, part) for ref, parts in runs for part in parts]
    landed: list[str] = []
    for _ in range(50):
        for ref, part in todo:
            steps.submit(world.services, ref, part)
        world.advance(ROUND_SECONDS)
        for ref, part in list(todo):
            if steps.watch(world.services, ref, part) is None:
                steps.land(world.services, ref, part)
                landed.append(ref.run)
                todo.remove((ref, part))
        if not todo:
            return landed
    raise AssertionError(f"{todo} never end")


def finish(world: World, ref: RunRef, ranges: list[str]) -> Report:
    """The second attempt, and all that follows."""
    drive(world, (ref, steps.pack_retry(world.services, ref)))
    steps.dead_letters(world.services, ref)
    return world.end(ref, ranges)


REASONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "one": ("permanent", "invalid_request", {"status": 400, "code": "invalid_request"}),
    "two": ("permanent", "context_length_exceeded", {"status": 400, "code": "context_length_exceeded"}),
    "three": ("permanent", "content_filter", {"status": 400, "code": "content_filter"}),
    "four": ("permanent", "request_too_large", {"status": 413, "code": "request_too_large"}),
    "five": ("retryable", "server_error", {"status": 500, "code": "server_error"}),
    "six": ("retryable", "rate_limit_exceeded", {"status": 429, "code": "rate_limit_exceeded"}),
    "seven": ("retryable", "missing", {"do": "line_omit"}),
    "eight": ("retryable", "batch_expired", {"code": "batch_expired"}),
    "nine": ("invalid", "wrong_count", {"do": "line_body", "body": {"data": []}}),
    "ten": ("account", "billing_hard_limit_reached", {"status": 403, "code": "billing_hard_limit_reached"}),
}
"""A word in a text → the class and code of its failure, and the fault."""


def test_of_a_thousand_items_thirty_fail_for_ten_reasons_and_a_replay_mends_them(world: World) -> None:
    words = [word for word in REASONS for _ in range(3)]
    world.write({f"d{n}": f"text {n} {dict(enumerate(words)).get(n, 'good')}" for n in range(1000)})
    world.emulator.faults(*(line(word, **fault) for word, (_, _, fault) in REASONS.items()))
    report = world.run()
    assert (report.items, report.dead_letters, report.chunks_indexed) == (1000, 30, 970)
    found = Counter((letter.cls.value, letter.code) for letter in world.letters("open"))
    assert found == {(cls, code): 3 for cls, code, _ in REASONS.values()}
    failed = {letter.key for letter in world.letters()}
    assert {times for key, times in world.charges().items() if key not in failed} == {1}

    world.emulator.faults()
    mended = world.replay()
    assert (mended.requests_sent, mended.dead_letters) == (30, 0)
    assert world.letters("open") == []
    assert len(world.rows(world.ref)) == 1000
    assert world.run().requests_sent == 0


def test_all_of_a_shard_expires_twice_and_tomorrow_sends_it_again(world: World) -> None:
    world.write(TEXTS)
    world.emulator.faults({"on": "batch", "do": "expire_at", "fraction": 0.0})
    report = world.run()
    assert statuses(world) == ["expired", "expired"]
    assert (report.dead_letters, report.state) == (10, "succeeded")
    world.emulator.faults()
    tomorrow = world.run()
    assert statuses(world) == ["expired", "expired", "completed"]
    assert (tomorrow.requests_landed, tomorrow.dead_letters) == (10, 0)
    assert list(world.charges().values()) == [1] * 10
    with world.services.ledger() as ledger:
        rows = [*submissions.of_run(ledger, report.run), *submissions.of_run(ledger, tomorrow.run)]
    assert len({row.batch_id for row in rows}) == len({row.attempt for row in rows}) == 3


def test_a_batch_that_expires_at_seventy_percent_costs_one_full_pass(world: World) -> None:
    world.write(TEXTS)
    world.emulator.faults({"on": "batch", "when": {"nth": 1}, "do": "expire_at", "fraction": 0.7})
    report = world.run()
    assert statuses(world) == ["expired", "completed"]
    assert (report.requests_landed, report.second_attempts, report.chunks_indexed) == (10, 3, 10)
    assert list(world.charges().values()) == [1] * 10
    totals = world.emulator.state()["totals"]
    price = price_for("openai", "text-embedding-3-small")
    assert price is not None
    assert report.input_tokens == totals["batch_tokens"]
    assert report.dollars_spent == pytest.approx(totals["batch_dollars"])
    assert report.dollars_spent == pytest.approx(report.dollars_estimated)


def test_a_run_that_is_cancelled_leaves_the_shard_that_another_waits_for(world: World) -> None:
    world.write(TEXTS)
    first, _, parts = world.packed()
    assert steps.submit(world.services, first, parts[0]) is None
    second, ranges, joined = world.packed()
    assert world.counts(second, "pack")["joined"] == 10
    with world.services.ledger() as ledger:
        provider = world.services.endpoint("openai", "openai_default").provider
        done = cancel_run(ledger, world.services.storage, provider, first.run)
    assert len(done.kept) == 1
    drive(world, (second, joined))
    assert finish(world, second, ranges).chunks_indexed == 10
    assert statuses(world) == ["completed"]


def test_a_budget_that_is_refused_leaves_no_live_claim(world: World) -> None:
    world.write(TEXTS)
    world.limit(requests_per_batch=5)
    ref, _, parts = world.packed(budget_usd=1.0)
    with world.services.ledger() as ledger:
        ledger.execute("update runs set budget_usd = 0.0000001")
    for part in parts:
        with pytest.raises(BudgetExceeded):
            steps.submit(world.services, ref, part)
    with world.services.ledger() as ledger:
        assert {row.state for row in submissions.listed_by(ledger, ref.run)} == {"void"}
    state = world.emulator.state()
    assert state["batches"] == [] and state["files"] == []
    assert world.run().requests_sent == 10


@pytest.fixture
def narrow(world: World) -> World:
    """An account whose queue holds a third of the tokens of partition `a`; partition `b` is small."""
    world.configure(YAML.replace('sources/*.jsonl"', "sources/*.jsonl\", partition: '([ab])[.]jsonl'"))
    world.put("a", *({"id": f"a{n}", "text": f"a text of number {n}"} for n in range(60)))
    world.put("b", *({"id": f"b{n}", "text": f"an urgent text {n}"} for n in range(2)))
    _, _ = world.begin(partitions=("a",), dry_run=True)
    tokens = world.counts(world.ref, "estimate")["tokens"] // 3
    world.limit(enqueued_tokens=tokens)
    limits = {"enqueued_tokens": {"text-embedding-3-small": tokens}}
    httpx.patch(f"{world.emulator.url}/_control/settings", json=limits).raise_for_status()
    return world


def test_a_queue_of_a_third_of_the_corpus_is_no_obstacle_and_priority_gets_in_first(narrow: World) -> None:
    slow, slow_ranges, slow_parts = narrow.packed(partitions=("a",))
    assert len(slow_parts) >= 12, "a shard takes at most a quarter of the queue"
    waits = [steps.submit(narrow.services, slow, part) for part in slow_parts]
    assert any(waits), "not all fit at once"
    urgent, urgent_ranges, urgent_parts = narrow.packed(partitions=("b",), priority=5)
    landed = drive(narrow, (slow, slow_parts), (urgent, urgent_parts))
    assert landed.index(urgent.run) < 2 * 4, "it is in the second filling of the queue, of three"
    assert set(statuses(narrow)) == {"completed"}, "no batch failed on a limit that was known"
    assert finish(narrow, slow, slow_ranges).chunks_indexed == 60
    assert finish(narrow, urgent, urgent_ranges).chunks_indexed == 2
    assert set(narrow.charges().values()) == {1}


def test_a_batch_that_found_the_queue_full_all_the_same_leaves_no_file(world: World) -> None:
    world.write(TEXTS)
    full = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}
    world.emulator.faults({"on": "batch", "when": {"nth": 1}, "do": "fail_batch", **full})
    ref, ranges, parts = world.packed()
    drive(world, (ref, parts))
    assert finish(world, ref, ranges).chunks_indexed == 10
    assert statuses(world) == ["failed", "completed"]
    assert [file for file in world.emulator.state()["files"] if file["purpose"] == "batch"] == []
