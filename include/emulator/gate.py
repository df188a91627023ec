"""What every call of a provider passes: it is counted, and faults and holds strike here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from include.emulator.faults import CALL_ACTIONS, Faults, Rule
from include.emulator.holds import Holds
from include.emulator.server import transport_of
from include.emulator.store import Store

Handler = Callable[[Request], Awaitable[Response]]
ErrorBody = Callable[[int, str], dict[str, Any]]
"""A provider's body for an error of this HTTP status and message."""


def openai_body(status: int, message: str) -> dict[str, Any]:
    """The body of an error as OpenAI writes it, and whoever copies it."""
    kind = (
        "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    )
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


class Refusal(Exception):
    """A call that is refused; each provider answers it in its own shape."""

    def response(self) -> Response:
        """The answer."""
        raise NotImplementedError


class Gate:
    """Makes routes whose handlers stand behind the counters, faults and holds."""

    def __init__(self, store: Store, faults: Faults, holds: Holds) -> None:
        self.store = store
        self.faults = faults
        self.holds = holds

    def route(
        self,
        operation: str,
        method: str,
        path: str,
        handler: Handler,
        error_body: ErrorBody = openai_body,
    ) -> Route:
        """A route named for faults, holds and the request log by its operation, e.g. `batches.create`."""
        return Route(path, endpoint=_Gated(self, operation, handler, error_body), methods=[method])


class _Gated:
    """The ASGI application of one operation."""

    def __init__(self, gate: Gate, operation: str, handler: Handler, error_body: ErrorBody) -> None:
        self._gate = gate
        self._operation = operation
        self._handler = handler
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._gate.store.count_call(self._operation)
        if not self._gate.faults.watches(self._operation) and not self._gate.holds.watches(self._operation):
            await self._answer(scope, receive, send)
            return
        await self._guarded(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, rules: Sequence[Rule] = ()) -> None:
        try:
            response = await self._handler(Request(scope, receive))
        except Refusal as refusal:
            response = refusal.response()
        for rule in rules:
            if rule.do == "alter" and response.status_code == 200:
                response = _altered(response, rule.options["fields"])
        await response(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = transport_of(scope)
        subject = str(scope["path"])
        if any(
            key == b"content-type" and value.startswith(b"application/json")
            for key, value in scope["headers"]
        ):
            body = await Request(scope, receive).body()
            subject = body.decode("utf-8", "replace")
            receive = _replay(body, receive)
        if not await self._gate.holds.wait(self._operation, "before", subject, transport):
            return
        rules = self._gate.faults.strike(self._operation, subject, actions=CALL_ACTIONS)
        for rule in rules:
            if rule.do == "delay":
                await asyncio.sleep(float(rule.options["seconds"]))
            elif rule.do == "drop_before":
                _hang_up(transport)
                return
            elif rule.do == "status":
                await _status(rule, self._error_body)(scope, receive, send)
                return
        outgoing = _Outgoing(send, transport, rules)
        if self._gate.holds.watches(self._operation):
            # The work is done by the time that the answer starts; it waits there.
            outgoing.hold = lambda: self._gate.holds.wait(self._operation, "after", subject, transport)
        await self._answer(scope, receive, outgoing, rules)


class _Outgoing:
    """The way of an answer to its caller, with the faults that strike it there."""

    def __init__(self, send: Send, transport: asyncio.Transport | None, rules: list[Rule]) -> None:
        self._send = send
        self._transport = transport
        self._drop = any(rule.do == "drop_after" for rule in rules)
        self._cut = min((int(rule.options["bytes"]) for rule in rules if rule.do == "cut"), default=None)
        self._shorten = min(
            (int(rule.options["bytes"]) for rule in rules if rule.do == "shorten"), default=None
        )
        self._sent = 0
        self._over = False
        self.hold: Callable[[], Awaitable[bool]] | None = None

    async def __call__(self, message: Message) -> None:
        if self._over:
            return
        if message["type"] == "http.response.start":
            if self.hold is not None:
                await self.hold()
            if self._drop:
                self._over = True
                _hang_up(self._transport)
                return
            if self._shorten is not None:
                message["headers"] = [
                    (key, str(min(int(value), self._shorten)).encode() if key == b"content-length" else value)
                    for key, value in message["headers"]
                ]
        elif message["type"] == "http.response.body":
            limit = min((each for each in (self._cut, self._shorten) if each is not None), default=None)
            if limit is not None:
                body = message.get("body", b"")[: limit - self._sent]
                self._sent += len(body)
                self._over = self._sent >= limit or not message.get("more_body", False)
                cut = self._over and self._cut == limit
                await self._send({**message, "body": body, "more_body": cut or not self._over})
                if cut and self._transport is not None:
                    self._transport.close()
                return
        await self._send(message)


def _hang_up(transport: asyncio.Transport | None) -> None:
    if transport is not None:
        transport.abort()


def _altered(response: Response, fields: dict[str, Any]) -> Response:
    """The answer with these fields; one that is no JSON object stays as it is."""
    try:
        body = orjson.loads(response.body)
    except (AttributeError, orjson.JSONDecodeError):
        return response
    return JSONResponse(body | fields) if isinstance(body, dict) else response


def _status(rule: Rule, error_body: ErrorBody) -> Response:
    status = int(rule.options.get("status", 500))
    body = rule.options.get("body")
    if body is None:
        body = error_body(status, f"The emulator was told to answer {status}.")
    headers = {str(key): str(value) for key, value in (rule.options.get("headers") or {}).items()}
    if isinstance(body, str):
        return Response(body, status_code=status, headers=headers)
    return JSONResponse(body, status_code=status, headers=headers)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
