"""What a run planned and never sent binds nobody once the run is over, and is no surprise before."""

from __future__ import annotations

import pytest

from include.batches import claims, runs, submissions
from include.batches.pack import preview
from include.ledger.connect import Connection
from include.requests.reuse import Plan
from include.storage import Storage
from tests.batches.packing import OFFLINE, Bench
from tests.batches.submitting import ACCOUNT, SPACE

TEXTS = [f"text number {number}" for number in range(8)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage) -> Bench:
    """A run that packed and sent nothing yet."""
    bench = Bench(ledger, storage, OFFLINE, TEXTS, run="first")
    bench.pack()
    return bench


def estimate(bench: Bench) -> Plan:
    return preview(bench.ledger, bench.storage, SPACE, run=bench.run, rows=bench.rows, account=ACCOUNT)


def test_who_wants_an_item_of_a_failed_run_estimates_and_sends_that_one(
    bench: Bench, ledger: Connection, storage: Storage
) -> None:
    other = Bench(ledger, storage, OFFLINE, [TEXTS[7]], run="second")
    runs.finish(ledger, "first", "failed")
    assert claims.release(ledger, None, "first", "run first is failed") == 1
    assert (estimate(other).missing, estimate(other).in_flight) == (1, 0)
    report = other.pack()
    assert (report.sent, report.joined, report.lines) == (1, 0, 1)
    cleared = bench.pack()
    assert (cleared.sent, cleared.joined) == (7, 1)


def test_what_a_run_that_works_still_wants_stays_claimed(
    bench: Bench, ledger: Connection, storage: Storage
) -> None:
    Bench(ledger, storage, OFFLINE, [TEXTS[7]], run="second").pack()
    runs.finish(ledger, "first", "failed")
    assert claims.release(ledger, None, "first", "run first is failed") == 0


def test_a_cleared_runs_own_estimate_holds_what_it_planned_before(bench: Bench) -> None:
    planned = estimate(bench)
    assert (planned.missing, planned.own, planned.items) == (8, 0, 8)
    assert planned.tokens == sum(len(text.split()) for text in TEXTS)
    bench.ledger.execute("update submissions set state = 'running'")
    assert (estimate(bench).missing, estimate(bench).tokens, estimate(bench).own) == (0, 0, 8)


def test_who_joins_what_is_still_planned_may_pay_for_it(
    bench: Bench, ledger: Connection, storage: Storage
) -> None:
    other = Bench(ledger, storage, OFFLINE, [TEXTS[7], "text of the other"], run="second")
    shard = bench.listed()[0].shard
    assert (estimate(other).missing, estimate(other).in_flight) == (2, 0)
    assert estimate(other).tokens == shard.tokens + 4
    other.pack()
    assert estimate(other).tokens == shard.tokens + 4, "on its list, and still not sent"
    ledger.execute("update submissions set account = 'another' where run = 'first'")
    assert (estimate(other).tokens, estimate(other).own) == (4, 1), (
        "another account's batch is not ours to pay"
    )
    ledger.execute("update submissions set account = %s, state = 'running' where run = 'first'", (ACCOUNT,))
    assert estimate(other).tokens == 4


def test_a_second_attempt_that_is_planned_is_in_the_estimate(bench: Bench) -> None:
    bench.ledger.execute("update run_shards set round = 2")
    assert (estimate(bench).missing, estimate(bench).in_flight) == (8, 0)
    assert estimate(bench).tokens == sum(len(text.split()) for text in TEXTS)


def test_an_estimate_changes_nothing(bench: Bench) -> None:
    before = submissions.of_run(bench.ledger, "first")
    bench.write_rows(["another text"])
    assert (estimate(bench).missing, estimate(bench).tokens) == (1, 2)
    assert submissions.of_run(bench.ledger, "first") == before and len(bench.listed()) == 1
