"""One line of OpenAI's batch files, there and back: a request's JSONL line, an answer's judgement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
import pybase64

from include.contracts import Item, Outcome, OutcomeClass, Space, Usage, Vector
from include.errors import ConfigError
from include.providers.codes import classify
from include.providers.prompts import OPENAI_CHAT, OPENAI_RESPONSES, body_of

EMBEDDINGS = "/v1/embeddings"
CHAT = OPENAI_CHAT
RESPONSES = OPENAI_RESPONSES
COMPLETIONS = "/v1/completions"
ENDPOINTS = (EMBEDDINGS, CHAT, RESPONSES, COMPLETIONS)

_EMBEDDING = b'"embedding":'
_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_CLEAN_FINISHES = frozenset({"stop", "tool_calls", "function_call"})


# --------------------------------------------------------------------------- requests


def request_body(space: Space, items: Sequence[Item]) -> dict[str, Any]:
    """The body that asks for these items; several only where the endpoint takes a list of inputs.

    For embeddings an input is text; for chat and responses a prompt (see prompts.py), else a dict of
    body fields. The space's model and parameters win over it. Raises ConfigError for any other shape.
    """
    inputs = [item.input for item in items]
    if space.endpoint == EMBEDDINGS:
        # Base64 is a third of the bytes; what arrives is decoded by its own type.
        body: dict[str, Any] = {
            "model": space.model,
            "input": inputs[0] if len(inputs) == 1 else inputs,
            "encoding_format": "base64",
        }
        body.update(space.params)
        return body
    if space.endpoint not in ENDPOINTS:
        raise ConfigError(f"endpoint {space.endpoint!r} is none of {', '.join(ENDPOINTS)}")
    return {**_prompted(space.endpoint, body_of(space.endpoint, items)), **space.params, "model": space.model}


def _prompted(endpoint: str, given: dict[str, Any]) -> dict[str, Any]:
    """A prompt of the common shape (see prompts.py) where this endpoint wants its parts."""
    body = dict(given)
    if endpoint == CHAT and "system" in body:
        system = {"role": "system", "content": body.pop("system")}
        body["messages"] = [system, *body.get("messages", [])]
    elif endpoint == RESPONSES and "messages" in body:
        body["input"] = body.pop("messages")
        if "system" in body:
            body["instructions"] = body.pop("system")
    return body


class LineWriter:
    """Writes the lines of one space. What all of them share is encoded once."""

    def __init__(self, space: Space) -> None:
        self.space = space
        place = b',"method":"POST","url":' + orjson.dumps(space.endpoint) + b',"body":'
        if space.endpoint == EMBEDDINGS:
            shared = request_body(space, [_NOTHING])
            del shared["input"]
            place += orjson.dumps(shared)[:-1] + b',"input":'
        self._place = place

    def line(self, items: Sequence[Item], custom_id: str) -> bytes:
        """The JSONL line, UTF-8 with its newline."""
        if self.space.endpoint == EMBEDDINGS:
            asked: Any = items[0].input if len(items) == 1 else [item.input for item in items]
            end = b"}}\n"
        else:
            asked, end = request_body(self.space, items), b"}\n"
        return b"".join((b'{"custom_id":', orjson.dumps(custom_id), self._place, orjson.dumps(asked), end))


_NOTHING = Item(b"", "", 0)


# --------------------------------------------------------------------------- answers


class LineReader:
    """Judges the lines of output and error files of one space. Holds the parser's buffers."""

    def __init__(self, space: Space) -> None:
        import simdjson

        self._judge = _JUDGES.get(space.endpoint, _judge_chat)
        self._parser = simdjson.Parser()

    def read(self, line: bytes) -> Outcome:
        """The outcome of one line, in whatever of the known shapes it comes; never raises."""
        found = line.find(_EMBEDDING)
        if found >= 0 and line[found + len(_EMBEDDING) : found + len(_EMBEDDING) + 2].lstrip()[:1] == b"[":
            outcome = self._read_floats(line)
            if outcome is not None:
                return outcome
        try:
            record = orjson.loads(line)
        except ValueError:
            try:
                # NaN and Infinity aren't JSON, but Python's reader takes them; landing judges them.
                record = json.loads(line)
            except ValueError as error:
                return _unreadable(line, str(error))
        if not isinstance(record, dict):
            return _unreadable(line, f"a {type(record).__name__}, not an object")
        return judge_record(record, self._judge)

    def _read_floats(self, line: bytes) -> Outcome | None:
        """Embeddings as lists of numbers, through simdjson's buffer: no Python float is made."""
        try:
            record: Any = self._parser.parse(line)
            custom_id = record["custom_id"]
            response = record["response"]
            body = response["body"]
            if response["status_code"] != 200:
                return None
            rows = []
            for position, entry in enumerate(body["data"]):
                doubles = np.frombuffer(entry["embedding"].as_buffer(of_type="d"), dtype=np.float64)
                rows.append((entry.get("index", position), doubles.astype(np.float32)))
            usage = body.get("usage")
            rows.sort(key=lambda row: row[0])
            return Outcome(
                str(custom_id),
                OutcomeClass.SUCCEEDED,
                values=[vector for _, vector in rows],
                usage=_usage(None if usage is None else usage.as_dict()),
                model=str(body.get("model") or ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
            return None
        finally:
            # The parser can't be used again while objects of its last document live.
            record = response = body = usage = entry = None


Judge = Callable[[str, dict[str, Any]], Outcome]


def judge_record(record: dict[str, Any], judge: Judge) -> Outcome:
    """An output or error line as an object: `judge` is asked only for a 200 with a body."""
    custom_id = record.get("custom_id")
    custom_id = custom_id if isinstance(custom_id, str) else ""
    response, error = record.get("response"), record.get("error")
    if not isinstance(response, dict):
        return _failed(custom_id, error if error is not None else response, None)
    status = response.get("status_code")
    body = response.get("body")
    if status == 200 and isinstance(body, dict) and not error:
        return judge_body(custom_id, body, judge)
    detail = error or (body.get("error") if isinstance(body, dict) else None)
    if detail is None:
        detail = response.get("message") or body
    return _failed(custom_id, detail, status if isinstance(status, int) and status != 200 else None)


def judge_body(custom_id: str, body: dict[str, Any], judge: Judge) -> Outcome:
    """The body of a 200. One that isn't of its endpoint's shape is retryable."""
    try:
        return judge(custom_id, body)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return Outcome(
            custom_id,
            OutcomeClass.RETRYABLE,
            code="unreadable_answer",
            message=f"{type(error).__name__}: {error}",
        )


def judge_of(endpoint: str) -> Judge:
    """What judges a 200 of this endpoint."""
    return _JUDGES.get(endpoint, _judge_chat)


def _failed(custom_id: str, detail: Any, status: int | None) -> Outcome:
    code, kind, message = "", "", ""
    if isinstance(detail, dict):
        code, kind = str(detail.get("code") or ""), str(detail.get("type") or "")
        message = str(detail.get("message") or "")
    elif detail is not None:
        message = str(detail)
    # Where the code says nothing of its own, the status does, and after it the error's type.
    cls = classify(code, status) if code or status else classify(kind)
    named = code or kind or (f"http_{status}" if status else "unknown")
    return Outcome(custom_id, cls, code=named, message=message)


def _unreadable(line: bytes, reason: str) -> Outcome:
    found = _CUSTOM_ID.search(line)
    return Outcome(
        found.group(1).decode() if found else "",
        OutcomeClass.RETRYABLE,
        code="unreadable_line",
        message=reason,
    )


def _judge_embeddings(custom_id: str, body: dict[str, Any]) -> Outcome:
    data = body["data"]
    if len(data) > 1:
        data = sorted(data, key=lambda entry: entry["index"])
    return Outcome(
        custom_id,
        OutcomeClass.SUCCEEDED,
        values=[_vector(entry["embedding"]) for entry in data],
        usage=_usage(body.get("usage")),
        model=body.get("model") or "",
    )


def _vector(value: Any) -> Vector:
    if isinstance(value, str):
        return np.frombuffer(pybase64.b64decode(value, validate=True), dtype="<f4")
    return np.array(value, dtype=np.float32)


def _judge_chat(custom_id: str, body: dict[str, Any]) -> Outcome:
    choice = body["choices"][0]
    message = choice["message"]
    return _generated(
        custom_id,
        body,
        text=message.get("content"),
        finish=choice.get("finish_reason"),
        refusal=message.get("refusal"),
    )


def _judge_completions(custom_id: str, body: dict[str, Any]) -> Outcome:
    choice = body["choices"][0]
    return _generated(custom_id, body, text=choice.get("text"), finish=choice.get("finish_reason"))


def _judge_responses(custom_id: str, body: dict[str, Any]) -> Outcome:
    texts, refusals = [], []
    for entry in body.get("output") or ():
        for part in entry.get("content") or () if entry.get("type") == "message" else ():
            if part.get("type") == "output_text":
                texts.append(part["text"])
            elif part.get("type") == "refusal":
                refusals.append(part.get("refusal") or "refused")
    status = body.get("status", "completed")
    if status == "incomplete":
        reason = (body.get("incomplete_details") or {}).get("reason") or "incomplete"
        finish = "length" if reason == "max_output_tokens" else reason
    elif status == "completed":
        finish = "stop"
    else:
        return _failed(custom_id, body.get("error") or f"the response is {status}", None)
    return _generated(
        custom_id,
        body,
        text="".join(texts) if texts else None,
        finish=finish,
        refusal=" ".join(refusals) or None,
    )


def _generated(
    custom_id: str,
    body: dict[str, Any],
    *,
    text: str | None,
    finish: str | None,
    refusal: str | None = None,
) -> Outcome:
    """Only an answer that ended by itself, in text and without refusing, has succeeded."""
    cls, code, message = OutcomeClass.SUCCEEDED, "", ""
    if finish == "content_filter":
        cls, code, message = OutcomeClass.PERMANENT, "content_filter", "stopped by the content filter"
    elif refusal:
        cls, code, message = OutcomeClass.INVALID, "refused", refusal
    elif finish == "length":
        cls, code, message = OutcomeClass.INVALID, "truncated", "the answer reached its token limit"
    elif finish not in _CLEAN_FINISHES:
        cls, code, message = OutcomeClass.INVALID, "unfinished", f"finish reason {finish!r}"
    elif not text:
        cls, code, message = OutcomeClass.INVALID, "empty", "the answer has no text"
    return Outcome(
        custom_id,
        cls,
        values=[text] if text and cls is not OutcomeClass.PERMANENT else (),
        usage=_usage(body.get("usage")),
        model=body.get("model") or "",
        code=code,
        message=message,
    )


def _usage(usage: Any) -> Usage:
    """Usage in either naming: prompt/completion tokens, or input/output tokens."""
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Usage(
        input=int(usage.get("prompt_tokens") or usage.get("input_tokens") or usage.get("total_tokens") or 0),
        output=int(usage.get("completion_tokens") or usage.get("output_tokens") or 0),
        cache_read=int(details.get("cached_tokens") or 0),
    )


_JUDGES: dict[str, Judge] = {
    EMBEDDINGS: _judge_embeddings,
    CHAT: _judge_chat,
    COMPLETIONS: _judge_completions,
    RESPONSES: _judge_responses,
}
