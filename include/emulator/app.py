"""Puts the emulator together: one store, clock, worker, and the services that use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette

from include.emulator.anthropic.service import AnthropicService
from include.emulator.clock import Clock, Kind
from include.emulator.control import Control
from include.emulator.faults import Faults
from include.emulator.gate import Gate
from include.emulator.holds import Holds
from include.emulator.openai.service import OpenAIService
from include.emulator.settings import Settings
from include.emulator.store import Store
from include.emulator.worker import Worker


def make_app(data: Path, settings: Settings, clock_kind: Kind) -> Starlette:
    """The application over the state in the folder `data`, which is made if it isn't there."""
    data.mkdir(parents=True, exist_ok=True)
    store = Store(data)
    clock = Clock(store, clock_kind)
    faults = Faults(store)
    holds = Holds()
    gate = Gate(store, faults, holds)
    openai = OpenAIService(settings, clock, store, faults)
    anthropic = AnthropicService(settings, clock, store, faults)
    worker = Worker([openai.lifecycle, anthropic.lifecycle])
    control = Control(settings, clock, store, faults, holds, worker)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        yield
        holds.release()
        worker.stop()
        store.close()

    mounts = [control.mount(), openai.mount(gate, worker), anthropic.mount(gate, worker)]
    app = Starlette(routes=mounts, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app
