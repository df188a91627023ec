"""Puts Anthropic's parts together for the application."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from include.emulator.anthropic.batches import BatchApi
from include.emulator.anthropic.execute import Executor
from include.emulator.anthropic.lifecycle import BatchLifecycle
from include.emulator.anthropic.messages import Messages
from include.emulator.anthropic.realtime import RealTimeApi
from include.emulator.anthropic.wire import ApiError
from include.emulator.clock import Clock
from include.emulator.faults import Faults
from include.emulator.gate import Gate
from include.emulator.settings import Settings
from include.emulator.store import Store
from include.emulator.worker import Worker


class AnthropicService:
    """The routes under /anthropic and the lifecycle behind them."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, faults: Faults) -> None:
        self._parts = settings, clock, store
        self._faults = faults
        self._messages = Messages(settings)
        self.lifecycle = BatchLifecycle(clock, store, Executor(settings, store, faults, self._messages))

    def mount(self, gate: Gate, worker: Worker) -> Mount:
        """Everything under /anthropic."""
        settings, clock, store = self._parts
        routes = [
            *BatchApi(settings, clock, store, self._faults, worker).routes(gate),
            *RealTimeApi(settings, clock, store, self._messages).routes(gate),
            Route("/{path:path}", _unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ]
        return Mount("/anthropic", routes=routes)


async def _unknown(request: Request) -> Response:
    return ApiError(404, f"Not found: {request.method} /{request.path_params['path']}").response()
