"""A shard that was never paid for is sent later only if nobody else sent its items meanwhile."""

from __future__ import annotations

import pytest

from include.batches import submissions
from include.batches.reclaim import reclaim
from include.batches.submissions import SubmissionRow
from include.batches.submit import renew, submit
from include.errors import LedgerError
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.batches.packing import OFFLINE, SMALL, Bench, land_results
from tests.batches.submitting import LIMITS, SETTINGS, openai_provider
from tests.emulators import Emulator

TEXTS = [f"reclaimed text {number}" for number in range(6)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage) -> Bench:
    return Bench(ledger, storage, OFFLINE, TEXTS)


def void(bench: Bench) -> SubmissionRow:
    """The run's first attempt, void."""
    bench.ledger.execute("update submissions set state = 'void', reason = 'over budget' where run = 'run'")
    (entry, *_) = bench.listed()
    row = submissions.get(bench.ledger, entry.shard.id, entry.attempt)
    assert row is not None
    return row


def claim(bench: Bench, row: SubmissionRow) -> SubmissionRow:
    (entry, *_) = bench.listed()
    return reclaim(
        bench.ledger,
        bench.storage,
        row,
        entry.shard,
        lambda: renew(bench.ledger, row, entry.shard, run="run", reason=row.reason),
    )


def test_items_that_are_still_free_are_planned_again(bench: Bench) -> None:
    bench.pack()
    row = void(bench)
    assert (claim(bench, row).attempt, claim(bench, row).attempt) == (2, 2)
    assert [entry.attempt for entry in bench.listed()] == [2]


def test_items_that_another_run_has_in_flight_are_not_sent_again(
    bench: Bench, ledger: Connection, storage: Storage
) -> None:
    bench.pack()
    row = void(bench)
    other = Bench(ledger, storage, OFFLINE, [*TEXTS[:2], "another"], run="other")
    assert other.pack().sent == 3
    with pytest.raises(LedgerError, match=r"2 of its 6 items were sent by others.*clear the task `pack`"):
        claim(bench, row)
    report = bench.pack()
    assert (report.joined, report.sent) == (2, 4)


def test_items_that_were_answered_meanwhile_are_not_sent_again(bench: Bench) -> None:
    land_results(bench, TEXTS[4:], "earlier", age_seconds=3600)
    bench.pack()
    row = void(bench)
    assert claim(bench, row).attempt == 2
    row = void(bench)
    land_results(bench, TEXTS[:3], "meanwhile")
    (entry,) = bench.listed()
    later = submissions.get(bench.ledger, entry.shard.id, entry.attempt)
    assert later is not None
    with pytest.raises(LedgerError, match="3 of its 4 items"):
        claim(bench, later)


def test_a_submit_that_is_cleared_alone_pays_for_nothing_twice(
    ledger: Connection, storage: Storage, calm_emulator: Emulator
) -> None:
    provider: OpenAIBatches = openai_provider(calm_emulator.openai_url)
    bench = Bench(ledger, storage, provider, TEXTS)
    bench.pack(SMALL)
    row = void(bench)
    other = Bench(ledger, storage, provider, [*TEXTS, "one more"], run="other")
    other.pack()
    other.process(calm_emulator)

    with pytest.raises(LedgerError, match="clear the task `pack`"):
        submit(ledger, storage, provider, LIMITS, row.shard, row.attempt, run="run", settings=SETTINGS)
    report = bench.pack(SMALL)
    assert (report.shards, report.reused, report.sent) == ([], 6, 0)
    assert bench.reconcile().reused == 6
    assert submissions.get(ledger, row.shard, row.attempt + 1) is None
