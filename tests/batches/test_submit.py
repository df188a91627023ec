"""A shard is submitted once: the happy path, and every answer that `create` can come to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from include.batches import claims, submissions, watch
from include.batches.sending import Submitted, Waiting
from include.batches.story import story
from include.contracts import OutcomeClass, Shard
from include.errors import AccountError, LedgerError, ProviderRefused
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.batches.submitting import (
    SETTINGS,
    SPACE,
    add_run,
    add_shard,
    advance,
    attempt_of,
    batches,
    list_shard,
    openai_provider,
    row_of,
    send,
)
from tests.emulators import Tenant

TEXTS = [f"text number {number}" for number in range(5)]


@pytest.fixture
def provider(emulator: Tenant) -> OpenAIBatches:
    return openai_provider(emulator.openai_url, emulator.project)


@pytest.fixture
def shard(ledger: Connection, storage: Storage) -> Shard:
    add_run(ledger)
    return add_shard(ledger, storage, TEXTS)


def happened(ledger: Connection, id: str) -> list[str]:
    return [event for _, event, _ in submissions.events(ledger, id)]


def test_a_shard_is_uploaded_created_watched_and_read(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
) -> None:
    submitted = send(ledger, storage, provider, shard.id)
    assert isinstance(submitted, Submitted) and submitted.batch_id
    row = row_of(ledger, shard)
    assert (row.state, row.file_id is not None, row.reserved_tokens) == ("running", True, shard.tokens)
    assert watch.look(ledger, provider, row, settings=SETTINGS) is watch.Seen.RUNNING
    emulator.advance(3600)
    polled = asyncio.run(provider.poll([submitted.batch_id]))
    assert watch.record(ledger, row, polled[0], settings=SETTINGS) is watch.Seen.ENDED
    row = row_of(ledger, shard)
    assert (row.state, row.provider_status, row.reserved_tokens) == ("ended", "completed", 0)
    outcomes = list(provider.outcomes(polled[0], SPACE))
    assert [outcome.cls for outcome in outcomes] == [OutcomeClass.SUCCEEDED] * 5
    assert submissions.mark_landed(ledger, row.id, counts={"succeeded": 5}, usage={"input": 15}, cost_usd=0.1)
    assert not submissions.mark_landed(ledger, row.id, counts={}, usage={}, cost_usd=9.0)
    row = row_of(ledger, shard)
    assert (row.state, row.cost_usd, row.reserved_usd) == ("landed", 0.1, 0.0)
    again = send(ledger, storage, provider, shard.id)
    assert again == Submitted(row.id, shard.id, 1, "landed", submitted.batch_id)
    assert len(batches(emulator)) == 1
    told = "\n".join(story(ledger, submitted.batch_id).lines())
    assert "5 lines" in told and "landed: succeeded 5; cost $0.1000" in told


def test_what_was_never_packed_is_not_sent(
    ledger: Connection, storage: Storage, provider: OpenAIBatches, shard: Shard
) -> None:
    with pytest.raises(LedgerError, match="pack"):
        ledger.execute("update run_shards set attempt = 7")
        send(ledger, storage, provider, shard.id)


class TestUnknown:
    """`create` was called and nobody knows what came of it."""

    @pytest.mark.parametrize("fault", [{"do": "drop_after"}, {"do": "cut", "bytes": 20}])
    def test_a_create_whose_answer_is_lost_is_found_and_adopted(
        self,
        ledger: Connection,
        storage: Storage,
        provider: OpenAIBatches,
        emulator: Tenant,
        shard: Shard,
        fault: dict[str, Any],
    ) -> None:
        emulator.faults({"on": "batches.create", **fault})
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 1
        assert [batch["id"] for batch in batches(emulator)] == [submitted.batch_id]
        assert happened(ledger, submitted.id) == ["planned", "uploaded", "creating", "adopted"]

    @pytest.mark.parametrize("status", [408, 409, 500, 503])
    def test_a_create_that_did_nothing_is_a_second_attempt_only_after_the_grace(
        self,
        ledger: Connection,
        storage: Storage,
        provider: OpenAIBatches,
        emulator: Tenant,
        shard: Shard,
        status: int,
    ) -> None:
        emulator.faults({"on": "batches.create", "when": {"times": 1}, "do": "status", "status": status})
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting), "two look-ups, but no grace"
        assert row_of(ledger, shard).reserved_tokens == shard.tokens, "a batch may be there"
        advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 2
        first, second = submissions.attempts(ledger, shard.id)
        assert (first.state, first.reserved_tokens, first.reserved_usd) == ("void", 0, 0)
        assert second.file_id != first.file_id, "a late batch of the first can't be taken for the second"
        assert attempt_of(ledger, shard.id) == 2
        assert [batch["id"] for batch in batches(emulator)] == [submitted.batch_id]
        assert first.file_id not in {file["id"] for file in emulator.state()["files"]}

    @pytest.mark.parametrize(
        "fault",
        [
            {"do": "status", "status": 500},
            {"do": "status", "status": 200, "body": "<html>"},
            {"do": "status", "status": 200, "body": {"object": "list"}},
            {"do": "drop_before"},
            {"do": "status", "status": 429, "headers": {"retry-after": "0"}},
        ],
    )
    def test_a_look_up_that_fails_decides_nothing(
        self,
        ledger: Connection,
        storage: Storage,
        provider: OpenAIBatches,
        emulator: Tenant,
        shard: Shard,
        fault: dict[str, Any],
    ) -> None:
        emulator.faults({"on": "batches.create", "do": "drop_after"}, {"on": "batches.list", **fault})
        for _ in range(2):
            assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
            advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
        row = row_of(ledger, shard)
        assert (row.attempt, row.state, row.look_ups) == (1, "creating", 0)
        emulator.faults()
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 1
        assert len(batches(emulator)) == 1

    def test_one_look_up_is_not_enough_however_long_ago(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        emulator.faults(
            {"on": "batches.create", "do": "status", "status": 500},
            {"on": "batches.list", "when": {"nth": 2}, "do": "status", "status": 501},
        )
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
        assert isinstance(
            send(ledger, storage, openai_provider(emulator.openai_url, emulator.project), shard.id), Waiting
        )

    def test_a_second_batch_of_one_create_is_cancelled(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        emulator.faults({"on": "batches.create", "do": "status", "status": 500})
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        emulator.faults()
        for _ in range(2):  # something between us and the provider repeated the call
            provider.create(row_of(ledger, shard).as_submission())
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted)
        running = [batch["id"] for batch in batches(emulator) if batch["status"] == "validating"]
        assert running == [submitted.batch_id]


class TestRefused:
    """`create` was answered with a no: nothing exists."""

    def test_a_full_queue_waits_as_long_as_it_is_told_and_stays_the_same_attempt(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        emulator.faults(
            {
                "on": "batches.create",
                "when": {"times": 1},
                "do": "status",
                "status": 429,
                "headers": {"retry-after": "3600"},
            }
        )
        waiting = send(ledger, storage, provider, shard.id)
        assert isinstance(waiting, Waiting) and waiting.seconds == 3600
        assert row_of(ledger, shard).reserved_tokens == 0
        waiting = send(ledger, storage, provider, shard.id)
        assert isinstance(waiting, Waiting) and 3500 < waiting.seconds <= 3600
        advance(ledger, emulator, 3601)
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 1
        assert len(batches(emulator)) == 1

    @pytest.mark.parametrize("on", ["files.create", "batches.create"])
    def test_an_account_error_stops_the_run_which_resumes_once_it_is_mended(
        self,
        ledger: Connection,
        storage: Storage,
        provider: OpenAIBatches,
        emulator: Tenant,
        shard: Shard,
        on: str,
    ) -> None:
        emulator.faults({"on": on, "do": "status", "status": 401})
        with pytest.raises(AccountError):
            send(ledger, storage, provider, shard.id)
        row = row_of(ledger, shard)
        assert (row.state, row.reserved_tokens) == ("planned", 0)
        emulator.faults()
        rotated = openai_provider(emulator.openai_url, emulator.project, key="sk-another")
        submitted = send(ledger, storage, rotated, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 1

    @pytest.mark.parametrize("on", ["files.create", "batches.create"])
    def test_a_refusal_of_the_request_raises_and_frees_its_items(
        self,
        ledger: Connection,
        storage: Storage,
        provider: OpenAIBatches,
        emulator: Tenant,
        shard: Shard,
        on: str,
    ) -> None:
        emulator.faults({"on": on, "do": "status", "status": 422})
        with pytest.raises(ProviderRefused):
            send(ledger, storage, provider, shard.id)
        assert submissions.live(ledger, shard.space) == []
        emulator.faults()
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 2

    def test_a_file_that_is_not_found_at_once_is_asked_for_again(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        emulator.faults(missing_file(times=2))
        submitted = send(ledger, storage, provider, shard.id)
        assert isinstance(submitted, Submitted) and submitted.attempt == 1
        assert emulator.state()["requests"]["files.create"] == 1

    def test_a_file_that_is_never_found_is_uploaded_anew_and_then_given_up(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        settings = with_quick_file_waits()
        emulator.faults(missing_file(times=5))
        submitted = send(ledger, storage, provider, shard.id, settings=settings)
        assert isinstance(submitted, Submitted) and submitted.attempt == 1
        assert emulator.state()["requests"]["files.create"] == 2
        other = add_shard(ledger, storage, ["other"])
        emulator.faults(missing_file(times=100))
        with pytest.raises(ProviderRefused, match="No such File"):
            send(ledger, storage, provider, other.id, settings=settings)
        assert row_of(ledger, other).state == "void"

    def test_a_server_that_is_down_is_waited_for_without_a_grace(
        self, ledger: Connection, storage: Storage, emulator: Tenant, shard: Shard
    ) -> None:
        down = openai_provider("http://127.0.0.1:9/v1")
        assert isinstance(send(ledger, storage, down, shard.id), Waiting)
        assert row_of(ledger, shard).state == "planned"
        assert isinstance(
            send(ledger, storage, openai_provider(emulator.openai_url, emulator.project), shard.id), Submitted
        )


def missing_file(times: int) -> dict[str, Any]:
    body = {"error": {"message": "No such File object: file-1", "param": "input_file_id"}}
    return {"on": "batches.create", "when": {"times": times}, "do": "status", "status": 404, "body": body}


def with_quick_file_waits() -> Any:
    import dataclasses

    return dataclasses.replace(SETTINGS, file_wait_seconds=0.01)


class TestAccounts:
    def test_a_rotated_key_resumes(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        submitted = send(ledger, storage, provider, shard.id)
        rotated = openai_provider(emulator.openai_url, emulator.project, key="sk-rotated")
        assert send(ledger, storage, rotated, shard.id) == submitted
        assert watch.look(ledger, rotated, row_of(ledger, shard), settings=SETTINGS) is watch.Seen.RUNNING
        assert len(batches(emulator)) == 1

    def test_another_projects_404_is_recognised(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        send(ledger, storage, provider, shard.id)
        other = openai_provider(emulator.openai_url, "other", account="other")
        with pytest.raises(AccountError, match="belongs to account acme"):
            watch.look(ledger, other, row_of(ledger, shard), settings=SETTINGS)
        row = row_of(ledger, shard)
        assert (row.state, row.missing_since) == ("running", None)

    def test_an_unknown_create_is_not_looked_for_in_another_account(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        emulator.faults(
            {"on": "batches.create", "do": "drop_after"},
            {"on": "batches.list", "do": "status", "status": 500},
        )
        send(ledger, storage, provider, shard.id)
        emulator.faults()
        other = openai_provider(emulator.openai_url, "other", account="other")
        with pytest.raises(AccountError):
            send(ledger, storage, other, shard.id)
        assert isinstance(send(ledger, storage, provider, shard.id), Submitted)
        assert len(batches(emulator)) == 1

    def test_what_was_not_sent_yet_follows_the_connection(
        self, ledger: Connection, storage: Storage, emulator: Tenant, shard: Shard
    ) -> None:
        other = openai_provider(emulator.openai_url, "other", account="other")
        assert isinstance(send(ledger, storage, other, shard.id), Submitted)
        assert row_of(ledger, shard).account == "other"


class TestWatching:
    def test_a_404_is_unknown_for_a_long_while(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        send(ledger, storage, provider, shard.id)
        emulator.faults({"on": "batches.retrieve", "do": "status", "status": 404})
        for _ in range(3):
            look = watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS)
            assert look is watch.Seen.RUNNING
            advance(ledger, emulator, 3600)
        row = row_of(ledger, shard)
        assert row.state == "running" and row.missing_since is not None
        emulator.faults()
        assert watch.look(ledger, provider, row, settings=SETTINGS) is watch.Seen.ENDED
        assert row_of(ledger, shard).provider_status == "completed"

    def test_a_404_for_longer_than_the_deadline_is_the_end(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        send(ledger, storage, provider, shard.id)
        emulator.faults({"on": "batches.retrieve", "do": "status", "status": 404})
        watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS)
        advance(ledger, emulator, SETTINGS.batch_deadline_hours * 3600 + 1)
        assert watch.is_overdue(ledger, row_of(ledger, shard), SETTINGS)
        assert watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS) is watch.Seen.ENDED
        row = row_of(ledger, shard)
        assert (row.state, row.provider_status) == ("ended", "not_found")

    def test_no_error_of_a_poll_ends_a_wait(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        send(ledger, storage, provider, shard.id)
        for fault in (
            {"do": "status", "status": 401},
            {"do": "drop_before"},
            {"do": "status", "status": 418},
        ):
            emulator.faults({"on": "batches.retrieve", **fault})
            look = watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS)
            assert look is watch.Seen.RUNNING

    def test_a_queue_that_is_full_all_the_same_is_a_new_attempt_later(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        emulator.faults(
            {
                "on": "batch",
                "when": {"times": 1},
                "do": "fail_batch",
                "code": "token_limit_exceeded",
                "message": "Enqueued token limit reached for text-embedding-3-small in organization acme.",
            }
        )
        first = send(ledger, storage, provider, shard.id)
        assert isinstance(first, Submitted)
        advance(ledger, emulator, 60)
        seen = watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS)
        assert seen is watch.Seen.AGAIN and not seen
        assert attempt_of(ledger, shard.id) == 2
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting), "not at once"
        old = submissions.by_id(ledger, first.id)
        assert watch.look(ledger, provider, old, settings=SETTINGS) is watch.Seen.AGAIN
        advance(ledger, emulator, SETTINGS.queue_full_seconds * 2 + 1)
        second = send(ledger, storage, provider, shard.id)
        assert isinstance(second, Submitted) and second.attempt == 2
        advance(ledger, emulator, 3600)
        assert watch.look(ledger, provider, row_of(ledger, shard), settings=SETTINGS) is watch.Seen.ENDED


class TestSharing:
    def test_a_run_that_joined_follows_to_the_new_attempt_and_pays_for_what_it_submits(
        self, ledger: Connection, storage: Storage, provider: OpenAIBatches, emulator: Tenant, shard: Shard
    ) -> None:
        add_run(ledger, "second")
        list_shard(ledger, shard, "second", joined=True)
        assert claims.wanted_by_others(ledger, row_of(ledger, shard), "run")
        emulator.faults({"on": "batches.create", "when": {"times": 1}, "do": "status", "status": 500})
        assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
        advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
        submitted = send(ledger, storage, provider, shard.id, run="second")
        assert isinstance(submitted, Submitted) and submitted.attempt == 2
        assert attempt_of(ledger, shard.id) == attempt_of(ledger, shard.id, "second") == 2
        assert send(ledger, storage, provider, shard.id) == submitted
        assert [row.attempt for row in submissions.of_run(ledger, "second")] == [2]
        assert len(batches(emulator)) == 1
