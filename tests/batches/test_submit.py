"""A shard is submitted once: the happy path, and every answer that `create` can come to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from include.batches import submissions, watch
from include.batches.submit import Submitted, Waiting
from include.contracts import OutcomeClass, Shard
from include.ledger import clock
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.batches.submitting import (
    SETTINGS,
    SPACE,
    add_run,
    add_shard,
    attempt_of,
    openai_provider,
    row_of,
    send,
)
from tests.conftest import Emulator

TEXTS = [f"text number {number}" for number in range(5)]


@pytest.fixture
def provider(emulator: Emulator) -> OpenAIBatches:
    return openai_provider(emulator.openai_url)


@pytest.fixture
def shard(ledger: Connection, storage: Storage) -> Shard:
    add_run(ledger)
    return add_shard(ledger, storage, TEXTS)


def batches(emulator: Emulator) -> list[dict[str, Any]]:
    return list(emulator.state()["batches"])


def test_a_shard_is_uploaded_created_watched_and_read(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Emulator, shard: Shard
) -> None:
    submitted = send(ledger, storage, provider, shard)
    assert isinstance(submitted, Submitted) and submitted.batch_id
    row = row_of(ledger, shard)
    assert (row.state, row.file_id is not None, row.reserved_tokens) == ("running", True, shard.tokens)
    assert watch.look(ledger, provider, row, settings=SETTINGS) is watch.Seen.RUNNING
    emulator.advance(3600)
    polled = asyncio.run(watch.poll_once(provider, [submitted.batch_id]))
    assert watch.record(ledger, row, polled[0], settings=SETTINGS) is watch.Seen.ENDED
    row = row_of(ledger, shard)
    assert (row.state, row.provider_status, row.reserved_tokens) == ("ended", "completed", 0)
    outcomes = list(provider.outcomes(polled[0], SPACE))
    assert [outcome.cls for outcome in outcomes] == [OutcomeClass.SUCCEEDED] * 5
    assert {outcome.values[0].shape for outcome in outcomes} == {(8,)}  # type: ignore[union-attr]
    assert submissions.mark_landed(ledger, row.id, counts={"succeeded": 5}, usage={"input": 15}, cost_usd=0.1)
    assert not submissions.mark_landed(ledger, row.id, counts={}, usage={}, cost_usd=9.0)
    row = row_of(ledger, shard)
    assert (row.state, row.cost_usd, row.reserved_usd) == ("landed", 0.1, 0.0)
    assert send(ledger, storage, provider, shard) == Submitted(
        row.id, shard.id, 1, "landed", submitted.batch_id
    )
    assert len(batches(emulator)) == 1


def test_a_create_whose_answer_is_lost_is_found_and_adopted(
    ledger: Connection,
    storage: Storage,
    provider: OpenAIBatches,
    emulator: Emulator,
    shard: Shard,
) -> None:
    emulator.faults({"on": "batches.create", "when": {"times": 1}, "do": "drop_after"})
    submitted = send(ledger, storage, provider, shard)
    assert isinstance(submitted, Submitted)
    assert [batch["id"] for batch in batches(emulator)] == [submitted.batch_id]
    assert submitted.attempt == 1
    story = [event for _, event, _ in submissions.events(ledger, submitted.id)]
    assert story == ["planned", "uploaded", "creating", "adopted"]


def advance(ledger: Connection, emulator: Emulator, seconds: float) -> None:
    clock.advance(ledger, seconds)
    emulator.advance(seconds)


def test_a_create_that_did_nothing_becomes_a_second_attempt_after_the_grace(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Emulator, shard: Shard
) -> None:
    emulator.faults({"on": "batches.create", "when": {"times": 1}, "do": "status", "status": 500})
    waiting = send(ledger, storage, provider, shard)
    assert isinstance(waiting, Waiting)
    assert isinstance(send(ledger, storage, provider, shard), Waiting), "two look-ups, but no grace"
    advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
    submitted = send(ledger, storage, provider, shard)
    assert isinstance(submitted, Submitted) and submitted.attempt == 2
    assert [row.state for row in submissions.attempts(ledger, shard.id)] == ["void", "running"]
    assert attempt_of(ledger, shard) == 2
    assert [batch["id"] for batch in batches(emulator)] == [submitted.batch_id]
