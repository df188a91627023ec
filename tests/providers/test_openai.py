"""OpenAI's batch protocol against a real server: what is read is whole, and what is unknown is unknown."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from include.contracts import (
    BatchProvider,
    BatchState,
    BatchStatus,
    Item,
    Outcome,
    OutcomeClass,
    Space,
    Submission,
)
from include.errors import (
    AccountError,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnknown,
    QueueFull,
)
from include.providers.listing import account_of
from include.providers.openai import OpenAIBatches
from include.providers.openai_errors import INPUT_FILE_MISSING
from tests.emulators import Tenant, free_port

SPACE = Space("openai", "emulator", "/v1/embeddings", "text-embedding-3-small", {"dimensions": 8})


def provider_at(url: str, project: str | None = None) -> OpenAIBatches:
    options: dict[str, Any] = {
        "base_url": url,
        "api_key": "sk-test",
        "project": project,
        "timeout": 20,
        "max_retries": 1,
    }
    return OpenAIBatches(OpenAI(**options), AsyncOpenAI(**options), account="acme")


@pytest.fixture
def provider(emulator: Tenant) -> OpenAIBatches:
    return provider_at(emulator.openai_url, emulator.project)


def upload(provider: OpenAIBatches, texts: list[str], space: Space = SPACE) -> Submission:
    keys = [bytes([number]) * 16 for number in range(len(texts))]
    body = b"".join(
        provider.line(space, [Item(key, text, 1)], key.hex()) for key, text in zip(keys, texts, strict=True)
    )
    submission = Submission(str(uuid.uuid4()), "ab" * 16, 1, "test", space.endpoint, len(texts))
    file_id = provider.upload(io.BytesIO(body), len(body), submission)
    return dataclasses.replace(submission, file_id=file_id)


def run(provider: OpenAIBatches, emulator: Tenant, texts: list[str], space: Space = SPACE) -> BatchStatus:
    status = provider.create(upload(provider, texts, space))
    emulator.advance(3600)
    return provider.status(status.batch_id)


def test_it_is_a_batch_provider(provider: OpenAIBatches) -> None:
    assert isinstance(provider, BatchProvider)


def test_an_account_outlives_its_key_and_differs_by_project() -> None:
    assert account_of("api.openai.com", "org", "p") == account_of("api.openai.com", "org", "p")
    names = {account_of("a", None, None), account_of("a", "o", None), account_of("a", None, "o")}
    assert len(names) == 3


class TestOutcomes:
    def test_output_and_error_files_are_both_read(self, provider: OpenAIBatches, emulator: Tenant) -> None:
        emulator.faults(
            {"on": "line", "when": {"custom_id": "01" * 16}, "do": "line_error", "status": 400, "code": "bad"}
        )
        status = run(provider, emulator, ["one", "two", "three"])
        assert (status.state, status.completed, status.failed) == (BatchState.ENDED, 2, 1)
        outcomes = {o.custom_id: o for o in provider.outcomes(status, SPACE)}
        assert [outcomes[bytes([n]).hex() * 16].cls for n in range(3)] == [
            OutcomeClass.SUCCEEDED,
            OutcomeClass.PERMANENT,
            OutcomeClass.SUCCEEDED,
        ]

    @pytest.mark.parametrize("fault", ["cut", "shorten"])
    def test_a_download_that_breaks_off_or_ends_early_is_begun_again(
        self, provider: OpenAIBatches, emulator: Tenant, fault: str
    ) -> None:
        status = run(provider, emulator, [f"text {n}" for n in range(40)])
        emulator.faults({"on": "files.content", "when": {"times": 2}, "do": fault, "bytes": 1000})
        outcomes = list(provider.outcomes(status, SPACE))
        assert len({o.custom_id for o in outcomes}) == len(outcomes) == 40

    def test_a_download_that_never_comes_whole_is_not_read_at_all(
        self, provider: OpenAIBatches, emulator: Tenant
    ) -> None:
        status = run(provider, emulator, ["one", "two"])
        emulator.faults({"on": "files.content", "do": "shorten", "bytes": 100})
        with pytest.raises(ProviderUnavailable, match="100 of"):
            next(provider.outcomes(status, SPACE))

    def test_the_lines_that_a_whole_file_validation_names_are_told(
        self, provider: OpenAIBatches, emulator: Tenant
    ) -> None:
        submission = Submission(str(uuid.uuid4()), "ab" * 16, 1, "test", SPACE.endpoint, 2)
        body = provider.line(SPACE, [Item(b"a" * 16, "x", 1)], "a") + b"{nonsense\n"
        file_id = provider.upload(io.BytesIO(body), len(body), submission)
        created = provider.create(dataclasses.replace(submission, file_id=file_id))
        emulator.advance(3600)
        status = provider.status(created.batch_id)
        assert (status.state, status.provider_status) == (BatchState.ENDED, "failed")
        assert {line: code for line, (code, _) in status.failed_lines.items()} == {2: "invalid_json_line"}
        assert list(provider.outcomes(status, SPACE)) == []


class TestFind:
    def test_a_batch_is_found_behind_any_number_of_newer_ones(
        self, provider: OpenAIBatches, emulator: Tenant
    ) -> None:
        wanted = upload(provider, ["wanted"])
        batch_id = provider.create(wanted).batch_id
        other = upload(provider, ["other"])
        for _ in range(120):
            provider.create(other)
        assert [status.batch_id for status in provider.find(wanted)] == [batch_id]
        assert len(provider.find(other)) == 120
        assert [provider.status(batch_id).batch_id] == [batch_id]

    def test_looking_stops_at_batches_older_than_the_file(
        self, provider: OpenAIBatches, emulator: Tenant
    ) -> None:
        old = upload(provider, ["old"])
        for _ in range(101):
            provider.create(old)
        emulator.advance(3 * 3600)
        wanted = upload(provider, ["wanted"])
        before = emulator.state()["requests"].get("batches.list", 0)
        assert provider.find(wanted) == []
        assert emulator.state()["requests"]["batches.list"] - before == 1

    @pytest.mark.parametrize(
        "body",
        ['{"object": "list"}', '{"data": {}, "has_more": false}', '{"data": [], "has_more": true}', "<p>"],
    )
    def test_a_page_that_cannot_be_read_is_no_empty_page(
        self, provider: OpenAIBatches, emulator: Tenant, body: str
    ) -> None:
        submission = upload(provider, ["x"])
        emulator.faults({"on": "batches.list", "do": "status", "status": 200, "body": body})
        with pytest.raises(ProviderUnavailable):
            provider.find(submission)


class TestPoll:
    @pytest.mark.parametrize("count", [3, 30])
    def test_many_are_asked_for_at_once_and_a_missing_one_is_not_found(
        self, provider: OpenAIBatches, emulator: Tenant, count: int
    ) -> None:
        submission = upload(provider, ["x"])
        ids = [provider.create(submission).batch_id for _ in range(count)]
        states = {s.batch_id: s.state for s in asyncio.run(provider.poll([*ids, "batch_gone"]))}
        assert states == {**dict.fromkeys(ids, BatchState.RUNNING), "batch_gone": BatchState.NOT_FOUND}

    @pytest.mark.parametrize("on", ["batches.retrieve", "batches.list"])
    def test_a_poll_that_fails_leaves_the_batch_out(
        self, provider: OpenAIBatches, emulator: Tenant, on: str
    ) -> None:
        submission = upload(provider, ["x"])
        ids = [provider.create(submission).batch_id for _ in range(20 if on == "batches.list" else 1)]
        emulator.faults({"on": on, "do": "drop_before"})
        assert asyncio.run(provider.poll(ids)) == []

    def test_a_status_never_heard_of_is_running(self, provider: OpenAIBatches, emulator: Tenant) -> None:
        batch_id = provider.create(upload(provider, ["x"])).batch_id
        answer = next(b for b in emulator.state()["batches"] if b["id"] == batch_id)
        emulator.faults(
            {"on": "batches.retrieve", "do": "status", "status": 200, "body": {**answer, "status": "paused"}}
        )
        status = provider.status(batch_id)
        assert (status.state, status.provider_status) == (BatchState.RUNNING, "paused")


class TestErrors:
    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            ({"do": "status", "status": 400}, ProviderRefused),
            ({"do": "status", "status": 422}, ProviderRefused),
            ({"do": "status", "status": 401}, AccountError),
            ({"do": "status", "status": 403}, AccountError),
            ({"do": "status", "status": 429}, QueueFull),
            ({"do": "status", "status": 408}, ProviderUnknown),
            ({"do": "status", "status": 409}, ProviderUnknown),
            ({"do": "status", "status": 500}, ProviderUnknown),
            ({"do": "status", "status": 503}, ProviderUnknown),
            ({"do": "status", "status": 200, "body": "<html>"}, ProviderUnknown),
            ({"do": "status", "status": 200, "body": {"id": None}}, ProviderUnknown),
            ({"do": "drop_before"}, ProviderUnknown),
            ({"do": "drop_after"}, ProviderUnknown),
            ({"do": "cut", "bytes": 10}, ProviderUnknown),
        ],
    )
    def test_create_is_called_once_and_only_a_clear_no_is_a_refusal(
        self,
        provider: OpenAIBatches,
        emulator: Tenant,
        fault: dict[str, Any],
        error: type[ProviderError],
    ) -> None:
        submission = upload(provider, ["x"])
        emulator.faults({"on": "batches.create", **fault})
        with pytest.raises(ProviderError) as caught:
            provider.create(submission)
        assert type(caught.value) is error
        assert emulator.state()["requests"]["batches.create"] == 1

    @pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("Fri, 01 Jan 2021 00:00:00 GMT", 0.0)])
    def test_a_full_queue_says_how_long_to_wait(
        self, provider: OpenAIBatches, emulator: Tenant, header: str, seconds: float
    ) -> None:
        submission = upload(provider, ["x"])
        emulator.faults(
            {"on": "batches.create", "do": "status", "status": 429, "headers": {"retry-after": header}}
        )
        with pytest.raises(QueueFull) as caught:
            provider.create(submission)
        assert caught.value.retry_after == seconds

    def test_no_credit_is_an_account_error_though_its_status_is_429(
        self, provider: OpenAIBatches, emulator: Tenant
    ) -> None:
        submission = upload(provider, ["x"])
        body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
        emulator.faults({"on": "batches.create", "do": "status", "status": 429, "body": body})
        with pytest.raises(AccountError, match="insufficient_quota"):
            provider.create(submission)

    def test_a_missing_input_file_is_told_apart(self, provider: OpenAIBatches) -> None:
        submission = dataclasses.replace(upload(provider, ["x"]), file_id="file-nowhere")
        with pytest.raises(ProviderRefused) as caught:
            provider.create(submission)
        assert caught.value.code == INPUT_FILE_MISSING

    def test_a_server_that_cannot_be_reached_was_sent_nothing(self) -> None:
        provider = provider_at(f"http://127.0.0.1:{free_port()}/v1")
        submission = Submission("id", "ab", 1, "test", SPACE.endpoint, 1, file_id="file-1")
        with pytest.raises(ProviderUnavailable, match="nothing was sent"):
            provider.create(submission)

    def test_another_project_does_not_see_the_batch(self, emulator: Tenant) -> None:
        batch_id = provider_at(emulator.openai_url, "p1")
        created = batch_id.create(upload(batch_id, ["x"]))
        other = provider_at(emulator.openai_url, "p2")
        assert other.status(created.batch_id).state is BatchState.NOT_FOUND


class TestEnding:
    def test_cancelling_what_has_ended_or_is_gone_is_no_error(
        self, provider: OpenAIBatches, emulator: Tenant
    ) -> None:
        status = run(provider, emulator, ["x"])
        provider.cancel(status.batch_id)
        provider.cancel("batch_gone")

    def test_a_file_is_deleted_once_or_twice(self, provider: OpenAIBatches) -> None:
        submission = upload(provider, ["x"])
        assert submission.file_id
        provider.delete_file(submission.file_id)
        provider.delete_file(submission.file_id)


CHAT = Space("openai", "emulator", "/v1/chat/completions", "gpt-5-mini")


@pytest.mark.parametrize(
    ("space", "right"),
    [(SPACE, lambda o: o.values[0].shape == (8,)), (CHAT, lambda o: bool(o.values[0]))],
)
def test_a_probe_asks_the_real_time_twin(
    provider: OpenAIBatches, space: Space, right: Callable[[Outcome], bool]
) -> None:
    outcome = provider.probe(space, "Does this work?")
    assert outcome.cls is OutcomeClass.SUCCEEDED, outcome
    assert right(outcome)


def test_a_probe_of_what_the_service_refuses_says_why(provider: OpenAIBatches, emulator: Tenant) -> None:
    outcome = provider.probe(dataclasses.replace(SPACE, model="no-such-model"), "Does this work?")
    assert outcome.cls is OutcomeClass.ACCOUNT, outcome
    assert "no-such-model" in outcome.message
    emulator.faults({"on": "embeddings", "do": "drop_before"})
    with pytest.raises(ProviderUnavailable):
        provider.probe(SPACE, "Does this work?")
