"""The contract of providers, run over every one of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import jsonschema
import pytest

from include.contracts import BatchProvider, BatchState, Item, OutcomeClass, Usage
from include.errors import (
    AccountError,
    ConfigError,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUndecided,
    ProviderUnknown,
    QueueFull,
)
from include.providers.capabilities import DENIED, Capability
from include.providers.prompts import answer_params, question
from include.reference import limits_for, price_for
from tests.emulators import Tenant, free_port
from tests.providers.contract import KINDS, Bench, needs

TEXTS = [f"Text number {number} is about Ada Lovelace." for number in range(6)]


@pytest.fixture(params=sorted(KINDS))
def name(request: pytest.FixtureRequest) -> str:
    """The provider under test; what it is denied must fail."""
    name = str(request.param)
    needed: frozenset[Capability] = getattr(request.function, "needs", frozenset())
    denied = needed & DENIED[name]
    if denied:
        reason = f"{name} has no {', '.join(sorted(denied))}"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    return name


@pytest.fixture
def bench(name: str, emulator: Tenant) -> Bench:
    return Bench(name, emulator)


def test_every_provider_has_its_line_in_the_capability_table_and_its_limits_and_prices() -> None:
    assert set(DENIED) == set(KINDS)
    for name, kind in KINDS.items():
        assert limits_for(name, kind.space.endpoint, kind.space.model).requests_per_batch > 0
        assert price_for(name, kind.space.model) is not None


def test_it_is_a_batch_provider(bench: Bench, name: str) -> None:
    assert isinstance(bench.provider, BatchProvider)
    assert (bench.provider.name, bench.provider.account) == (name, "acme")


class TestRequests:
    def test_a_line_is_one_line_that_bears_its_id_and_is_the_same_each_time(self, bench: Bench) -> None:
        item = Item(b"k" * 16, {"system": "Be brief.\n", **question("one\u2028two\r\nthree")}, 3)
        line = bench.provider.line(bench.space, [item], "the-id")
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        assert json.loads(line)["custom_id"] == "the-id"
        assert bench.provider.line(bench.space, [item], "the-id") == line

    @pytest.mark.parametrize("bad", ["text", ["list"], None])
    def test_another_shape_of_input_is_a_clear_error(self, bench: Bench, bad: Any) -> None:
        with pytest.raises(ConfigError, match="messages"):
            bench.provider.line(bench.space, [Item(b"k" * 16, bad, 1)], "id")
        with pytest.raises(ConfigError, match="one input"):
            bench.provider.line(bench.space, [Item(b"k" * 16, question("x"), 1)] * 2, "id")

    def test_a_system_prompt_and_a_conversation_reach_the_model(self, bench: Bench) -> None:
        talk: Any = {
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": "Ada met Charles."},
                {"role": "assistant", "content": "Who did?"},
                {"role": "user", "content": "Charles Babbage met Ada Lovelace."},
            ],
        }
        long, short = bench.answers(
            bench.run(["a", "b"], [talk, question("Charles Babbage met Ada Lovelace.")])
        )
        assert long.values == short.values == ["Charles Babbage met Ada Lovelace."]
        assert long.usage.input > short.usage.input + 5, "the rest of the talk was sent too"

    def test_an_answer_obeys_the_schema_that_is_asked_for(self, bench: Bench, name: str) -> None:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {
                "summary": {"type": "string", "maxLength": 2000},
                "year": {"type": "integer", "minimum": 1},
                "people": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                },
            },
        }
        params = answer_params(name, bench.space.endpoint, max_tokens=500, schema=schema)
        (outcome,) = bench.answers(bench.run(["Ada Lovelace wrote it in 1843."], **params))
        assert outcome.cls is OutcomeClass.SUCCEEDED, outcome
        assert isinstance(outcome.values[0], str)
        answer = json.loads(outcome.values[0])
        jsonschema.validate(answer, schema)
        assert answer["year"] == 1843 and set(answer) == {"summary", "year", "people"}

    @needs(Capability.EMBEDDINGS)
    def test_several_texts_are_embedded_in_one_request(self, bench: Bench) -> None:
        space = dataclasses.replace(
            bench.space,
            endpoint="/v1/embeddings",
            model="text-embedding-3-small",
            params={"dimensions": 8},
        )
        items = [Item(bytes([number]) * 16, f"text {number}", 2) for number in range(3)]
        assert json.loads(bench.provider.line(space, items, "id"))["body"]["input"] == [
            "text 0",
            "text 1",
            "text 2",
        ]
        assert len(bench.provider.probe(space, "x").values[0]) == 8


class TestOutcomes:
    def test_every_request_has_its_answer_whatever_the_order(self, bench: Bench) -> None:
        sent = bench.prepare(TEXTS)
        created = bench.create(sent)
        assert (created.state, created.total in (0, 6)) == (BatchState.RUNNING, True)
        bench.emulator.advance(3600)
        status = bench.provider.status(created.batch_id)
        assert (status.total, status.completed, status.failed) == (6, 6, 0)
        outcomes = bench.answers(status)
        assert [outcome.custom_id for outcome in outcomes] == sorted(sent.ids.values())
        for outcome, text in zip(outcomes, TEXTS, strict=True):
            assert outcome.cls is OutcomeClass.SUCCEEDED
            assert outcome.values == [text]
            assert outcome.model == bench.space.model

    @pytest.mark.parametrize("price", ["plain", "cached"])
    def test_usage_costs_what_the_service_charges(self, bench: Bench, name: str, price: str) -> None:
        system = "Rules. " * (1500 if price == "cached" else 1)
        asked: list[Any] = [{"system": system, **question(text)} for text in TEXTS]
        status = bench.run(TEXTS, asked)
        usage = sum((outcome.usage for outcome in bench.answers(status)), Usage())
        books = bench.emulator.state()["totals"]["batches"][status.batch_id]
        assert (usage.input, usage.output) == (books["input_tokens"], books["output_tokens"])
        known = price_for(name, bench.space.model)
        assert known is not None and books["dollars"] > 0
        assert known.cost(usage, batch=True) == pytest.approx(books["dollars"], rel=1e-12)

    @needs(Capability.PROMPT_CACHE)
    @pytest.mark.parametrize(("ttl", "hour"), [("5m", False), ("1h", True)])
    def test_what_requests_share_is_paid_for_once(self, bench: Bench, ttl: str, hour: bool) -> None:
        bench.provider = bench.kind.connect(bench.emulator.url, bench.emulator.project, cache=ttl)
        asked: list[Any] = [{"system": "Rules. " * 1500, **question(text)} for text in TEXTS]
        usages = [outcome.usage for outcome in bench.answers(bench.run(TEXTS, asked))]
        assert sum(usage.cache_read > 2_500 for usage in usages) >= 3
        assert usages and all(usage.cache_read + usage.cache_write > 2_500 for usage in usages)
        written = sum(usage.cache_write for usage in usages)
        assert written > 0
        assert sum(usage.cache_write_hour for usage in usages) == (written if hour else 0)
        plain = bench.kind.connect(bench.emulator.url, bench.emulator.project, cache="off")
        line = plain.line(bench.space, [Item(b"k" * 16, asked[0], 1)], "id")
        assert b"cache_control" not in line

    @pytest.mark.parametrize(
        ("status", "cls"),
        [
            (400, OutcomeClass.PERMANENT),
            (401, OutcomeClass.ACCOUNT),
            (402, OutcomeClass.ACCOUNT),
            (413, OutcomeClass.PERMANENT),
            (429, OutcomeClass.RETRYABLE),
            (500, OutcomeClass.RETRYABLE),
            (529, OutcomeClass.RETRYABLE),
        ],
    )
    def test_a_request_that_failed_has_its_class_and_the_others_their_answers(
        self, bench: Bench, status: int, cls: OutcomeClass
    ) -> None:
        rule = {"match": "number 1 "}
        bench.fault(when=rule, do="line_error", status=status, type=TYPES.get(status), message="So it is.")
        outcomes = bench.answers(bench.run(TEXTS))
        assert [outcome.cls for outcome in outcomes] == [
            cls if number == 1 else OutcomeClass.SUCCEEDED for number in range(6)
        ]
        assert "So it is." in outcomes[1].message and outcomes[1].code
        assert outcomes[1].usage == Usage()

    def test_a_model_that_is_not_there_stops_the_run(self, bench: Bench) -> None:
        bench.space = dataclasses.replace(bench.space, model="no-such-model")
        outcome = bench.provider.probe(bench.space, "x")
        assert outcome.cls is OutcomeClass.ACCOUNT and "no-such-model" in outcome.message
        status = bench.run(TEXTS)
        told = {outcome.cls for outcome in bench.answers(status)}
        whole = status.failed_lines or status.error
        assert told == {OutcomeClass.ACCOUNT} or (whole and not told)

    def test_a_truncated_answer_is_invalid_and_kept(self, bench: Bench) -> None:
        outcomes = bench.answers(bench.run(TEXTS, **bench.kind.truncated))
        assert {(outcome.cls, outcome.code) for outcome in outcomes} == {(OutcomeClass.INVALID, "truncated")}
        assert all(outcome.values and outcome.usage.output == 2 for outcome in outcomes)

    def test_a_refused_answer_is_invalid_and_says_so(self, bench: Bench) -> None:
        bench.fault(when={"match": "number 2 "}, do="line_body", body=bench.kind.refusal)
        outcomes = bench.answers(bench.run(TEXTS))
        refused = outcomes[2]
        assert (refused.cls, refused.code) == (OutcomeClass.INVALID, "refused")
        assert "rather not" in refused.message and refused.usage.input > 0

    def test_what_the_window_left_undone_can_be_asked_again(self, bench: Bench) -> None:
        bench.emulator.faults({"on": "batch", "do": "expire_at", "fraction": 0.5})
        status = bench.run(TEXTS)
        assert (status.completed, status.failed) == (3, 3)
        told = [(outcome.cls, outcome.code) for outcome in bench.answers(status)]
        assert told.count((OutcomeClass.SUCCEEDED, "")) == 3
        assert told.count((OutcomeClass.RETRYABLE, "batch_expired")) == 3

    def test_a_cancelled_batch_keeps_what_was_done(self, bench: Bench) -> None:
        bench.emulator.faults({"on": "batch", "do": "pace", "validating_seconds": 0, "batch_seconds": 600})
        created = bench.create(bench.prepare(TEXTS))
        bench.emulator.advance(300)
        bench.provider.cancel(created.batch_id)
        bench.emulator.advance(600)
        told = [
            (outcome.cls, outcome.code) for outcome in bench.answers(bench.provider.status(created.batch_id))
        ]
        assert told.count((OutcomeClass.SUCCEEDED, "")) == 3
        assert told.count((OutcomeClass.RETRYABLE, "batch_cancelled")) == 3

    def test_lost_doubled_and_foreign_lines_are_told_as_they_come(self, bench: Bench) -> None:
        bench.emulator.faults(
            {"on": "line", "when": {"match": "number 0 "}, "do": "line_omit"},
            {"on": "line", "when": {"match": "number 1 "}, "do": "line_duplicate"},
            {"on": "line", "when": {"match": "number 2 "}, "do": "line_foreign", "foreign_id": "zz"},
        )
        sent = bench.prepare(TEXTS)
        created = bench.create(sent)
        bench.emulator.advance(3600)
        told = [each.custom_id for each in bench.answers(bench.provider.status(created.batch_id))]
        ids = list(sent.ids.values())
        assert told == sorted([*ids[1:], ids[1], "zz"])

    @pytest.mark.parametrize("fault", ["cut", "shorten"])
    def test_a_download_that_breaks_off_or_ends_early_is_begun_again(self, bench: Bench, fault: str) -> None:
        status = bench.run([f"text {number}" for number in range(40)])
        bench.fault("results", when={"times": 2}, do=fault, bytes=1000)
        outcomes = bench.answers(status)
        assert len({outcome.custom_id for outcome in outcomes}) == len(outcomes) == 40

    def test_a_download_that_never_comes_whole_is_not_read_at_all(self, bench: Bench) -> None:
        status = bench.run(TEXTS)
        bench.fault("results", do="shorten", bytes=100)
        with pytest.raises(ProviderUnavailable, match=" of "):
            next(bench.provider.outcomes(status, bench.space))

    def test_results_that_are_not_found_for_a_while_are_not_gone(self, bench: Bench) -> None:
        status = bench.run(TEXTS)
        bench.fault("results", when={"times": 2}, do="status", status=404)
        assert len(bench.answers(status)) == len(TEXTS)
        bench.fault("results", do="status", status=404)
        with pytest.raises(ProviderUnavailable):
            next(bench.provider.outcomes(status, bench.space))

    @needs(Capability.TELLS_LENGTH)
    def test_one_that_always_ends_behind_a_line_is_not_read_either(self, bench: Bench) -> None:
        status = bench.run(TEXTS)
        content = bench.kind.download(bench.provider, status)
        bench.fault("results", do="shorten", bytes=content.index(b"\n") + 1)
        with pytest.raises(ProviderUnavailable):
            next(bench.provider.outcomes(status, bench.space))


TYPES = {401: "authentication_error", 402: "billing_error", 413: "request_too_large", 529: "overloaded_error"}


class TestCreate:
    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            ({"do": "status", "status": 400}, ProviderRefused),
            ({"do": "status", "status": 413}, ProviderRefused),
            ({"do": "status", "status": 422}, ProviderRefused),
            ({"do": "status", "status": 401}, AccountError),
            ({"do": "status", "status": 402}, AccountError),
            ({"do": "status", "status": 403}, AccountError),
            ({"do": "status", "status": 429}, QueueFull),
            ({"do": "status", "status": 408}, ProviderUnknown),
            ({"do": "status", "status": 409}, ProviderUnknown),
            ({"do": "status", "status": 500}, ProviderUnknown),
            ({"do": "status", "status": 503}, ProviderUnknown),
            ({"do": "status", "status": 529}, ProviderUnknown),
            ({"do": "status", "status": 500, "headers": {"x-should-retry": "true"}}, ProviderUnknown),
            ({"do": "status", "status": 200, "body": "<html>"}, ProviderUnknown),
            ({"do": "status", "status": 200, "body": {"id": None}}, ProviderUnknown),
            ({"do": "drop_before"}, ProviderUnknown),
            ({"do": "drop_after"}, ProviderUnknown),
            ({"do": "cut", "bytes": 10}, ProviderUnknown),
        ],
    )
    def test_it_is_called_once_and_only_a_clear_no_is_a_refusal(
        self, bench: Bench, fault: dict[str, Any], error: type[ProviderError]
    ) -> None:
        sent = bench.prepare(["x"])
        bench.fault("create", **fault)
        with pytest.raises(ProviderError) as caught:
            bench.create(sent)
        assert type(caught.value) is error
        assert bench.emulator.state()["requests"][bench.on("create")] == 1

    @pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("Fri, 01 Jan 2021 00:00:00 GMT", 0.0)])
    def test_a_full_queue_says_how_long_to_wait(self, bench: Bench, header: str, seconds: float) -> None:
        sent = bench.prepare(["x"])
        bench.fault("create", do="status", status=429, headers={"retry-after": header})
        with pytest.raises(QueueFull) as caught:
            bench.create(sent)
        assert caught.value.retry_after == seconds

    def test_a_server_that_cannot_be_reached_was_sent_nothing(self, bench: Bench) -> None:
        sent = bench.prepare(["x"])
        bench.provider = bench.kind.connect(f"http://127.0.0.1:{free_port()}")
        with pytest.raises(ProviderUnavailable, match="nothing was sent"):
            bench.create(sent)

    def test_another_tenant_does_not_see_the_batch(self, bench: Bench) -> None:
        created = bench.create(bench.prepare(["x"]))
        other = bench.kind.connect(bench.emulator.url, "another")
        assert other.status(created.batch_id).state is BatchState.NOT_FOUND


class TestFind:
    """A create that nobody heard the answer of."""

    def lost(self, bench: Bench, texts: list[str]) -> Any:
        sent = bench.prepare(texts)
        bench.fault("create", do="drop_after")
        with pytest.raises(ProviderUnknown):
            bench.create(sent)
        bench.emulator.faults()
        return sent

    @needs(Capability.FOUND_RUNNING)
    def test_its_batch_is_found_at_once(self, bench: Bench) -> None:
        sent = self.lost(bench, ["x"])
        (batch,) = bench.emulator.state()["batches"]
        assert [each.batch_id for each in bench.provider.find(sent.submission, sent.evidence())] == [
            batch["id"]
        ]

    def test_its_batch_is_found_among_others_of_the_same_size_once_they_have_ended(
        self, bench: Bench
    ) -> None:
        before = bench.create(bench.prepare(TEXTS))
        sent = self.lost(bench, TEXTS)
        others = [bench.create(bench.prepare([f"{text}!" for text in TEXTS])) for _ in range(2)]
        known = {before.batch_id, *(other.batch_id for other in others)}
        (batch,) = (each for each in bench.emulator.state()["batches"] if each["id"] not in known)
        bench.emulator.advance(3600)
        found = bench.provider.find(sent.submission, sent.evidence(others[0].batch_id))
        assert [(each.batch_id, each.state) for each in found] == [(batch["id"], BatchState.ENDED)]

    def test_where_nothing_was_made_nothing_is_found(self, bench: Bench) -> None:
        sent = bench.prepare(TEXTS)
        bench.fault("create", do="drop_before")
        with pytest.raises(ProviderUnknown):
            bench.create(sent)
        bench.emulator.faults()
        other = bench.create(bench.prepare([f"{text}?" for text in TEXTS]))
        bench.create(bench.prepare(TEXTS[:3]))
        assert bench.provider.find(sent.submission, sent.evidence(other.batch_id)) == []
        bench.emulator.advance(3600)
        assert bench.provider.find(sent.submission, sent.evidence()) == []

    @pytest.mark.parametrize(
        "body",
        ['{"object": "list"}', '{"data": {}, "has_more": false}', '{"data": [], "has_more": true}', "<p>"],
    )
    def test_a_page_that_cannot_be_read_is_no_empty_page(self, bench: Bench, body: str) -> None:
        sent = bench.prepare(["x"])
        bench.fault("list", do="status", status=200, body=body)
        with pytest.raises(ProviderUnavailable) as caught:
            bench.provider.find(sent.submission, sent.evidence())
        assert not isinstance(caught.value, ProviderUndecided)


class TestListing:
    def test_every_batch_and_file_is_listed_with_what_it_bears_of_ours(self, bench: Bench) -> None:
        sent = [bench.prepare([f"text {number}"]) for number in range(101)]
        batches = [bench.create(each).batch_id for each in sent]
        listed = list(bench.provider.list_batches())
        assert [each.status.batch_id for each in listed] == batches[::-1], "newest first, over all pages"
        files = list(bench.provider.list_files())
        if bench.provider.uploads:
            ours = [each.submission for each in sent]
            assert [(each.deployment, each.submission, each.file_id) for each in reversed(listed)] == [
                (own.deployment, own.id, own.file_id) for own in ours
            ]
            names = {(file.id, file.deployment, file.submission) for file in files}
            assert names == {(own.file_id, own.deployment, own.id) for own in ours}
        else:
            assert files == []


class TestWatching:
    @pytest.mark.parametrize("count", [3, 30])
    def test_many_are_asked_for_at_once_and_a_missing_one_is_not_found(
        self, bench: Bench, count: int
    ) -> None:
        ids = [bench.create(bench.prepare(["x"])).batch_id for _ in range(count)]
        states = {
            each.batch_id: each.state for each in asyncio.run(bench.provider.poll([*ids, "batch_gone"]))
        }
        assert states == {**dict.fromkeys(ids, BatchState.RUNNING), "batch_gone": BatchState.NOT_FOUND}

    @pytest.mark.parametrize(("operation", "count"), [("retrieve", 1), ("list", 20)])
    def test_a_poll_that_fails_leaves_the_batch_out(self, bench: Bench, operation: str, count: int) -> None:
        ids = [bench.create(bench.prepare(["x"])).batch_id for _ in range(count)]
        bench.fault(operation, do="drop_before")
        assert asyncio.run(bench.provider.poll(ids)) == []

    def test_a_status_never_heard_of_is_running(self, bench: Bench) -> None:
        batch_id = bench.create(bench.prepare(["x"])).batch_id
        answer = next(each for each in bench.emulator.state()["batches"] if each["id"] == batch_id)
        field = "status" if "status" in answer else "processing_status"
        bench.fault("retrieve", do="status", status=200, body={**answer, field: "paused"})
        status = bench.provider.status(batch_id)
        assert (status.state, status.provider_status) == (BatchState.RUNNING, "paused")

    @needs(Capability.PROGRESS)
    def test_a_running_batch_tells_how_far_it_is(self, bench: Bench) -> None:
        bench.emulator.faults({"on": "batch", "do": "pace", "validating_seconds": 0, "batch_seconds": 600})
        created = bench.create(bench.prepare(TEXTS))
        bench.emulator.advance(300)
        status = bench.provider.status(created.batch_id)
        assert (status.total, status.completed) == (6, 3)

    def test_cancelling_what_has_ended_or_is_gone_is_no_error(self, bench: Bench) -> None:
        status = bench.run(["x"])
        bench.provider.cancel(status.batch_id)
        bench.provider.cancel("batch_gone")


class TestProbe:
    def test_it_asks_the_real_time_twin(self, bench: Bench) -> None:
        outcome = bench.provider.probe(bench.space, "Does this work?")
        assert outcome.cls is OutcomeClass.SUCCEEDED and outcome.values[0], outcome
        assert bench.emulator.state()["requests"][bench.on("real_time")] == 1

    def test_no_answer_raises_and_a_no_does_not(self, bench: Bench) -> None:
        bench.fault("real_time", do="drop_before")
        with pytest.raises(ProviderUnavailable):
            bench.provider.probe(bench.space, "x")
        bench.fault("real_time", do="status", status=401)
        assert bench.provider.probe(bench.space, "x").cls is OutcomeClass.ACCOUNT
