"""Reconciling: an item nobody can account for fails the run, and is named."""

from __future__ import annotations

import pytest

from include.batches import dead_letters, submissions
from include.batches.dead_letters import NewLetter
from include.batches.reconcile import Accounts
from include.contracts import OutcomeClass, RunRef
from include.errors import ReconcileError
from include.ledger.connect import Connection
from include.requests.keys import item_key
from include.storage import Storage
from tests.batches.packing import OFFLINE, Bench, land_results
from tests.batches.submitting import SPACE

TEXTS = [f"text number {number}" for number in range(10)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage) -> Bench:
    return Bench(ledger, storage, OFFLINE, [*TEXTS, TEXTS[0]])


def letter(text: str, cls: OutcomeClass) -> NewLetter:
    return NewLetter(item_key(SPACE.id, text), "document", cls, "code", "message", 2, "0-1")


def test_every_item_is_counted_once_and_by_who_paid(bench: Bench) -> None:
    land_results(bench, TEXTS[:3], "earlier")
    bench.pack()
    (row,) = submissions.of_run(bench.ledger, "run")
    land_results(bench, TEXTS[2:9], row.id)
    dead_letters.open_letters(
        bench.ledger, bench.run, SPACE.id, [letter(TEXTS[9], OutcomeClass.RETRYABLE)], lambda: "x"
    )
    assert bench.reconcile() == Accounts(items=10, reused=2, succeeded=7, dead_lettered=1)


def test_items_without_an_answer_or_a_letter_fail_the_run_by_name(bench: Bench) -> None:
    land_results(bench, TEXTS[:8], "earlier")
    with pytest.raises(ReconcileError) as raised:
        bench.reconcile()
    message = str(raised.value)
    assert "2 of 10 items" in message
    for number in (8, 9):
        assert item_key(SPACE.id, TEXTS[number]).hex() in message
        assert f"'document-{number}'" in message


def test_an_answer_too_many_hides_no_missing_one(bench: Bench) -> None:
    land_results(bench, [*TEXTS[:9], "of another run"], "earlier")
    with pytest.raises(ReconcileError, match="1 of 10"):
        bench.reconcile()


def test_an_older_letter_that_was_to_be_asked_again_accounts_for_nothing(bench: Bench) -> None:
    earlier = RunRef("earlier", bench.run.workload, bench.run.corpus, "runs/earlier")
    land_results(bench, TEXTS[:8], "answers")
    letters = [letter(TEXTS[8], OutcomeClass.RETRYABLE), letter(TEXTS[9], OutcomeClass.PERMANENT)]
    dead_letters.open_letters(bench.ledger, earlier, SPACE.id, letters, lambda: "x")
    bench.ledger.execute("update runs set started_at = batch_inference.now() where run = 'run'")
    with pytest.raises(ReconcileError, match="1 of 10"):
        bench.reconcile()


def test_two_runs_that_share_a_failing_item_both_account_for_it(
    bench: Bench, ledger: Connection, storage: Storage
) -> None:
    other = Bench(ledger, storage, OFFLINE, TEXTS, run="other")
    land_results(bench, TEXTS[:9], "answers")
    for run in (bench.run, other.run):
        dead_letters.open_letters(
            ledger, run, SPACE.id, [letter(TEXTS[9], OutcomeClass.RETRYABLE)], lambda: "x"
        )
    (shared,) = dead_letters.find(ledger)
    assert shared.run == "other"
    for who in (bench, other):
        assert who.reconcile().dead_lettered == 1


def test_a_run_without_rows_owes_nothing(ledger: Connection, storage: Storage) -> None:
    bench = Bench(ledger, storage, OFFLINE, [])
    bench.rows = []
    assert bench.reconcile() == Accounts(0, 0, 0, 0)
