"""A run that was cancelled buys nothing more, until its `prepare` takes it up again."""

from __future__ import annotations

import pytest

from include.batches import runs, submissions
from include.batches.cancel import Cancelled, cancel_run
from include.batches.sending import Submitted
from include.errors import RunCancelled
from include.ledger.connect import Connection
from include.storage import Storage
from tests.batches.packing import SMALL, Bench
from tests.batches.submitting import batches, openai_provider, send
from tests.emulators import Tenant

TEXTS = [f"text number {number}" for number in range(8)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage, emulator: Tenant) -> Bench:
    """A run of two shards, of which the first was sent."""
    bench = Bench(ledger, storage, openai_provider(emulator.openai_url, emulator.project), TEXTS)
    bench.pack(SMALL)
    bench.submit(bench.listed()[0])
    return bench


def states(bench: Bench) -> list[str]:
    return sorted(row.state for row in submissions.of_run(bench.ledger, bench.run.run))


def test_its_own_tasks_do_not_undo_it(bench: Bench, emulator: Tenant) -> None:
    unsent = bench.listed()[1]
    cancel_run(bench.ledger, bench.storage, bench.provider, bench.run.run)
    assert runs.get(bench.ledger, bench.run.run).state == "cancelled"
    for step in (
        lambda: send(bench.ledger, bench.storage, bench.provider, unsent.shard.id),
        lambda: bench.pack(SMALL),
        lambda: bench.pack_retry(),
    ):
        with pytest.raises(RunCancelled, match="clear its task `prepare`"):
            step()
    assert states(bench) == ["running", "void"] and len(batches(emulator)) == 1


def test_a_submit_that_is_still_planned_is_not_sent_either(bench: Bench) -> None:
    unsent = bench.listed()[1]
    runs.finish(bench.ledger, bench.run.run, "cancelled")
    with pytest.raises(RunCancelled):
        send(bench.ledger, bench.storage, bench.provider, unsent.shard.id)


def test_what_was_sent_before_is_followed_and_landed_but_not_asked_again(
    bench: Bench, emulator: Tenant
) -> None:
    sent = bench.listed()[0]
    cancel_run(bench.ledger, bench.storage, bench.provider, bench.run.run)
    assert isinstance(send(bench.ledger, bench.storage, bench.provider, sent.shard.id), Submitted)
    emulator.advance(25 * 3600)
    bench.watch(sent)
    assert bench.land(sent).items == 4
    with pytest.raises(RunCancelled):
        bench.pack_retry()


def test_clearing_prepare_takes_it_up_again(bench: Bench, emulator: Tenant) -> None:
    cancel_run(bench.ledger, bench.storage, bench.provider, bench.run.run)
    runs.create(bench.ledger, bench.run)
    bench.pack(SMALL)
    bench.process(emulator)
    bench.pack_retry()
    bench.process(emulator, round=2)
    assert bench.reconcile().items == 8


def test_a_run_that_succeeded_has_nothing_to_cancel(bench: Bench, emulator: Tenant) -> None:
    bench.process(emulator)
    runs.finish(bench.ledger, bench.run.run, "succeeded")
    assert cancel_run(bench.ledger, bench.storage, bench.provider, bench.run.run) == Cancelled()
    assert runs.get(bench.ledger, bench.run.run).state == "succeeded"
