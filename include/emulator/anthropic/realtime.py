"""The real-time twins of what batches do: /v1/messages, and the counting of tokens."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from include.emulator.anthropic.cache import PromptCache
from include.emulator.anthropic.messages import Answer, Messages
from include.emulator.anthropic.wire import ApiError, answer, caller_of, json_body, status_body
from include.emulator.clock import Clock
from include.emulator.gate import Gate
from include.emulator.prices import message_dollars
from include.emulator.settings import Settings
from include.emulator.store import Store


class RealTimeApi:
    """One request, one answer, at the full price."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, messages: Messages) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._messages = messages

    def routes(self, gate: Gate) -> list[Route]:
        """The operations `messages` and `messages.count_tokens`."""
        return [
            gate.route("messages", "POST", "/v1/messages", self.create, status_body),
            gate.route(
                "messages.count_tokens", "POST", "/v1/messages/count_tokens", self.count_tokens, status_body
            ),
        ]

    async def create(self, request: Request) -> Response:
        """A message."""
        caller = caller_of(request, self._settings)
        body = await json_body(request)
        if body.get("stream"):
            raise ApiError(400, "The emulator doesn't stream answers: leave `stream` out.")
        cache = PromptCache(self._store, caller.account)
        found = await asyncio.to_thread(self._messages.answer, body, cache, self._clock.now(), batch=False)
        if found.message is None:
            raise _refusal(found)
        usage = found.usage
        given = (
            usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]
        )
        cost = message_dollars(self._settings, body["model"], usage, batch=False)
        with self._store.transaction():
            cache.save()
            self._store.spend("messages", given, usage["output_tokens"], cost)
        return answer(found.message)

    async def count_tokens(self, request: Request) -> Response:
        """How many input tokens a message would have; free."""
        caller_of(request, self._settings)
        found = await asyncio.to_thread(self._messages.count, await json_body(request))
        if isinstance(found, Answer):
            raise _refusal(found)
        return answer({"input_tokens": found})


def _refusal(found: Answer) -> ApiError:
    return ApiError(found.status, found.error, kind=found.kind)
