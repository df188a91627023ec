"""Puts OpenAI's parts together for the application."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from include.emulator.clock import Clock
from include.emulator.embeddings import make_embedder
from include.emulator.faults import Faults
from include.emulator.gate import Gate
from include.emulator.openai.batches import BatchApi
from include.emulator.openai.embed import EmbeddingsEndpoint
from include.emulator.openai.execute import Executor
from include.emulator.openai.files import FileApi
from include.emulator.openai.generate import GenerationEndpoint
from include.emulator.openai.lifecycle import BatchLifecycle
from include.emulator.openai.realtime import RealTimeApi
from include.emulator.openai.results import Endpoint
from include.emulator.openai.wire import ApiError
from include.emulator.settings import Settings
from include.emulator.store import Store
from include.emulator.worker import Worker


class OpenAIService:
    """The routes under /openai/v1 and the lifecycle behind them."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, faults: Faults) -> None:
        self._parts = settings, clock, store
        self._faults = faults
        embedder = make_embedder(settings.embeddings)
        self._endpoints: dict[str, Endpoint] = {"/v1/embeddings": EmbeddingsEndpoint(settings, embedder)}
        for url in ("/v1/chat/completions", "/v1/responses", "/v1/completions"):
            self._endpoints[url] = GenerationEndpoint(url, settings, clock)
        executor = Executor(settings, store, faults, self._endpoints)
        self.lifecycle = BatchLifecycle(settings, clock, store, executor)

    def mount(self, gate: Gate, worker: Worker) -> Mount:
        """Everything under /openai/v1."""
        settings, clock, store = self._parts
        batches = BatchApi(settings, clock, store, self._faults, worker, set(self._endpoints))
        routes = [
            *FileApi(settings, clock, store).routes(gate),
            *batches.routes(gate),
            *RealTimeApi(settings, store, self._endpoints).routes(gate),
            Route("/{path:path}", _unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ]
        return Mount("/openai/v1", routes=routes)


async def _unknown(request: Request) -> Response:
    path = request.path_params["path"]
    return ApiError(404, f"Invalid URL ({request.method} /v1/{path})").response()
