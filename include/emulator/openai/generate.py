"""/v1/chat/completions, /v1/responses and /v1/completions: answers taken from the prompt's own text."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from include.emulator.clock import Clock
from include.emulator.extract import Extract
from include.emulator.openai.prompts import TOKENS_PER_MESSAGE, BadPrompt, Prompt, read_prompt
from include.emulator.openai.results import Measure, Result, check_model, refused
from include.emulator.schemas import DEFAULT_SCHEMA, fill
from include.emulator.settings import Settings
from include.emulator.tokens import count_all, cut

CONTEXT_TOKENS = 128_000


class GenerationEndpoint:
    """One of the three; they differ in how a request is read and an answer wrapped."""

    def __init__(self, url: str, settings: Settings, clock: Clock) -> None:
        self._url = url
        self._settings = settings
        self._clock = clock

    def measure(self, bodies: list[dict[str, Any]]) -> list[Measure]:
        """Prompt tokens, with the marks around chat messages."""
        prompts = [self._prompt(body) for body in bodies]
        texts = [each.text if isinstance(each, Prompt) else "" for each in prompts]
        counts = count_all(texts, exact=self._settings.tokens == "exact")
        measures = []
        for prompt, tokens in zip(prompts, counts, strict=True):
            marks = (
                (prompt.messages + 1) * TOKENS_PER_MESSAGE
                if isinstance(prompt, Prompt) and prompt.messages
                else 0
            )
            measures.append(Measure(tokens + marks, tokens + marks, 1))
        return measures

    def subject(self, body: dict[str, Any]) -> str:
        """The whole prompt."""
        prompt = self._prompt(body)
        return prompt.text if isinstance(prompt, Prompt) else ""

    def run(self, bodies: list[dict[str, Any]], measures: list[Measure]) -> list[Result]:
        """An answer each."""
        return [self._one(body, measure) for body, measure in zip(bodies, measures, strict=True)]

    def _prompt(self, body: dict[str, Any]) -> Prompt | Result:
        try:
            return read_prompt(self._url, body)
        except BadPrompt as bad:
            return bad.result

    def _one(self, body: dict[str, Any], measure: Measure) -> Result:
        if refusal := check_model(self._settings, body):
            return refusal
        prompt = self._prompt(body)
        if isinstance(prompt, Result):
            return prompt
        if measure.total > CONTEXT_TOKENS:
            return refused(
                400,
                f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your messages "
                f"resulted in {measure.total} tokens. Please reduce the length of the messages.",
                param="messages" if self._url == "/v1/chat/completions" else None,
                code="context_length_exceeded",
            )
        try:
            text = _answer(prompt)
        except ValueError as error:
            return refused(
                400, f"Invalid schema: {error}", param="response_format", code="invalid_json_schema"
            )
        limit = prompt.ceiling if prompt.ceiling is not None else CONTEXT_TOKENS
        text, tokens, truncated = cut(text, limit)
        wrap = {"/v1/chat/completions": self._chat, "/v1/responses": self._response}.get(
            self._url, self._completion
        )
        wrapped = wrap(body, prompt, text, truncated)
        output = tokens * prompt.choices
        wrapped["usage"] = self._usage(measure.total, output)
        return Result(200, wrapped, measure.total, output)

    def _usage(self, given: int, made: int) -> dict[str, Any]:
        if self._url == "/v1/responses":
            return {
                "input_tokens": given,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": made,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": given + made,
            }
        usage: dict[str, Any] = {
            "prompt_tokens": given,
            "completion_tokens": made,
            "total_tokens": given + made,
        }
        if self._url == "/v1/chat/completions":
            usage["prompt_tokens_details"] = {"cached_tokens": 0, "audio_tokens": 0}
            usage["completion_tokens_details"] = {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            }
        return usage

    def _chat(self, body: dict[str, Any], prompt: Prompt, text: str, truncated: bool) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{_hash(body)}",
            "object": "chat.completion",
            "created": int(self._clock.now()),
            "model": body["model"],
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []},
                    "logprobs": None,
                    "finish_reason": "length" if truncated else "stop",
                }
                for index in range(prompt.choices)
            ],
            "service_tier": "default",
            "system_fingerprint": None,
        }

    def _completion(self, body: dict[str, Any], prompt: Prompt, text: str, truncated: bool) -> dict[str, Any]:
        reason = "length" if truncated else "stop"
        return {
            "id": f"cmpl-{_hash(body)}",
            "object": "text_completion",
            "created": int(self._clock.now()),
            "model": body["model"],
            "choices": [
                {"text": text, "index": index, "logprobs": None, "finish_reason": reason}
                for index in range(prompt.choices)
            ],
        }

    def _response(self, body: dict[str, Any], prompt: Prompt, text: str, truncated: bool) -> dict[str, Any]:
        name = _hash(body)
        status = "incomplete" if truncated else "completed"
        message = {
            "id": f"msg_{name}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
        }
        return {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": int(self._clock.now()),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "model": body["model"],
            "output": [message],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": body.get("store", True),
            "temperature": body.get("temperature", 1.0),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": body.get("top_p", 1.0),
            "truncation": "disabled",
            "user": None,
            "metadata": body.get("metadata") or {},
        }


def _answer(prompt: Prompt) -> str:
    extract = Extract(prompt.asked)
    if prompt.schema is None:
        return extract.answer()
    return json.dumps(fill(prompt.schema or DEFAULT_SCHEMA, extract), ensure_ascii=False)


def _hash(body: dict[str, Any]) -> str:
    """Equal requests get equal ids: an answer depends on nothing but its request."""
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()
