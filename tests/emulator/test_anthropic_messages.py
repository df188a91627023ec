"""What is wrong with a request, what its answer looks like, and what the prompt cache saves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import jsonschema
import pytest

from tests.emulator.claude import MODEL, Claude, claude, request
from tests.emulators import Emulator, start_emulator

TEXT = "Ada Lovelace wrote to Charles Babbage in 1843. Her notes describe how the engine computes numbers."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "keywords": {"type": "array", "items": {"type": "string"}},
        "year": {"type": "integer"},
    },
    "required": ["summary", "keywords", "year"],
    "additionalProperties": False,
}


def output_config(schema: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "schema": schema}}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    yield from start_emulator(tmp_path_factory.mktemp("emulator"), "--clock", "manual")


@pytest.fixture
def driver(shared: Emulator) -> Claude:
    return claude(shared)


class TestEnvelope:
    """What is refused when a batch is created."""

    @pytest.mark.parametrize(
        ("requests", "message"),
        [
            ([], "at least 1 item"),
            ([request("a", "x"), request("a", "y")], r"requests\.1\.custom_id: Duplicate"),
            ([request("a" * 65, "x")], "should match pattern"),
            ([request("a b", "x")], "should match pattern"),
            ([{"custom_id": "a"}], r"requests\.0\.params: Field required"),
            ([{"params": {}}], r"requests\.0\.custom_id: Field required"),
        ],
    )
    def test_a_bad_one_is_refused_whole(self, driver: Claude, requests: list[Any], message: str) -> None:
        with pytest.raises(anthropic.BadRequestError, match=message) as caught:
            driver.create(requests)
        assert caught.value.type == "invalid_request_error"
        assert driver.listed() == []

    def test_too_many_and_too_much_are_refused(self, start: Callable[..., Emulator]) -> None:
        driver = claude(start())
        change(driver, max_message_requests=2, max_message_batch_bytes=2_000)
        with pytest.raises(anthropic.BadRequestError, match="at most 2 items"):
            driver.create([request(f"r{index}", "x") for index in range(3)])
        with pytest.raises(anthropic.ContentTooLargeError):
            driver.create([request("a", "x" * 3_000)])

    def test_a_full_queue_says_when_to_try_again(self, driver: Claude) -> None:
        change(driver, queued_messages=3)
        try:
            first = driver.create([request("a", "x"), request("b", "y")])
            with pytest.raises(anthropic.RateLimitError) as caught:
                driver.create([request("c", "x"), request("d", "y")])
            assert int(caught.value.response.headers["retry-after"]) > 0
            driver.after(10, first.id)
            driver.create([request("c", "x"), request("d", "y")])
        finally:
            change(driver, queued_messages=None)


def change(driver: Claude, **settings: Any) -> None:
    import httpx

    httpx.patch(f"{driver.emulator.url}/_control/settings", json=settings).raise_for_status()


class TestRequests:
    """What is wrong with one request shows in its result."""

    @pytest.mark.parametrize(
        ("params", "kind", "message"),
        [
            ({"model": "no-such-model"}, "not_found_error", "model: no-such-model"),
            ({"max_tokens": 0}, "invalid_request_error", "max_tokens"),
            ({"max_tokens": None}, "invalid_request_error", "max_tokens: Field required"),
            ({"messages": []}, "invalid_request_error", "at least one message"),
            ({"messages": [{"role": "user", "content": " "}]}, "invalid_request_error", "non-empty"),
            ({"messages": [{"role": "system", "content": "x"}]}, "invalid_request_error", "role"),
            ({"stream": True}, "invalid_request_error", "stream"),
            ({"temperature": 0.2}, "invalid_request_error", "sampling"),
            ({"output_config": output_config({"type": "object"})}, "invalid_request_error", "additional"),
            (
                {"output_config": output_config({"type": "integer", "minimum": 1})},
                "invalid_request_error",
                "minimum are not supported",
            ),
            (
                {
                    "tools": [{"name": "t", "input_schema": SCHEMA}],
                    "tool_choice": {"type": "tool", "name": "t"},
                },
                "invalid_request_error",
                "forbids forcing",
            ),
            (
                {"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "word " * 210_000}]},
                "invalid_request_error",
                "prompt is too long",
            ),
        ],
    )
    def test_a_bad_one_is_errored_and_the_others_are_answered(
        self, driver: Claude, params: dict[str, Any], kind: str, message: str
    ) -> None:
        results = driver.run(request("bad", "x", **params), request("good", TEXT))
        bad = results["bad"]
        assert bad.type == "errored" and bad.error.type == "error"
        assert bad.error.error.type == kind and message in bad.error.error.message
        assert results["good"].type == "succeeded"

    def test_the_real_time_twin_refuses_the_same(self, driver: Claude) -> None:
        with pytest.raises(anthropic.NotFoundError, match="no-such"):
            driver.client.messages.create(
                model="no-such-model", max_tokens=5, messages=[{"role": "user", "content": "x"}]
            )


class TestAnswers:
    def test_text_ends_its_turn_behind_a_thinking_block(self, driver: Claude) -> None:
        message = driver.run(request("a", TEXT))["a"].message
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.stop_reason == "end_turn" and message.model == MODEL

    def test_an_answer_is_cut_at_max_tokens(self, driver: Claude) -> None:
        message = driver.run(request("a", TEXT, max_tokens=3))["a"].message
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)

    def test_a_stop_sequence_ends_it(self, driver: Claude) -> None:
        message = driver.run(request("a", TEXT, stop_sequences=["1843"]))["a"].message
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "1843")

    def test_a_schema_is_met(self, driver: Claude) -> None:
        result = driver.run(request("a", TEXT, output_config=output_config(SCHEMA)))["a"]
        answer = json.loads(driver.text(result))
        jsonschema.validate(answer, SCHEMA)
        assert answer["year"] == 1843

    @pytest.mark.parametrize("choice", [{"type": "tool", "name": "extract"}, {"type": "any"}])
    def test_a_forced_tool_is_used(self, driver: Claude, choice: dict[str, Any]) -> None:
        tools = [{"name": "extract", "description": "x", "input_schema": SCHEMA}]
        asked = request("a", TEXT, model="claude-haiku-4-5", tools=tools, tool_choice=choice)
        message = driver.run(asked)["a"].message
        assert message.stop_reason == "tool_use"
        (block,) = message.content
        assert (block.type, block.name) == ("tool_use", "extract")
        jsonschema.validate(block.input, SCHEMA)

    def test_in_real_time_the_same_is_answered_at_full_price(self, driver: Claude) -> None:
        before = driver.emulator.state()["totals"]["real_time"].get("messages", {"dollars": 0.0})
        asked = request("a", TEXT)["params"]
        message = driver.client.messages.create(**asked)
        batched = driver.run(request("a", TEXT))["a"].message
        assert message.content == batched.content and message.id == batched.id
        usage = message.usage
        spent = driver.emulator.state()["totals"]["real_time"]["messages"]["dollars"] - before["dollars"]
        assert spent == pytest.approx((usage.input_tokens * 2 + usage.output_tokens * 10) / 1e6)

    def test_tokens_are_counted_as_they_are_charged(self, driver: Claude) -> None:
        asked = request("a", TEXT, system="Be brief.")["params"]
        counted = driver.client.messages.count_tokens(
            model=asked["model"], system=asked["system"], messages=asked["messages"]
        )
        assert driver.client.messages.create(**asked).usage.input_tokens == counted.input_tokens


class TestCache:
    LONG = "The rules of extraction are many and each of them matters. " * 150

    def marked(self, ttl: str | None = None) -> list[dict[str, Any]]:
        mark = {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})
        return [{"type": "text", "text": self.LONG, "cache_control": mark}]

    def usages(self, driver: Claude, count: int, **params: Any) -> list[Any]:
        asked = [request(f"r{index}", f"{TEXT} {index}", **params) for index in range(count)]
        return [result.message.usage for result in driver.run(*asked).values()]

    def test_the_first_request_writes_the_prefix_and_most_others_read_it(self, driver: Claude) -> None:
        usages = self.usages(driver, 40, system=self.marked())
        prefix = max(usage.cache_read_input_tokens for usage in usages)
        assert prefix > 1_500
        writes = [usage for usage in usages if usage.cache_creation_input_tokens]
        reads = [usage for usage in usages if usage.cache_read_input_tokens]
        assert len(writes) + len(reads) == 40
        assert 1 <= len(writes) <= 15 < len(reads), "hits are best effort"
        for usage in usages:
            assert usage.cache_creation_input_tokens + usage.cache_read_input_tokens == prefix
            assert usage.input_tokens < 60
        assert all(usage.cache_creation.ephemeral_5m_input_tokens == prefix for usage in writes)

    def test_the_same_batch_has_the_same_luck(self, driver: Claude) -> None:
        first = self.usages(driver, 20, system=self.marked())
        second = self.usages(claude(driver.emulator), 20, system=self.marked())
        key = lambda usage: (usage.cache_read_input_tokens, usage.input_tokens)  # noqa: E731
        assert sorted(map(key, first)) == sorted(map(key, second))

    @pytest.mark.parametrize(("ttl", "price"), [("5m", 1.25), ("1h", 2.0)])
    def test_the_books_reckon_writes_and_reads_at_their_prices(
        self, driver: Claude, ttl: str, price: float
    ) -> None:
        batch = driver.create([request(f"r{n}", f"{TEXT} {n}", system=self.marked(ttl)) for n in range(20)])
        driver.after(10, batch.id)
        usages = [each.message.usage for each in driver.results(batch.id).values()]
        field = {"5m": "ephemeral_5m_input_tokens", "1h": "ephemeral_1h_input_tokens"}[ttl]
        written = sum(getattr(usage.cache_creation, field) for usage in usages)
        read = sum(usage.cache_read_input_tokens for usage in usages)
        given = sum(usage.input_tokens for usage in usages)
        made = sum(usage.output_tokens for usage in usages)
        books = driver.charged(batch.id)
        assert (books["cache_write_tokens"], books["cache_read_tokens"]) == (written, read)
        assert books["input_tokens"] == given + written + read
        dollars = (2 * (given + price * written + 0.1 * read) + 10 * made) / 1e6 / 2
        assert written and read and books["dollars"] == pytest.approx(dollars)

    def test_a_prefix_lives_for_its_time_from_its_last_use(self, driver: Claude) -> None:
        def ask() -> Any:
            asked = request("a", TEXT, system=self.marked())["params"]
            return driver.client.messages.create(**asked).usage

        assert ask().cache_creation_input_tokens > 0
        for _ in range(3):
            driver.emulator.advance(200)
            assert ask().cache_read_input_tokens > 0
        driver.emulator.advance(301)
        assert ask().cache_read_input_tokens == 0

    def test_a_short_prefix_is_not_cached(self, driver: Claude) -> None:
        system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        for usage in self.usages(driver, 3, system=system):
            assert (usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (0, 0)

    def test_another_prefix_or_workspace_reads_nothing(self, driver: Claude) -> None:
        asked = request("a", TEXT, system=self.marked())["params"]
        driver.client.messages.create(**asked)
        other = claude(driver.emulator)
        assert other.client.messages.create(**asked).usage.cache_read_input_tokens == 0
        changed = [{**self.marked()[0], "text": self.LONG + "!"}]
        assert (
            driver.client.messages.create(**{**asked, "system": changed}).usage.cache_read_input_tokens == 0
        )
