"""/v1/messages/batches: create, retrieve, list, cancel, delete, results.

What happens to a batch over time is in lifecycle.py.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from include.emulator.anthropic.execute import requests_path, results_path
from include.emulator.anthropic.lifecycle import begin_cancelling, new_work
from include.emulator.anthropic.wire import (
    PROVIDER,
    ApiError,
    Caller,
    answer,
    caller_of,
    json_object,
    limit_query,
    new_id,
    rfc3339,
    status_body,
)
from include.emulator.clock import Clock
from include.emulator.faults import BATCH_ACTIONS, Faults
from include.emulator.gate import Gate
from include.emulator.settings import Settings
from include.emulator.store import BatchRecord, Store
from include.emulator.worker import Worker

CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
RESULT_DAYS = 29
"""How long results can be read, counted from the batch's creation."""
DAY = 86_400
MOST_LISTED = 1_000
RETRY_AFTER_SECONDS = 60


class BatchApi:
    """The handlers of /v1/messages/batches."""

    def __init__(
        self, settings: Settings, clock: Clock, store: Store, faults: Faults, worker: Worker
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._faults = faults
        self._worker = worker

    def routes(self, gate: Gate) -> list[Route]:
        """The operations `messages.batches.*`."""
        root, one = "/v1/messages/batches", "/v1/messages/batches/{batch_id}"
        return [
            gate.route(f"messages.batches.{name}", method, path, handler, status_body)
            for name, method, path, handler in (
                ("create", "POST", root, self.create),
                ("list", "GET", root, self.list),
                ("retrieve", "GET", one, self.retrieve),
                ("delete", "DELETE", one, self.delete),
                ("cancel", "POST", f"{one}/cancel", self.cancel),
                ("results", "GET", f"{one}/results", self.results),
            )
        ]

    async def create(self, request: Request) -> Response:
        """Accept a batch whose envelope is good; its requests are judged when they run."""
        caller = caller_of(request, self._settings)
        batch_id = new_id("msgbatch_")
        path = requests_path(self._store, batch_id)
        try:
            await self._receive(request, path)
            count = await asyncio.to_thread(self._envelope, path)
            record = self._record(batch_id, caller, count)
            with self._store.transaction():
                self._check_queue(caller, count)
                self._store.add_batch(record)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._worker.wake()
        return answer(self._view(record, request))

    async def list(self, request: Request) -> Response:
        """A page of the workspace's batches, newest first."""
        caller = caller_of(request, self._settings)
        limit = limit_query(request, 20, MOST_LISTED)
        after, before = request.query_params.get("after_id"), request.query_params.get("before_id")
        for cursor in (after, before):
            if cursor:
                self._get(cursor, caller)
        records, more = self._store.list_batches(PROVIDER, caller.account, after, limit, before=before)
        return answer(
            {
                "data": [self._view(each, request) for each in records],
                "has_more": more,
                "first_id": records[0].id if records else None,
                "last_id": records[-1].id if records else None,
            }
        )

    async def retrieve(self, request: Request) -> Response:
        """One batch as it stands."""
        return answer(self._view(self._find(request), request))

    async def cancel(self, request: Request) -> Response:
        """Ask a batch to stop; what has been done stays done and paid for."""
        with self._store.transaction():
            record = self._find(request)
            if not record.active:
                raise ApiError(400, f"Batch {record.id} cannot be canceled because it has ended.")
            if record.wire["processing_status"] != "canceling":
                begin_cancelling(record, self._clock)
                self._store.save_batch(record)
        self._worker.wake()
        return answer(self._view(record, request))

    async def delete(self, request: Request) -> Response:
        """Forget a batch that has ended; the books keep it."""
        with self._store.transaction():
            record = self._find(request)
            if record.active:
                raise ApiError(400, f"Batch {record.id} cannot be deleted while it is in progress.")
            record.work["deleted"] = True
            self._store.save_batch(record)
        results_path(self._store, record.id).unlink(missing_ok=True)
        return answer({"id": record.id, "type": "message_batch_deleted"})

    async def results(self, request: Request) -> Response:
        """The results of a batch that has ended, in no order."""
        record = self._find(request)
        path = results_path(self._store, record.id)
        if record.active or self._archived(record) or not path.exists():
            raise ApiError(404, f"No results available for batch {record.id}.")
        return FileResponse(path, media_type="application/x-jsonl", headers={"request-id": new_id("req_")})

    # ----------------------------------------------------------------- creating

    async def _receive(self, request: Request, path: Path) -> None:
        """Write the body to `path`. Raises ApiError 413 where it is too large."""
        limit, size = self._settings.max_message_batch_bytes, 0
        with path.open("wb") as out:
            async for piece in request.stream():
                size += len(piece)
                if size > limit:
                    raise ApiError(413, "Request exceeds the maximum size", kind="request_too_large")
                out.write(piece)

    def _envelope(self, path: Path) -> int:
        """Check the envelope and leave a line for each request in its place; returns how many.

        Raises ApiError 400 saying what is wrong.
        """
        requests = json_object(path.read_bytes()).get("requests")
        if not isinstance(requests, list):
            raise ApiError(400, "requests: Field required")
        if not requests:
            raise ApiError(400, "requests: List should have at least 1 item after validation, not 0")
        most = self._settings.max_message_requests
        if len(requests) > most:
            raise ApiError(
                400, f"requests: List should have at most {most} items after validation, not {len(requests)}"
            )
        seen: set[str] = set()
        with path.open("wb") as out:
            for index, request in enumerate(requests):
                custom_id = _custom_id(request, index)
                if custom_id in seen:
                    raise ApiError(400, f"requests.{index}.custom_id: Duplicate custom_id '{custom_id}'")
                seen.add(custom_id)
                line = {"custom_id": custom_id, "params": request["params"]}
                out.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        return len(requests)

    def _check_queue(self, caller: Caller, count: int) -> None:
        """Raise ApiError 429 where the workspace's queue doesn't hold these requests too."""
        limit = self._settings.queued_messages
        if limit is None:
            return
        waiting = sum(
            each.work["requests"]
            for each in self._store.active_batches(PROVIDER)
            if each.account == caller.account
        )
        if waiting + count > limit:
            raise ApiError(
                429,
                f"This request would exceed the limit of {limit:,} batch requests in the processing queue "
                f"({waiting:,} are waiting). Please try again later.",
                headers={"retry-after": str(RETRY_AFTER_SECONDS)},
            )

    def _record(self, batch_id: str, caller: Caller, count: int) -> BatchRecord:
        now = self._clock.now()
        work = new_work(self._settings, now, count)
        for rule in self._faults.strike("batch", caller.workspace, actions=BATCH_ACTIONS):
            work["faults"][rule.do] = rule.options
            if rule.do == "pace":
                known = work["pace"].keys()
                work["pace"] |= {key: float(value) for key, value in rule.options.items() if key in known}
        if expire := work["faults"].get("expire_at"):
            work["expires_at"] = now + float(expire["fraction"]) * work["pace"]["batch_seconds"]
        wire = {
            "id": batch_id,
            "type": "message_batch",
            "processing_status": "in_progress",
            # Nothing shows how far a batch is: all its requests count as processing until it has ended.
            "request_counts": {
                "processing": count,
                "succeeded": 0,
                "errored": 0,
                "canceled": 0,
                "expired": 0,
            },
            "created_at": rfc3339(now),
            "expires_at": rfc3339(work["expires_at"]),
            "ended_at": None,
            "cancel_initiated_at": None,
            "archived_at": None,
            "results_url": None,
        }
        return BatchRecord(batch_id, PROVIDER, caller.account, now, True, wire, work)

    # ----------------------------------------------------------------- showing

    def _view(self, record: BatchRecord, request: Request) -> dict[str, Any]:
        """The batch as the service shows it; the URL of its results leads back to this host."""
        if record.active:
            return record.wire
        if self._archived(record):
            return {**record.wire, "archived_at": rfc3339(record.created_at + RESULT_DAYS * DAY)}
        host = f"{request.url.scheme}://{request.url.netloc}"
        url = f"{host}/anthropic/v1/messages/batches/{record.id}/results"
        return {**record.wire, "results_url": url}

    def _archived(self, record: BatchRecord) -> bool:
        return self._clock.now() >= record.created_at + RESULT_DAYS * DAY

    def _find(self, request: Request) -> BatchRecord:
        return self._get(request.path_params["batch_id"], caller_of(request, self._settings))

    def _get(self, batch_id: str, caller: Caller) -> BatchRecord:
        record = self._store.get_batch(batch_id, PROVIDER, caller.account)
        if record is None or record.work["deleted"]:
            raise ApiError(404, f"Message batch {batch_id} not found.")
        return record


def _custom_id(request: Any, index: int) -> str:
    if not isinstance(request, dict) or not isinstance(request.get("custom_id"), str):
        raise ApiError(400, f"requests.{index}.custom_id: Field required")
    custom_id: str = request["custom_id"]
    if not CUSTOM_ID.fullmatch(custom_id):
        raise ApiError(
            400, f"requests.{index}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        )
    if not isinstance(request.get("params"), dict):
        raise ApiError(400, f"requests.{index}.params: Field required")
    return custom_id
