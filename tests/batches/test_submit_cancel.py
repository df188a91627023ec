"""A run is cancelled at the provider, all of it, and nothing that another run waits for."""

from __future__ import annotations

import pytest

from include.batches import submissions, watch
from include.batches.cancel import Cancelled, cancel_batch, cancel_run
from include.batches.sending import Submitted, Waiting
from include.contracts import Price
from include.errors import BudgetExceeded
from include.ledger import clock
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.batches.submitting import (
    SETTINGS,
    add_run,
    add_shard,
    advance,
    batches,
    list_shard,
    openai_provider,
    row_of,
    send,
)
from tests.emulators import Tenant


@pytest.fixture
def provider(emulator: Tenant) -> OpenAIBatches:
    return openai_provider(emulator.openai_url, emulator.project)


def test_a_cancelled_run_leaves_what_another_run_lists(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant
) -> None:
    add_run(ledger)
    add_run(ledger, "second")
    mine, planned, shared = (add_shard(ledger, storage, [text]) for text in ("mine", "planned", "shared"))
    list_shard(ledger, shared, "second", joined=True)
    send(ledger, storage, provider, mine.id)
    send(ledger, storage, provider, shared.id)
    done = cancel_run(ledger, storage, provider, "run")
    assert done == Cancelled(
        cancelled=(row_of(ledger, mine).id,),
        voided=(row_of(ledger, planned).id,),
        kept=(row_of(ledger, shared).id,),
    )
    advance(ledger, emulator, 3600)
    for shard, status in ((mine, "cancelled"), (shared, "completed")):
        assert watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS) is watch.Seen.ENDED
        assert row_of(ledger, shard).provider_status == status
    assert cancel_run(ledger, storage, provider, "run") == Cancelled()


def test_a_batch_whose_create_was_not_answered_is_cancelled_too(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant
) -> None:
    add_run(ledger)
    shard = add_shard(ledger, storage, ["text"])
    down = {"on": "batches.list", "do": "status", "status": 500}
    emulator.faults({"on": "batches.create", "do": "drop_after"}, down)
    assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
    assert cancel_run(ledger, storage, provider, "run") == Cancelled(unknown=(row_of(ledger, shard).id,))
    emulator.faults()
    assert cancel_run(ledger, storage, provider, "run") == Cancelled(cancelled=(row_of(ledger, shard).id,))
    (batch,) = batches(emulator)
    assert batch["status"] in ("cancelling", "cancelled")


def test_over_budget_nothing_stays_claimed_but_what_another_run_lists(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant
) -> None:
    add_run(ledger, "frugal", budget=0.5)
    add_run(ledger, "second")
    refused, beside, shared = (
        add_shard(ledger, storage, [text], run="frugal", tokens=1_000_000)
        for text in ("refused", "beside", "shared")
    )
    list_shard(ledger, shared, "second", joined=True)
    for _ in range(2):
        with pytest.raises(BudgetExceeded, match=r"run frugal is \$0.50"):
            send(ledger, storage, provider, refused.id, run="frugal", price=Price(input=2.0))
    assert [row.shard for row in submissions.live(ledger, refused.space)] == [shared.id]
    assert [row_of(ledger, shard).attempt for shard in (refused, beside)] == [1, 1]
    assert batches(emulator) == [] and emulator.state()["files"] == []
    ledger.execute("update runs set budget_usd = 5 where run = 'frugal'")
    submitted = send(ledger, storage, provider, refused.id, run="frugal", price=Price(input=2.0))
    assert isinstance(submitted, Submitted) and submitted.attempt == 2


def test_an_overdue_batch_is_told_to_stop_only_once(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant
) -> None:
    add_run(ledger)
    shard = add_shard(ledger, storage, ["text"])
    send(ledger, storage, provider, shard.id)
    assert not watch.is_overdue(ledger, row_of(ledger, shard), SETTINGS)
    clock.advance(ledger, SETTINGS.batch_deadline_hours * 3600)
    emulator.faults({"on": "batches.cancel", "do": "status", "status": 500})
    assert not cancel_batch(provider, row_of(ledger, shard))
    assert watch.is_overdue(ledger, row_of(ledger, shard), SETTINGS)
    emulator.faults()
    assert cancel_batch(provider, row_of(ledger, shard))
    submissions.told_to_stop(ledger, row_of(ledger, shard))
    submissions.seen(ledger, row_of(ledger, shard), "cancelling")
    assert not watch.is_overdue(ledger, row_of(ledger, shard), SETTINGS)
