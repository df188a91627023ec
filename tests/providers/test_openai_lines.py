"""One line of a batch file: what is asked, and how every known shape of an answer is judged."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from include.contracts import Item, Outcome, OutcomeClass, Space, Usage
from include.errors import ConfigError
from include.providers.openai_lines import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, LineReader, LineWriter

EMBED = Space("openai", "here", EMBEDDINGS, "small", {"dimensions": 3})


def space(endpoint: str) -> Space:
    return Space("openai", "here", endpoint, "gpt-5", {"temperature": 0})


def item(input: Any) -> Item:
    return Item(b"k" * 16, input, 1)


def ok(body: Any, custom_id: str = "a") -> bytes:
    return orjson.dumps(
        {
            "id": "batch_req_1",
            "custom_id": custom_id,
            "response": {"status_code": 200, "request_id": "r", "body": body},
            "error": None,
        }
    )


def read(endpoint: str, line: bytes) -> Outcome:
    return LineReader(space(endpoint)).read(line)


class TestRequests:
    def test_one_input_is_text_and_several_are_a_list(self) -> None:
        one = orjson.loads(LineWriter(EMBED).line([item("x")], "a"))
        assert one == {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "small", "input": "x", "encoding_format": "base64", "dimensions": 3},
        }
        assert orjson.loads(LineWriter(EMBED).line([item("x"), item("y")], "a"))["body"]["input"] == [
            "x",
            "y",
        ]

    def test_a_line_is_one_line_whatever_its_text(self) -> None:
        line = LineWriter(EMBED).line([item("a\u2028b\nc\r\x85")], "a")
        assert line.endswith(b"\n") and line.count(b"\n") == 1

    @pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, COMPLETIONS])
    def test_the_space_wins_over_the_fields_of_an_item(self, endpoint: str) -> None:
        body = orjson.loads(LineWriter(space(endpoint)).line([item({"temperature": 1, "n": 2})], "a"))["body"]
        assert body == {"temperature": 0, "n": 2, "model": "gpt-5"}

    def test_what_an_endpoint_cannot_carry_is_a_config_error(self) -> None:
        with pytest.raises(ConfigError, match="one input"):
            LineWriter(space(CHAT)).line([item("text")], "a")
        with pytest.raises(ConfigError, match="/v1/images"):
            LineWriter(space("/v1/images")).line([item({})], "a")


class TestEmbeddings:
    vectors = ([1.0, 2.5, -3.0], [0.25, 0.0, 1.0])

    @pytest.mark.parametrize("encoding", ["base64", "float"])
    def test_vectors_are_decoded_by_what_arrives_in_the_order_of_index(self, encoding: str) -> None:
        def encoded(vector: list[float]) -> Any:
            if encoding == "float":
                return vector
            return base64.b64encode(np.array(vector, dtype="<f4").tobytes()).decode()

        body = {
            "object": "list",
            "data": [{"index": 1 - at, "embedding": encoded(v)} for at, v in enumerate(self.vectors)],
            "model": "small-1",
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        }
        outcome = LineReader(EMBED).read(ok(body))
        assert outcome.cls is OutcomeClass.SUCCEEDED
        assert outcome.usage == Usage(input=7)
        assert outcome.model == "small-1"
        assert [list(value) for value in outcome.values] == [self.vectors[1], self.vectors[0]]
        assert all(value.dtype == np.float32 for value in outcome.values)  # type: ignore[union-attr]

    def test_a_reader_reads_many_lines_of_either_kind(self) -> None:
        reader = LineReader(EMBED)
        for number in range(50):
            body = {"data": [{"index": 0, "embedding": [float(number), 0.5, 1.0]}], "model": "m"}
            outcome = reader.read(ok(body, f"id{number}"))
            assert (outcome.custom_id, outcome.values[0][0]) == (f"id{number}", number)

    def test_a_vector_that_is_not_finite_is_left_to_the_landing(self) -> None:
        line = ok({"data": [{"index": 0, "embedding": [1.0]}]}).replace(b"1.0", b"NaN")
        value = LineReader(EMBED).read(line).values[0]
        assert np.isnan(value).all()

    @pytest.mark.parametrize("data", [None, [{"index": 0}], [{"index": 0, "embedding": "no base64!"}]])
    def test_a_200_of_another_shape_is_retryable(self, data: Any) -> None:
        outcome = LineReader(EMBED).read(ok({"data": data}))
        assert (outcome.cls, outcome.code) == (OutcomeClass.RETRYABLE, "unreadable_answer")


class TestErrors:
    @pytest.mark.parametrize(
        ("record", "cls", "code"),
        [
            (
                {
                    "custom_id": "a",
                    "response": {
                        "status_code": 400,
                        "body": {"error": {"message": "too long", "code": "context_length_exceeded"}},
                    },
                    "error": None,
                },
                OutcomeClass.PERMANENT,
                "context_length_exceeded",
            ),
            (
                {"custom_id": "a", "response": None, "error": {"code": "batch_expired", "message": "late"}},
                OutcomeClass.RETRYABLE,
                "batch_expired",
            ),
            (
                {"custom_id": "a", "response": {"status_code": 500, "message": "Internal"}, "error": None},
                OutcomeClass.RETRYABLE,
                "http_500",
            ),
            (
                {
                    "custom_id": "a",
                    "response": {
                        "status_code": 400,
                        "body": {"error": {"message": "x", "type": "invalid_request_error", "code": None}},
                    },
                    "error": None,
                },
                OutcomeClass.PERMANENT,
                "invalid_request_error",
            ),
            (
                {"custom_id": "a", "response": {"status_code": 401, "body": "no key"}, "error": None},
                OutcomeClass.ACCOUNT,
                "http_401",
            ),
            ({"custom_id": "a", "response": None, "error": None}, OutcomeClass.RETRYABLE, "unknown"),
            ({"custom_id": "a", "error": "just text"}, OutcomeClass.RETRYABLE, "unknown"),
            ({"custom_id": "a", "response": {}, "error": {}}, OutcomeClass.RETRYABLE, "unknown"),
        ],
    )
    def test_every_shape_of_an_error_line_is_classed(
        self, record: dict[str, Any], cls: OutcomeClass, code: str
    ) -> None:
        outcome = LineReader(EMBED).read(orjson.dumps(record))
        assert (outcome.custom_id, outcome.cls, outcome.code) == ("a", cls, code)

    def test_a_torn_line_still_names_its_request(self) -> None:
        outcome = LineReader(EMBED).read(ok({"data": []}, "abc")[:-20])
        assert (outcome.custom_id, outcome.cls, outcome.code) == (
            "abc",
            OutcomeClass.RETRYABLE,
            "unreadable_line",
        )
        assert LineReader(EMBED).read(b"[1]").custom_id == ""


def chat(finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "model": "gpt-5-2025-08-07",
        "choices": [{"finish_reason": finish, "message": {"content": "Hello", **message}}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


class TestGenerated:
    def test_a_chat_answer_that_ended_by_itself_has_succeeded(self) -> None:
        outcome = read(CHAT, ok(chat()))
        assert outcome.cls is OutcomeClass.SUCCEEDED
        assert list(outcome.values) == ["Hello"]
        assert outcome.usage == Usage(input=10, output=3, cache_read=4)
        assert outcome.model == "gpt-5-2025-08-07"

    @pytest.mark.parametrize(
        ("body", "cls", "code"),
        [
            (chat("length"), OutcomeClass.INVALID, "truncated"),
            (chat("content_filter"), OutcomeClass.PERMANENT, "content_filter"),
            (chat(refusal="I won't", content=None), OutcomeClass.INVALID, "refused"),
            (chat(content=None), OutcomeClass.INVALID, "empty"),
            (chat("something_new"), OutcomeClass.INVALID, "unfinished"),
        ],
    )
    def test_any_other_end_of_a_chat_has_not(self, body: Any, cls: OutcomeClass, code: str) -> None:
        outcome = read(CHAT, ok(body))
        assert (outcome.cls, outcome.code) == (cls, code)
        assert outcome.usage.output == 3, "it was paid for"

    def test_responses_are_judged_by_their_status(self) -> None:
        def response(**fields: Any) -> bytes:
            text = [{"type": "output_text", "text": "Hi"}, {"type": "output_text", "text": " you"}]
            message = {"type": "message", "content": text}
            return ok({"status": "completed", "output": [{"type": "reasoning"}, message], **fields})

        assert list(read(RESPONSES, response()).values) == ["Hi you"]
        cut = {"reason": "max_output_tokens"}
        assert read(RESPONSES, response(status="incomplete", incomplete_details=cut)).code == "truncated"
        filtered = {"reason": "content_filter"}
        outcome = read(RESPONSES, response(status="incomplete", incomplete_details=filtered))
        assert outcome.cls is OutcomeClass.PERMANENT
        failed = {"code": "rate_limit_exceeded", "message": "slow down"}
        outcome = read(RESPONSES, response(status="failed", error=failed, output=[]))
        assert (outcome.cls, outcome.code) == (OutcomeClass.RETRYABLE, "rate_limit_exceeded")
        refused = [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]
        assert read(RESPONSES, response(output=refused)).code == "refused"

    def test_completions_give_their_text(self) -> None:
        body = {"choices": [{"text": " world", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
        assert list(read(COMPLETIONS, ok(body)).values) == [" world"]
