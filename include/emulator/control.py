"""/_control: what a test may ask the emulator and tell it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from include.emulator.clock import Clock
from include.emulator.faults import Faults
from include.emulator.holds import Holds
from include.emulator.settings import Settings
from include.emulator.store import Store
from include.emulator.worker import Worker

SETTLE_SECONDS = 4.0
"""How long moving the clock waits for the work that fell due: less than HTTP clients' usual 5 seconds."""

COUNTED = ("requests", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
"""What the books tell of each batch; its cached tokens are input tokens too."""


class Control:
    """The handlers of the control plane."""

    def __init__(
        self, settings: Settings, clock: Clock, store: Store, faults: Faults, holds: Holds, worker: Worker
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._faults = faults
        self._holds = holds
        self._worker = worker

    def mount(self) -> Mount:
        """Everything under /_control."""
        return Mount(
            "/_control",
            routes=[
                Route("/health", self.health),
                Route("/state", self.state),
                Route("/clock", self.clock, methods=["GET", "POST"]),
                Route("/faults", self.faults, methods=["GET", "PUT", "DELETE"]),
                Route("/hold", self.hold, methods=["GET", "POST", "DELETE"]),
                Route("/hold/{hold_id}", self.one_hold, methods=["GET", "DELETE"]),
                Route("/settings", self.settings, methods=["GET", "PATCH"]),
            ],
        )

    async def health(self, request: Request) -> Response:
        """Whether it answers."""
        return _json({"status": "ok"})

    async def state(self, request: Request) -> Response:
        """The books. `?charges=false` leaves out the charges line by line, which can be many;
        `?project=P` leaves out what other projects hold and were charged. Calls are everybody's."""
        with_charges = request.query_params.get("charges", "true") != "false"
        project = request.query_params.get("project")
        return _json(await asyncio.to_thread(self._books, with_charges, project))

    def _books(self, with_charges: bool, project: str | None) -> dict[str, Any]:
        store = self._store
        with store.transaction():
            batches = store.all_batches(project)
            spent = store.spent()
            totals = {
                each.id: {name: each.work.get(name, 0) for name in COUNTED}
                | {"dollars": each.work.get("dollars", 0.0)}
                for each in batches
            }
            books: dict[str, Any] = {
                "clock": self._time(),
                "files": [
                    {**each.wire, "provider": each.provider, "account": each.account}
                    for each in store.all_files(self._clock.now(), project)
                ],
                "batches": [
                    {**each.wire, "provider": each.provider, "account": each.account} for each in batches
                ],
                "totals": {
                    "batches": totals,
                    "batch_tokens": sum(
                        each["input_tokens"] + each["output_tokens"] for each in totals.values()
                    ),
                    "batch_dollars": sum(each["dollars"] for each in totals.values()),
                    "real_time": spent,
                    "real_time_dollars": sum(each["dollars"] for each in spent.values()),
                },
                "real_time_calls": int(sum(each["calls"] for each in spent.values())),
                "requests": store.calls(),
            }
            if with_charges:
                of_batches = None if project is None else [each.id for each in batches]
                books["charges"] = store.charges(of_batches)
        return books

    async def clock(self, request: Request) -> Response:
        """Tell the time, or move it: `{"advance": seconds}` or `{"set": epoch seconds}`.

        Answers once what fell due is done (`settled`), or after `wait` seconds of real time (4).
        """
        if request.method == "GET":
            return _json(self._time())
        body = await _body(request)
        try:
            if "set" in body:
                self._clock.set(float(body["set"]))
            if "advance" in body:
                self._clock.advance(float(body["advance"]))
        except (TypeError, ValueError) as error:
            return _json({"error": str(error)}, 400)
        settled = await asyncio.to_thread(self._worker.settle, float(body.get("wait", SETTLE_SECONDS)))
        return _json({**self._time(), "settled": settled})

    def _time(self) -> dict[str, Any]:
        return {"kind": self._clock.kind, "now": self._clock.now()}

    async def faults(self, request: Request) -> Response:
        """List the faults, or replace them all: `{"faults": [...]}`. Rules: faults.py."""
        if request.method != "GET":
            given = [] if request.method == "DELETE" else await _body(request)
            rules = given.get("faults", []) if isinstance(given, dict) else given
            try:
                self._faults.replace(rules)
            except (TypeError, ValueError) as error:
                return _json({"error": str(error)}, 400)
        return _json({"faults": self._faults.describe()})

    async def hold(self, request: Request) -> Response:
        """List the holds, add one, or release all of them."""
        if request.method == "POST":
            try:
                return _json(self._holds.add(await _body(request)).describe(), 201)
            except ValueError as error:
                return _json({"error": str(error)}, 400)
        if request.method == "DELETE":
            return _json({"released": self._holds.release()})
        return _json({"holds": self._holds.describe()})

    async def one_hold(self, request: Request) -> Response:
        """Show one hold, or release it."""
        hold_id = request.path_params["hold_id"]
        hold = self._holds.get(hold_id)
        if hold is None:
            return _json({"error": f"there is no hold {hold_id!r}"}, 404)
        if request.method == "DELETE":
            return _json({"released": self._holds.release(hold_id)})
        return _json(hold.describe())

    async def settings(self, request: Request) -> Response:
        """Show the settings, or change some of them by name."""
        if request.method == "PATCH":
            try:
                self._settings.change(await _body(request))
            except ValueError as error:
                return _json({"error": str(error)}, 400)
            self._worker.wake()
        return _json(self._settings.describe())


async def _body(request: Request) -> Any:
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        return {}


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")
