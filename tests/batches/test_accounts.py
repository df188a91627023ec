"""Two accounts at one service share answers, and nothing else: each run sends from its own."""

from __future__ import annotations

import pytest

from include.batches import runs, submissions
from include.batches.cancel import Cancelled, cancel_run
from include.batches.sending import Submitted, Waiting
from include.batches.submissions import SubmissionRow
from include.errors import LedgerError
from include.ledger.connect import Connection
from include.storage import Storage
from tests.batches.packing import Bench
from tests.batches.submitting import openai_provider, send
from tests.emulators import Tenant

SHARED = "a licence that both corpora quote"


@pytest.fixture
def owner(ledger: Connection, storage: Storage, emulator: Tenant) -> Bench:
    """A run whose shards are planned and not yet sent."""
    provider = openai_provider(emulator.openai_url, emulator.project)
    bench = Bench(ledger, storage, provider, [SHARED, "text of the owner"], run="owner")
    bench.pack()
    return bench


@pytest.fixture
def joiner(ledger: Connection, storage: Storage, owner: Bench, emulator: Tenant) -> Bench:
    """A run at another account that wants one of the owner's items, and one of its own."""
    provider = openai_provider(emulator.openai_url, "another", account="another")
    bench = Bench(ledger, storage, provider, [SHARED, "text of the joiner"], run="joiner")
    assert (bench.pack().joined, bench.pack().sent) == (1, 1)
    return bench


def joined(bench: Bench) -> SubmissionRow:
    (entry,) = (entry for entry in bench.listed() if entry.joined)
    row = submissions.get(bench.ledger, entry.shard.id, entry.attempt)
    assert row is not None
    return row


def submit(bench: Bench, row: SubmissionRow) -> Submitted | Waiting:
    return send(bench.ledger, bench.storage, bench.provider, row.shard, run=bench.run.run)


def test_what_another_run_planned_for_its_account_is_waited_for_until_it_has_landed(
    owner: Bench, joiner: Bench, emulator: Tenant
) -> None:
    planned = joined(joiner)
    waiting = submit(joiner, planned)
    assert isinstance(waiting, Waiting) and "for run owner" in waiting.reason
    assert joined(joiner) == planned
    (entry,) = owner.listed()
    owner.submit(entry)
    assert isinstance(submit(joiner, planned), Waiting)
    emulator.advance(25 * 3600)
    owner.watch(entry)
    assert isinstance(submit(joiner, planned), Waiting), "it has ended, and its owner lands it"
    owner.land(entry)
    landed = submit(joiner, planned)
    assert isinstance(landed, Submitted) and landed.state == "landed"
    (mine,) = (entry for entry in joiner.listed() if entry.joined)
    assert joiner.land(mine).landed_before
    assert {row.account for row in submissions.of_run(owner.ledger, "owner")} == {owner.provider.account}


def test_what_its_owner_gave_up_unsent_is_divided_anew_and_sent_from_ones_own_account(
    owner: Bench, joiner: Bench, emulator: Tenant
) -> None:
    runs.finish(owner.ledger, "owner", "failed")
    for _ in range(2):
        with pytest.raises(LedgerError, match="clear the task `pack`"):
            submit(joiner, joined(joiner))
    assert (joiner.pack().joined, joiner.pack().sent) == (0, 2)
    joiner.process(emulator)
    assert joiner.reconcile().succeeded == 2
    assert {row.account for row in submissions.of_run(owner.ledger, "joiner")} == {"another"}


def test_a_later_attempt_of_the_owner_is_followed_and_left_to_it(owner: Bench, joiner: Bench) -> None:
    first = joined(joiner)
    submissions.void(owner.ledger, first, "refused", from_states=("planned",))
    assert isinstance(submit(owner, first), Submitted)
    assert isinstance(submit(joiner, first), Waiting)
    assert (joined(joiner).attempt, joined(joiner).account) == (2, owner.provider.account)


def test_cancelling_a_run_leaves_what_is_another_runs_at_another_account(owner: Bench, joiner: Bench) -> None:
    (entry,) = owner.listed()
    owner.submit(entry)
    runs.finish(owner.ledger, "owner", "failed")
    (mine,) = submissions.of_run(joiner.ledger, "joiner")
    assert cancel_run(joiner.ledger, joiner.storage, joiner.provider, "joiner") == Cancelled(
        voided=(mine.id,), kept=(joined(joiner).id,)
    )
