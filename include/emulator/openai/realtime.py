"""The real-time twins of what batches do: /v1/embeddings and its like, and /v1/models."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from include.emulator.gate import Gate, Handler
from include.emulator.openai.results import Endpoint, Result, measure_all, run_all
from include.emulator.openai.wire import ApiError, answer, caller_of, json_body
from include.emulator.prices import PRICES, dollars
from include.emulator.settings import Settings
from include.emulator.store import Store

MODELS_SINCE = 1_700_000_000


class RealTimeApi:
    """One request, one answer, at the full price."""

    def __init__(self, settings: Settings, store: Store, endpoints: dict[str, Endpoint]) -> None:
        self._settings = settings
        self._store = store
        self._endpoints = endpoints

    def routes(self, gate: Gate) -> list[Route]:
        """The operations `embeddings`, `chat.completions`, `responses`, `completions`, `models.*`."""
        calls = [
            gate.route(operation_of(url), "POST", url.removeprefix("/v1"), self._handler(url))
            for url in self._endpoints
        ]
        return [
            *calls,
            gate.route("models.list", "GET", "/models", self.models),
            gate.route("models.retrieve", "GET", "/models/{model}", self.model),
        ]

    def _handler(self, url: str) -> Handler:
        endpoint = self._endpoints[url]

        async def handle(request: Request) -> Response:
            caller_of(request, self._settings)
            body = await json_body(request)
            if body.get("stream"):
                raise ApiError(
                    400, "The emulator doesn't stream answers: leave `stream` out.", param="stream"
                )

            def run() -> Result:
                return run_all(endpoint, [body], measure_all(endpoint, [body]))[0]

            result = await asyncio.to_thread(run)
            if result.status == 200:
                cost = dollars(
                    self._settings, body["model"], result.input_tokens, result.output_tokens, batch=False
                )
                self._store.spend(operation_of(url), result.input_tokens, result.output_tokens, cost)
            return answer(result.body, result.status)

        return handle

    async def models(self, request: Request) -> Response:
        """The models configured, or those with a known price."""
        caller_of(request, self._settings)
        names = self._settings.models or sorted(PRICES)
        return answer({"object": "list", "data": [_model(each) for each in names]})

    async def model(self, request: Request) -> Response:
        """One model."""
        caller_of(request, self._settings)
        name = request.path_params["model"]
        if not self._settings.model_exists(name):
            raise ApiError(404, f"The model '{name}' does not exist", param="model", code="model_not_found")
        return answer(_model(name))


def operation_of(url: str) -> str:
    """`/v1/chat/completions` → `chat.completions`."""
    return url.removeprefix("/v1/").replace("/", ".")


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": MODELS_SINCE, "owned_by": "emulator"}
