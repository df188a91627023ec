"""/v1/messages: answers taken from the prompt's own text, with what they cost in tokens."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Any

import orjson

from include.emulator.anthropic.cache import PromptCache, Use, marks_of
from include.emulator.anthropic.models import least_cacheable, thinks, window
from include.emulator.anthropic.prompts import BadRequest, Block, Prompt, read_prompt
from include.emulator.extract import Extract
from include.emulator.schemas import DEFAULT_SCHEMA, fill
from include.emulator.settings import Settings
from include.emulator.tokens import count_all, cut

logger = logging.getLogger(__name__)

TOKENS_PER_MESSAGE = 3
"""Marks around each message; about what the service adds."""
_LONG = 2_000
"""Texts of so many characters and more are likely shared by many requests: counted once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A message, or an error of a type. `usage` is the message's, as on the wire."""

    message: dict[str, Any] | None = None
    status: int = 200
    kind: str = ""
    error: str = ""

    @property
    def usage(self) -> dict[str, Any]:
        """The message's usage; empty for an error, which isn't charged."""
        return self.message["usage"] if self.message is not None else {}


class Messages:
    """Answers requests, in batches and in real time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def answer(
        self, body: dict[str, Any], cache: PromptCache, moment: float, *, batch: bool, lucky: bool = True
    ) -> Answer:
        """The answer to one request; whatever is wrong with it is an Answer too, never an exception."""
        try:
            return self._answer(body, cache, moment, batch=batch, lucky=lucky)
        except BadRequest as bad:
            return Answer(None, 400, "invalid_request_error", str(bad))
        except Exception:
            logger.exception("a request broke its endpoint")
            return Answer(None, 500, "api_error", "Internal server error")

    def subject(self, body: dict[str, Any]) -> str:
        """The whole prompt, for faults that match it."""
        try:
            return read_prompt(body, batch=True).text
        except BadRequest:
            return ""

    def count(self, body: dict[str, Any]) -> int | Answer:
        """Input tokens of a request, or what is wrong with it."""
        if wrong := self._wrong_model(body):
            return wrong
        try:
            prompt = read_prompt({"max_tokens": 1, **body}, batch=False)
        except BadRequest as bad:
            return Answer(None, 400, "invalid_request_error", str(bad))
        return sum(self._tokens(prompt))

    def _wrong_model(self, body: dict[str, Any]) -> Answer | None:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            return Answer(None, 400, "invalid_request_error", "model: Field required")
        if not self._settings.model_exists(model):
            return Answer(None, 404, "not_found_error", f"model: {model}")
        return None

    def _answer(
        self, body: dict[str, Any], cache: PromptCache, moment: float, *, batch: bool, lucky: bool
    ) -> Answer:
        if wrong := self._wrong_model(body):
            return wrong
        model = body["model"]
        prompt = read_prompt(body, batch=batch)
        if thinks(model) and body.get("temperature", 1) != 1:
            raise BadRequest(f"temperature: {model} takes no sampling parameters but their defaults")
        tokens = self._tokens(prompt)
        total = sum(tokens)
        room = window(model) - total
        if room <= 0:
            raise BadRequest(f"prompt is too long: {total} tokens > {window(model)} maximum")
        written = _write(prompt, min(prompt.max_tokens, room))
        if written.reason == "max_tokens" and room < prompt.max_tokens:
            written.reason = "model_context_window_exceeded"
        used = cache.use(marks_of(model, prompt.blocks, tokens, least_cacheable(model)), moment, lucky=lucky)
        return Answer(_message(body, written, total, used, batch=batch))

    def _tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of each block; the marks around messages count with the last."""
        exact = self._settings.tokens == "exact"
        counts = [_count(block, exact) for block in prompt.blocks]
        counts[-1] += prompt.messages * TOKENS_PER_MESSAGE
        return counts


def _count(block: Block, exact: bool) -> int:
    return _count_long(block.text, exact) if len(block.text) >= _LONG else _count_one(block.text, exact)


def _count_one(text: str, exact: bool) -> int:
    return count_all([text], exact=exact)[0]


_count_long = functools.lru_cache(maxsize=64)(_count_one)


@dataclass(slots=True)
class _Written:
    """What was generated. `sequence` is the stop sequence that ended it."""

    content: list[dict[str, Any]]
    tokens: int
    reason: str
    sequence: str | None = None


def _write(prompt: Prompt, limit: int) -> _Written:
    extract = Extract(prompt.asked)
    if prompt.schema is None:
        text, reason, sequence = extract.answer(), "end_turn", None
        for each in prompt.stop_sequences:
            if each and each in text:
                text, reason, sequence = text[: text.index(each)], "stop_sequence", each
    else:
        try:
            text = json.dumps(fill(prompt.schema or DEFAULT_SCHEMA, extract), ensure_ascii=False)
        except ValueError as error:
            raise BadRequest(f"the schema can't be met: {error}") from error
        reason, sequence = "tool_use" if prompt.tool else "end_turn", None
    text, tokens, truncated = cut(text, limit)
    if truncated:
        reason, sequence = "max_tokens", None
    if prompt.tool is None:
        return _Written([{"type": "text", "text": text, "citations": None}], tokens, reason, sequence)
    given = {} if truncated else json.loads(text)
    name = f"toolu_{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
    block = {"type": "tool_use", "id": name, "name": prompt.tool, "input": given}
    return _Written([block], tokens, reason, sequence)


def _message(
    body: dict[str, Any], written: _Written, total: int, used: Use, *, batch: bool
) -> dict[str, Any]:
    content = written.content
    if thinks(body["model"]) and (body.get("thinking") or {}).get("type") != "disabled":
        content = [{"type": "thinking", "thinking": "", "signature": "emulator"}, *content]
    return {
        "id": f"msg_{_hash(body)}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": written.reason,
        "stop_sequence": written.sequence,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": total - used.read - used.written,
            "cache_creation_input_tokens": used.written,
            "cache_read_input_tokens": used.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": used.written_5m,
                "ephemeral_1h_input_tokens": used.written_1h,
            },
            "output_tokens": written.tokens,
            "server_tool_use": None,
            "service_tier": "batch" if batch else "standard",
        },
    }


def _hash(body: dict[str, Any]) -> str:
    """Equal requests get equal ids: an answer depends on nothing but its request."""
    return hashlib.blake2b(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()
