"""One request of Anthropic's message batches, there and back: its line, and the judgement of its answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import orjson

from include.contracts import Item, Outcome, OutcomeClass, Space, Usage
from include.errors import ConfigError
from include.providers.anthropic_errors import error_code
from include.providers.codes import CODES, classify
from include.providers.prompts import ANTHROPIC_MESSAGES, body_of
from include.providers.sdk_errors import text_of

PromptCache = Literal["5m", "1h", "off"]
"""How long the part that requests share is cached, from its last use; what that costs is in prices.yaml."""

_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_NOT_RUN = {"canceled": "batch_cancelled", "expired": "batch_expired"}
_UNFINISHED = {
    "max_tokens": ("truncated", "the answer reached its token limit"),
    "model_context_window_exceeded": ("context_window_exceeded", "the answer reached the model's window"),
}


# --------------------------------------------------------------------------- requests


def request_body(space: Space, items: Sequence[Item], cache: PromptCache) -> dict[str, Any]:
    """The message parameters that ask for this item; the space's model and parameters win over its input's.

    Raises ConfigError for another endpoint, another shape of input, or without `max_tokens`.
    """
    if space.endpoint != ANTHROPIC_MESSAGES:
        raise ConfigError(f"endpoint {space.endpoint!r}: Anthropic's batches know {ANTHROPIC_MESSAGES} only")
    given = body_of(space.endpoint, items)
    # The model comes first: who checks lines finds it without reading the rest.
    body = {"model": "", **given, **space.params} | {"model": space.model}
    if "max_tokens" not in body:
        raise ConfigError(
            f"{space.model} at {space.service}: max_tokens is missing, which Anthropic requires"
        )
    if not isinstance(body.get("messages"), list):
        raise ConfigError(f"an input of {space.endpoint} has a list of messages")
    return body if cache == "off" else _marked(body, cache)


def _marked(body: dict[str, Any], ttl: str) -> dict[str, Any]:
    """The same request, marked for caching at the end of what requests share: the system prompt, with
    the tools before it. Marks change the price, never the answer, so they aren't part of the space."""
    mark = {"type": "ephemeral", "ttl": ttl}
    system = body.get("system")
    if isinstance(system, str) and system:
        return {**body, "system": [{"type": "text", "text": system, "cache_control": mark}]}
    for name in ("system", "tools"):
        blocks = body.get(name)
        if isinstance(blocks, list) and blocks:
            return {**body, name: [*blocks[:-1], {**blocks[-1], "cache_control": mark}]}
    return body


def request_line(space: Space, items: Sequence[Item], custom_id: str, cache: PromptCache) -> bytes:
    """The request as a line, UTF-8 with its newline."""
    params = request_body(space, items, cache)
    return orjson.dumps({"custom_id": custom_id, "params": params}, option=orjson.OPT_APPEND_NEWLINE)


# --------------------------------------------------------------------------- answers


def read_line(line: bytes) -> Outcome:
    """The outcome of one line of the results; never raises."""
    try:
        record = orjson.loads(line)
        result = record["result"]
        return _judge(text_of(record.get("custom_id")), result)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        found = custom_id_of(line)
        return Outcome(
            found, OutcomeClass.RETRYABLE, code="unreadable_line", message=f"{type(error).__name__}: {error}"
        )


def custom_id_of(line: bytes) -> str:
    """The custom_id of a line, without reading the rest; "" where it has none."""
    found = _CUSTOM_ID.search(line)
    return found.group(1).decode() if found else ""


def _judge(custom_id: str, result: dict[str, Any]) -> Outcome:
    kind = result["type"]
    if kind == "succeeded":
        return judge_message(custom_id, result["message"])
    if kind in _NOT_RUN:
        message = (
            f"this request was not run: the batch {'was cancelled' if kind == 'canceled' else 'expired'}"
        )
        return Outcome(custom_id, OutcomeClass.RETRYABLE, code=_NOT_RUN[kind], message=message)
    if kind == "errored":
        return _errored(custom_id, result["error"])
    return Outcome(
        custom_id, OutcomeClass.RETRYABLE, code="unreadable_line", message=f"a result of type {kind!r}"
    )


def _errored(custom_id: str, error: dict[str, Any]) -> Outcome:
    """An error stands in an error, so that each line has the form of an answer that failed."""
    detail = error.get("error") if isinstance(error.get("error"), dict) else error
    assert isinstance(detail, dict)
    details = detail.get("details")
    own = text_of(details.get("error_code")) if isinstance(details, dict) else ""
    message = text_of(detail.get("message"))
    kind = text_of(detail.get("type"))
    code = error_code(own, kind, message)
    # A code that isn't known says no more than the type.
    cls = classify(code if code in CODES else kind)
    request = text_of(error.get("request_id"))
    return Outcome(custom_id, cls, code=code, message=f"{message} ({request})" if request else message)


def judge_message(custom_id: str, message: dict[str, Any]) -> Outcome:
    """A message: only one that ended by itself, with an answer and without refusing, has succeeded.

    The answer is its text; of a message that uses a tool, the tool's input as JSON. What the model
    thought before isn't part of it.
    """
    stop = message.get("stop_reason")
    answer = _answer(message, stop)
    cls, code, told = OutcomeClass.SUCCEEDED, "", ""
    if stop == "refusal":
        cls, code, told = OutcomeClass.INVALID, "refused", _refusal(message, answer)
    elif stop in _UNFINISHED:
        cls, (code, told) = OutcomeClass.INVALID, _UNFINISHED[stop]
    elif stop not in ("end_turn", "stop_sequence", "tool_use"):
        cls, code, told = OutcomeClass.INVALID, "unfinished", f"stop reason {stop!r}"
    elif not answer:
        cls, code, told = OutcomeClass.INVALID, "empty", "the answer has no text"
    return Outcome(
        custom_id,
        cls,
        values=[answer] if answer else (),
        usage=read_usage(message.get("usage")),
        model=text_of(message.get("model")),
        code=code,
        message=told,
    )


def _answer(message: dict[str, Any], stop: Any) -> str:
    content = message["content"]
    if stop == "tool_use":
        used = [block["input"] for block in content if block.get("type") == "tool_use"]
        return orjson.dumps(used[0]).decode() if used else ""
    return "".join(block["text"] for block in content if block.get("type") == "text")


def _refusal(message: dict[str, Any], answer: str) -> str:
    details = message.get("stop_details")
    named = details if isinstance(details, dict) else {}
    told = [text_of(named.get("category")), text_of(named.get("explanation")) or answer]
    return ": ".join(part for part in told if part) or "the model refused to answer"


def read_usage(usage: Any) -> Usage:
    """A message's usage. The API counts cached tokens beside `input_tokens`; ours includes them."""
    if not isinstance(usage, dict):
        return Usage()
    written = int(usage.get("cache_creation_input_tokens") or 0)
    read = int(usage.get("cache_read_input_tokens") or 0)
    by_ttl = usage.get("cache_creation") or {}
    return Usage(
        input=int(usage.get("input_tokens") or 0) + written + read,
        output=int(usage.get("output_tokens") or 0),
        cache_read=read,
        cache_write=written,
        cache_write_hour=int(by_ttl.get("ephemeral_1h_input_tokens") or 0),
    )
