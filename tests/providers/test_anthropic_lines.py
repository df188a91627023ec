"""A message batch's lines: what is asked, and what each kind of result means."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from include.contracts import Item, OutcomeClass, Price, Space, Usage
from include.errors import ConfigError
from include.providers.anthropic_lines import read_line, request_body
from include.providers.prompts import answer_params, question, strict_schema

SPACE = Space("anthropic", "s", "/v1/messages", "claude-sonnet-5-5", {"max_tokens": 100})
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 500,
    "cache_read_input_tokens": 2000,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 400},
    "output_tokens": 7,
}


def item(**extra: Any) -> list[Item]:
    return [Item(b"k" * 16, {**question("Hello"), **extra}, 1)]


def line(result: Any) -> bytes:
    return orjson.dumps({"custom_id": "the-id", "result": result})


def message(stop: str | None = "end_turn", *content: dict[str, Any], **fields: Any) -> bytes:
    blocks = list(content) or [{"type": "text", "text": "An answer."}]
    body = {"model": "claude-x", "content": blocks, "stop_reason": stop, "usage": USAGE, **fields}
    return line({"type": "succeeded", "message": body})


class TestRequests:
    def test_the_space_wins_over_the_input(self) -> None:
        body = request_body(SPACE, item(model="other", max_tokens=1, top_k=3), "off")
        assert body == {
            **question("Hello"),
            "model": "claude-sonnet-5-5",
            "max_tokens": 100,
            "top_k": 3,
        }
        assert next(iter(body)) == "model"

    def test_the_end_of_what_requests_share_is_marked(self) -> None:
        mark = {"type": "ephemeral", "ttl": "1h"}
        body = request_body(SPACE, item(system="Rules."), "1h")
        assert body["system"] == [{"type": "text", "text": "Rules.", "cache_control": mark}]
        blocks = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
        body = request_body(SPACE, item(system=blocks), "1h")
        assert body["system"] == [blocks[0], {**blocks[1], "cache_control": mark}]

    def test_without_a_system_prompt_the_tools_are_what_is_shared(self) -> None:
        space = Space("anthropic", "s", "/v1/messages", "m", {"max_tokens": 1, "tools": [{"name": "t"}]})
        body = request_body(space, item(), "5m")
        assert body["tools"] == [{"name": "t", "cache_control": {"type": "ephemeral", "ttl": "5m"}}]
        assert space.params["tools"] == [{"name": "t"}], "marks aren't part of the space"
        assert request_body(SPACE, item(), "5m") == request_body(SPACE, item(), "off")

    def test_what_the_service_would_refuse_is_refused_here(self) -> None:
        other = Space("anthropic", "s", "/v1/embeddings", "m", {"max_tokens": 1})
        with pytest.raises(ConfigError, match="/v1/messages"):
            request_body(other, item(), "off")
        endless = Space("anthropic", "s", "/v1/messages", "m")
        with pytest.raises(ConfigError, match="max_tokens"):
            request_body(endless, item(), "off")
        with pytest.raises(ConfigError, match="messages"):
            request_body(SPACE, [Item(b"", {"prompt": "x"}, 1)], "off")


class TestResults:
    @pytest.mark.parametrize(
        ("stop", "cls", "code"),
        [
            ("end_turn", OutcomeClass.SUCCEEDED, ""),
            ("stop_sequence", OutcomeClass.SUCCEEDED, ""),
            ("max_tokens", OutcomeClass.INVALID, "truncated"),
            ("model_context_window_exceeded", OutcomeClass.INVALID, "context_window_exceeded"),
            ("refusal", OutcomeClass.INVALID, "refused"),
            ("pause_turn", OutcomeClass.INVALID, "unfinished"),
            ("a new one", OutcomeClass.INVALID, "unfinished"),
            (None, OutcomeClass.INVALID, "unfinished"),
        ],
    )
    def test_only_a_message_that_ended_by_itself_has_succeeded(
        self, stop: str | None, cls: OutcomeClass, code: str
    ) -> None:
        outcome = read_line(message(stop))
        assert (outcome.custom_id, outcome.cls, outcome.code) == ("the-id", cls, code)
        assert outcome.values == ["An answer."] and outcome.model == "claude-x"
        assert outcome.usage.output == 7, "whatever it is worth, it was paid for"

    def test_thoughts_are_not_part_of_the_answer(self) -> None:
        blocks = [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "One "},
            {"type": "text", "text": "two."},
        ]
        assert read_line(message("end_turn", *blocks)).values == ["One two."]
        empty = read_line(message("end_turn", blocks[0]))
        assert (empty.cls, empty.code) == (OutcomeClass.INVALID, "empty")

    def test_the_answer_of_a_tool_is_its_input(self) -> None:
        used = {"type": "tool_use", "id": "t", "name": "extract", "input": {"year": 1843, "é": "ü"}}
        outcome = read_line(message("tool_use", {"type": "text", "text": "Let me see."}, used))
        assert outcome.cls is OutcomeClass.SUCCEEDED
        assert isinstance(outcome.values[0], str)
        assert json.loads(outcome.values[0]) == {"year": 1843, "é": "ü"}
        assert read_line(message("tool_use")).code == "empty"

    def test_a_refusal_says_why(self) -> None:
        details = {"type": "refusal", "category": "bio", "explanation": "It may harm."}
        outcome = read_line(message("refusal", {"type": "text", "text": ""}, stop_details=details))
        assert outcome.message == "bio: It may harm." and not outcome.values

    def test_cached_tokens_are_input_tokens_at_prices_of_their_own(self) -> None:
        usage = read_line(message()).usage
        assert usage == Usage(input=2510, output=7, cache_read=2000, cache_write=500, cache_write_hour=400)
        price = Price(2.0, 10.0, cache_read=0.2, cache_write=2.5, cache_write_hour=4.0)
        dollars = (10 * 2 + 2000 * 0.2 + 100 * 2.5 + 400 * 4 + 7 * 10) / 1e6
        assert price.cost(usage, batch=False) == pytest.approx(dollars)
        assert price.cost(usage, batch=True) == pytest.approx(dollars / 2)

    @pytest.mark.parametrize(
        ("error", "cls", "code"),
        [
            (
                {"type": "invalid_request_error", "message": "m"},
                OutcomeClass.PERMANENT,
                "invalid_request_error",
            ),
            ({"type": "overloaded_error", "message": "m"}, OutcomeClass.RETRYABLE, "overloaded_error"),
            ({"type": "rate_limit_error", "message": "m"}, OutcomeClass.RETRYABLE, "rate_limit_error"),
            ({"type": "api_error", "message": "m"}, OutcomeClass.RETRYABLE, "api_error"),
            ({"type": "timeout_error", "message": "m"}, OutcomeClass.RETRYABLE, "timeout_error"),
            ({"type": "authentication_error", "message": "m"}, OutcomeClass.ACCOUNT, "authentication_error"),
            ({"type": "permission_error", "message": "m"}, OutcomeClass.ACCOUNT, "permission_error"),
            ({"type": "billing_error", "message": "m"}, OutcomeClass.ACCOUNT, "billing_error"),
            ({"type": "not_found_error", "message": "m"}, OutcomeClass.ACCOUNT, "not_found_error"),
            ({"type": "a_new_error", "message": "m"}, OutcomeClass.RETRYABLE, "a_new_error"),
            (
                {"type": "invalid_request_error", "message": "Your credit balance is too low to go on."},
                OutcomeClass.ACCOUNT,
                "billing_error",
            ),
            (
                {
                    "type": "rate_limit_error",
                    "message": "m",
                    "details": {"error_code": "contract_spend_limit_reached"},
                },
                OutcomeClass.ACCOUNT,
                "contract_spend_limit_reached",
            ),
            (
                {
                    "type": "invalid_request_error",
                    "message": "m",
                    "details": {"error_code": "image_dimensions_too_large"},
                },
                OutcomeClass.PERMANENT,
                "image_dimensions_too_large",
            ),
        ],
    )
    def test_an_error_stands_in_an_error(self, error: dict[str, Any], cls: OutcomeClass, code: str) -> None:
        nested = {"type": "error", "error": error, "request_id": "req_1"}
        outcome = read_line(line({"type": "errored", "error": nested}))
        assert (outcome.cls, outcome.code) == (cls, code)
        assert outcome.message == f"{error['message']} (req_1)" and outcome.usage == Usage()
        assert read_line(line({"type": "errored", "error": error})).cls is cls, "or doesn't"

    @pytest.mark.parametrize(
        ("kind", "code"),
        [("expired", "batch_expired"), ("canceled", "batch_cancelled"), ("new", "unreadable_line")],
    )
    def test_what_was_not_run_can_be_asked_again(self, kind: str, code: str) -> None:
        outcome = read_line(line({"type": kind}))
        assert (outcome.cls, outcome.code) == (OutcomeClass.RETRYABLE, code)

    @pytest.mark.parametrize(
        "raw",
        [
            b'{"custom_id":"the-id","result":{"type":"succ',
            b'{"custom_id":"the-id","result":{"type":"succeeded","message":{"stop_reason":"end_turn"}}}',
            b'{"custom_id":"the-id","result":null}',
            b'{"custom_id":"the-id"}',
        ],
    )
    def test_a_line_that_cannot_be_read_still_names_its_request(self, raw: bytes) -> None:
        outcome = read_line(raw)
        assert (outcome.custom_id, outcome.cls) == ("the-id", OutcomeClass.RETRYABLE)
        assert read_line(b"<html>").custom_id == ""


class TestParameters:
    def test_a_schema_is_written_as_each_provider_takes_it(self) -> None:
        schema = {
            "type": "object",
            "properties": {
                "minimum": {"type": "integer", "minimum": 3},
                "tags": {"type": "array", "minItems": 2, "maxItems": 5, "items": {"$ref": "#/$defs/tag"}},
                "kind": {"enum": ["minimum", "other"]},
            },
            "$defs": {"tag": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}},
            "required": ["kind"],
        }
        ours = strict_schema("anthropic", schema)
        assert ours["required"] == ["minimum", "tags", "kind"] and ours["additionalProperties"] is False
        assert ours["properties"]["minimum"] == {"type": "integer"}
        assert ours["properties"]["tags"] == {
            "type": "array",
            "minItems": 1,
            "items": {"$ref": "#/$defs/tag"},
        }
        assert ours["properties"]["kind"] == {"enum": ["minimum", "other"]}
        assert ours["$defs"]["tag"]["required"] == ["name"]
        theirs = strict_schema("openai", schema)
        assert theirs["properties"]["tags"]["maxItems"] == 5
        assert theirs["required"] == ours["required"]

    def test_an_endpoint_that_generates_nothing_is_named(self) -> None:
        with pytest.raises(ConfigError, match="/v1/embeddings"):
            answer_params("openai", "/v1/embeddings", max_tokens=5)
