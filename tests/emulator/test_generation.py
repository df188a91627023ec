"""Generated answers: taken from the prompt's text, and always as the schema wants them."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from include.emulator.extract import Extract
from include.emulator.patterns import example
from include.emulator.schemas import fill
from tests.emulator.conftest import Driver

TEXT = (
    "Ada Lovelace wrote the first program in 1843. She worked with Charles Babbage on the Analytical Engine. "
    "The engine was never built. A program for the engine computed Bernoulli numbers."
)


class Facts(BaseModel):
    summary: str
    keywords: list[str]
    entities: list[str]
    language: Literal["en", "de"]


def test_plain_chat_answers_with_the_texts_first_sentences(driver: Driver) -> None:
    made = driver.client.chat.completions.create(
        model="gpt-5-mini",
        messages=[{"role": "system", "content": "Summarise."}, {"role": "user", "content": TEXT}],
    )
    choice = made.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content is not None and choice.message.content.startswith("Ada Lovelace wrote")
    assert made.usage is not None and made.usage.total_tokens == (
        made.usage.prompt_tokens + made.usage.completion_tokens
    )
    assert driver.emulator.state()["totals"]["real_time"]["chat.completions"]["calls"] == 1


def test_a_question_is_answered_by_the_sentence_that_fits_it(driver: Driver) -> None:
    made = driver.client.responses.create(model="gpt-5-mini", input=f"{TEXT}\n\nWhich numbers were computed?")
    assert made.output_text == "A program for the engine computed Bernoulli numbers."


def test_structured_answers_parse_into_their_model(driver: Driver) -> None:
    chat = driver.client.chat.completions.parse(
        model="gpt-5-mini", messages=[{"role": "user", "content": TEXT}], response_format=Facts
    )
    responses = driver.client.responses.parse(model="gpt-5-mini", input=TEXT, text_format=Facts)
    facts = chat.choices[0].message.parsed
    assert facts is not None and facts == responses.output_parsed
    assert "Charles Babbage" in facts.entities and "Ada Lovelace" in facts.entities
    assert facts.keywords[0] == "engine"
    assert facts.summary.startswith("Ada Lovelace wrote")


def test_an_answer_over_its_ceiling_is_cut_and_says_so(driver: Driver) -> None:
    chat = driver.client.chat.completions.create(
        model="gpt-5-mini", messages=[{"role": "user", "content": TEXT}], max_completion_tokens=5
    )
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage is not None and chat.usage.completion_tokens == 5
    response = driver.client.responses.create(model="gpt-5-mini", input=TEXT, max_output_tokens=16)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    completion = driver.client.completions.create(model="gpt-5-mini", prompt=TEXT)
    assert completion.choices[0].finish_reason == "length", "16 tokens are the old endpoint's default"


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/responses", "/v1/completions"])
def test_every_generating_endpoint_runs_in_a_batch(driver: Driver, endpoint: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
        "/v1/responses": {"input": TEXT},
        "/v1/completions": {"prompt": TEXT, "max_tokens": 100},
    }
    line = {
        "custom_id": "one",
        "method": "POST",
        "url": endpoint,
        "body": {"model": "gpt-5-mini"} | bodies[endpoint],
    }
    done = driver.after(10, driver.create([line], endpoint))
    output, errors = driver.results(done)
    assert errors == {}
    assert "Ada Lovelace wrote" in json.dumps(output["one"]["response"]["body"])
    assert done.usage is not None and done.usage.output_tokens > 0


def chat_error(driver: Driver, **options: Any) -> openai.BadRequestError:
    call = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": TEXT}]} | options
    with pytest.raises(openai.BadRequestError) as refused:
        driver.client.chat.completions.create(**call)
    return refused.value


def test_a_malformed_request_is_refused(driver: Driver) -> None:
    assert chat_error(driver, messages=[]).param == "messages"
    assert chat_error(driver, max_completion_tokens=0).code == "integer_below_min_value"
    assert "json" in str(chat_error(driver, response_format={"type": "json_object"}))
    long = [{"role": "user", "content": "word " * 130_000}]
    assert chat_error(driver, messages=long).code == "context_length_exceeded"


def test_a_strict_schema_must_close_and_require_everything(driver: Driver) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
    assert "additionalProperties" in str(chat_error(driver, response_format=wanted))


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 30, "maxLength": 40}}},
    {"type": "array", "items": {"enum": ["red", "program", "blue"]}, "minItems": 2, "uniqueItems": True},
    {"type": "integer", "minimum": 1, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 1843, "exclusiveMaximum": 1845},
    {"type": "number", "multipleOf": 0.5, "minimum": 0.2, "maximum": 2},
    {"type": ["null", "string"]},
    {"const": {"fixed": [1, 2]}},
    {"type": "string", "pattern": r"^[A-Z]{2}-\d{4}(x|y)+$"},
    {"type": "string", "pattern": r"^[^a-z\s]+$"},
    {"type": "string", "format": "date-time"},
    {
        "anyOf": [
            {"type": "null"},
            {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
        ]
    },
    {
        "allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}],
        "type": "object",
        "required": ["a", "b"],
    },
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2, "required": ["k"]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
    {"type": "array", "items": {"type": "string"}, "minItems": 30},
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["name", "children", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    Facts.model_json_schema(),
]


@pytest.mark.parametrize("text", [TEXT, "", "?", "123 456", "ünïcödé 漢字 — “quoted”", "word " * 3_000])
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_any_schema_is_obeyed_whatever_the_text(schema: dict[str, Any], text: str) -> None:
    jsonschema.validate(fill(schema, Extract(text)), schema)


def test_a_schema_that_nothing_can_meet_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        fill({"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 5}, Extract(TEXT))
    with pytest.raises(ValueError, match="leads nowhere"):
        fill({"$ref": "#/$defs/none"}, Extract(TEXT))
    with pytest.raises(ValueError, match="pattern"):
        example("(?=b)a")
