"""Submitting where requests go with the create and a batch bears nothing of ours: once all the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import anthropic
import pytest

from include.batches import land, submissions, watch
from include.batches.cancel import Cancelled, cancel_run
from include.batches.sending import Submitted, Waiting
from include.contracts import Limits, Shard, Space
from include.ledger.connect import Connection
from include.providers.anthropic import AnthropicBatches
from include.reference import price_for
from include.requests import results
from include.storage import Storage
from tests.batches.submitting import (
    LIMITS,
    SETTINGS,
    add_run,
    add_shard,
    advance,
    attempt_of,
    batches,
    row_of,
    send,
)
from tests.emulators import Tenant
from tests.providers.contract import anthropic_provider

SPACE = Space("anthropic", "emulator", "/v1/messages", "claude-sonnet-5-5", {"max_tokens": 100})
TEXTS = [f"Text number {number} is about Ada Lovelace." for number in range(5)]


@pytest.fixture
def emulator(tenant: Tenant) -> Tenant:
    # What other tests left running ends first.
    tenant.advance(2 * 86_400)
    return tenant


@pytest.fixture
def provider(emulator: Tenant) -> AnthropicBatches:
    return anthropic_provider(emulator.url, emulator.project)


@pytest.fixture
def run(ledger: Connection) -> str:
    return add_run(ledger)


def shard_of(ledger: Connection, storage: Storage, provider: AnthropicBatches, mark: str = "") -> Shard:
    """A shard of five requests of the run."""
    return add_shard(ledger, storage, [text + mark for text in TEXTS], space=SPACE, writer=provider)


def stranger(emulator: Tenant, mark: str) -> str:
    """Another program creates a batch of as many requests in the same workspace; returns its id."""
    client = anthropic.Anthropic(
        base_url=emulator.anthropic_url,
        api_key="another",
        default_headers={"anthropic-workspace-id": emulator.project},
    )
    params: dict[str, Any] = {"model": "claude-haiku-4-5", "max_tokens": 9}
    requests: list[Any] = [
        {
            "custom_id": f"{mark}-{number}",
            "params": {**params, "messages": [{"role": "user", "content": "Hello."}]},
        }
        for number in range(5)
    ]
    return client.messages.batches.create(requests=requests).id


def created(emulator: Tenant) -> int:
    """How many creates arrived since this test began."""
    return int(emulator.state()["requests"]["messages.batches.create"])


def test_a_shard_is_created_watched_and_landed_to_the_cent(
    ledger: Connection, storage: Storage, emulator: Tenant, run: str
) -> None:
    # What the requests share stands in the space here, and is cached for an hour.
    space = dataclasses.replace(SPACE, params={**SPACE.params, "system": "Rules. " * 1500})
    provider = anthropic_provider(emulator.url, emulator.project, cache="1h")
    shard = add_shard(ledger, storage, TEXTS, space=space, writer=provider)
    submitted = send(ledger, storage, provider, shard.id)
    assert isinstance(submitted, Submitted) and submitted.batch_id
    happened = [event for _, event, _ in submissions.events(ledger, submitted.id)]
    assert happened == ["planned", "noted", "creating", "running"]
    row = row_of(ledger, shard)
    assert (row.file_id, row.after_batch_id, row.reserved_requests) == (None, "", 5)
    advance(ledger, emulator, 3600)
    assert watch.look(ledger, provider, row, settings=SETTINGS) is watch.Seen.ENDED
    price = price_for("anthropic", SPACE.model)
    report = land.land(ledger, storage, provider, space, price, shard.id, 1, dimensions=None)
    assert (report.items, report.succeeded, report.models) == (5, 5, (SPACE.model,))
    books = emulator.state()["totals"]["batches"][submitted.batch_id]
    assert report.cost_usd == pytest.approx(books["dollars"], rel=1e-12) and report.cost_usd
    assert report.usage.cache_read and report.usage.cache_write_hour == report.usage.cache_write > 0
    (path,) = results.files(storage, space.id)
    with storage.parquet_file(path) as file:
        assert sorted(file.read()["output"].to_pylist()) == sorted(TEXTS)
    assert isinstance(send(ledger, storage, provider, shard.id), Submitted)
    assert len(batches(emulator)) == 1


class TestLost:
    """The response to a create is lost while other batches of the same size are in flight."""

    def lose(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, shard: Shard
    ) -> None:
        emulator.faults({"on": "messages.batches.create", "when": {"times": 1}, "do": "drop_after"})
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        emulator.faults()

    def test_the_right_one_is_adopted_and_nothing_is_bought_twice(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        older, lost, newer = (shard_of(ledger, storage, provider, mark) for mark in ("!", "", "?"))
        first = send(ledger, storage, provider, older.id)
        self.lose(ledger, storage, provider, emulator, lost)
        theirs = stranger(emulator, "theirs")
        second = send(ledger, storage, provider, newer.id)
        assert isinstance(first, Submitted) and isinstance(second, Submitted)
        known = {first.batch_id, second.batch_id, theirs}
        (mine,) = (batch["id"] for batch in batches(emulator) if batch["id"] not in known)
        for _ in range(2):
            waiting = send(ledger, storage, provider, lost.id)
            assert isinstance(waiting, Waiting) and "only the end tells" in waiting.reason
            advance(ledger, emulator, 1)
        row = row_of(ledger, lost)
        assert (row.state, row.look_ups, row.after_batch_id) == ("creating", 0, first.batch_id)
        assert row.reserved_requests == 5, "a batch may be there"
        advance(ledger, emulator, 3600)
        submitted = send(ledger, storage, provider, lost.id)
        assert isinstance(submitted, Submitted)
        assert (submitted.batch_id, submitted.attempt) == (mine, 1)
        assert created(emulator) == len(batches(emulator)) == 4
        for shard in (older, lost, newer):
            watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS)
            assert (
                land.land(ledger, storage, provider, SPACE, None, shard.id, 1, dimensions=None).succeeded == 5
            )
        charges = emulator.state()["charges"]
        assert len(charges) == 20 and set(charges.values()) == {1}

    def test_two_lost_ones_are_told_apart(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        one, two = (shard_of(ledger, storage, provider, mark) for mark in ("", "!"))
        self.lose(ledger, storage, provider, emulator, one)
        self.lose(ledger, storage, provider, emulator, two)
        ids = [batch["id"] for batch in batches(emulator)]
        advance(ledger, emulator, 3600)
        found = [send(ledger, storage, provider, shard.id) for shard in (two, one)]
        assert [each.batch_id for each in found if isinstance(each, Submitted)] == ids[::-1]
        assert created(emulator) == 2

    def test_it_is_told_to_stop_only_once_it_is_known(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        shard = shard_of(ledger, storage, provider)
        self.lose(ledger, storage, provider, emulator, shard)
        stranger(emulator, "theirs")
        assert cancel_run(ledger, storage, provider, run) == Cancelled(unknown=(row_of(ledger, shard).id,))
        assert {batch["processing_status"] for batch in batches(emulator)} == {"in_progress"}


class TestNothingMade:
    """The create did nothing, and nobody said so."""

    def fail(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, shard: Shard
    ) -> None:
        fault = {"on": "messages.batches.create", "when": {"times": 1}, "do": "status", "status": 529}
        emulator.faults(fault)
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        emulator.faults()

    def test_a_second_attempt_follows_only_after_the_grace(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        shard = shard_of(ledger, storage, provider)
        self.fail(ledger, storage, provider, emulator, shard)
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 2
        assert [batch["id"] for batch in batches(emulator)] == [submitted.batch_id]

    def test_a_stranger_of_the_same_size_is_waited_for_and_not_taken(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        shard = shard_of(ledger, storage, provider)
        emulator.faults({"on": "batch", "do": "pace", "batch_seconds": 36_000})
        theirs = stranger(emulator, "theirs-before")
        self.fail(ledger, storage, provider, emulator, shard)
        emulator.faults({"on": "batch", "do": "pace", "batch_seconds": 36_000})
        theirs = stranger(emulator, "theirs-after")
        advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
        for number in range(2):
            # Those that came after the grace aren't waited for.
            waiting = send(ledger, storage, provider, shard.id)
            assert isinstance(waiting, Waiting) and theirs in waiting.reason
            stranger(emulator, f"later-{number}")
        emulator.faults()
        advance(ledger, emulator, 35_990)
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 2
        first, second = submissions.attempts(ledger, shard.id)
        assert first.state == "void" and first.until_batch_id and second.until_batch_id is None
        assert all(name.startswith(("theirs", "later")) for name in emulator.state()["charges"])

    @pytest.mark.parametrize(
        "fault",
        [
            {"do": "status", "status": 500},
            {"do": "status", "status": 200, "body": "<html>"},
            {"do": "drop_before"},
            {"do": "status", "status": 429, "headers": {"retry-after": "0"}},
        ],
    )
    def test_a_look_up_that_fails_decides_nothing(
        self,
        ledger: Connection,
        storage: Storage,
        provider: AnthropicBatches,
        emulator: Tenant,
        run: str,
        fault: dict[str, Any],
    ) -> None:
        shard = shard_of(ledger, storage, provider)
        self.fail(ledger, storage, provider, emulator, shard)
        emulator.faults({"on": "messages.batches.list", **fault})
        looked = row_of(ledger, shard).look_ups
        for _ in range(2):
            advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
            assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        row = row_of(ledger, shard)
        assert (row.attempt, row.state, row.look_ups) == (1, "creating", looked)


class TestBefore:
    def test_without_the_newest_noted_nothing_is_created(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        shard = shard_of(ledger, storage, provider)
        emulator.faults({"on": "messages.batches.list", "do": "status", "status": 503})
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        row = row_of(ledger, shard)
        assert (row.state, row.reserved_requests) == ("planned", 0)
        assert created(emulator) == 0
        emulator.faults()
        assert isinstance(send(ledger, storage, provider, shard.id), Submitted)

    def test_a_full_queue_waits_as_long_as_it_is_told(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        shard = shard_of(ledger, storage, provider)
        fault = {"on": "messages.batches.create", "do": "status", "status": 429}
        emulator.faults({**fault, "headers": {"retry-after": "77"}})
        waiting = send(ledger, storage, provider, shard.id)
        assert isinstance(waiting, Waiting) and waiting.seconds == 77
        assert row_of(ledger, shard).state == "planned" and attempt_of(ledger, shard.id) == 1

    def test_room_is_that_of_all_models_together(
        self, ledger: Connection, storage: Storage, provider: AnthropicBatches, emulator: Tenant, run: str
    ) -> None:
        narrow = Limits(LIMITS.requests_per_batch, LIMITS.bytes_per_batch, account_requests=8)
        one, two = (shard_of(ledger, storage, provider, mark) for mark in ("", "!"))
        ledger.execute("update submissions set model = 'another' where shard = %s", (two.id,))
        assert isinstance(send(ledger, storage, provider, one.id, limits=narrow), Submitted)
        waiting = send(ledger, storage, provider, two.id, limits=narrow)
        assert isinstance(waiting, Waiting) and "5 of 8 enqueued requests of all models" in waiting.reason
