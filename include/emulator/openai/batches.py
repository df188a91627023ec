"""/v1/batches: create, retrieve, list, cancel. What happens to a batch over time is in lifecycle.py."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from include.emulator.clock import Clock
from include.emulator.faults import BATCH_ACTIONS, Faults
from include.emulator.gate import Gate
from include.emulator.openai.files import EXPIRY_RANGE
from include.emulator.openai.lifecycle import begin_cancelling, new_work
from include.emulator.openai.wire import (
    PROVIDER,
    ApiError,
    Caller,
    answer,
    caller_of,
    integer_query,
    json_body,
    new_id,
)
from include.emulator.settings import Settings
from include.emulator.store import BatchRecord, Store
from include.emulator.worker import Worker

HOUR = 3_600
TIMES = (
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


class BatchApi:
    """The handlers of /v1/batches."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        faults: Faults,
        worker: Worker,
        endpoints: set[str],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._faults = faults
        self._worker = worker
        self._endpoints = endpoints

    def routes(self, gate: Gate) -> list[Route]:
        """The operations `batches.*`."""
        return [
            gate.route("batches.create", "POST", "/batches", self.create),
            gate.route("batches.list", "GET", "/batches", self.list),
            gate.route("batches.retrieve", "GET", "/batches/{batch_id}", self.retrieve),
            gate.route("batches.cancel", "POST", "/batches/{batch_id}/cancel", self.cancel),
        ]

    async def create(self, request: Request) -> Response:
        """Accept a batch; whether its file is good shows later."""
        caller = caller_of(request, self._settings)
        body = await json_body(request)
        metadata = _metadata(body.get("metadata"))
        now = self._clock.now()
        self._check(body, caller, now)
        batch_id = new_id("batch_")
        wire: dict[str, Any] = {
            "id": batch_id,
            "object": "batch",
            "endpoint": body["endpoint"],
            "model": None,
            "errors": None,
            "input_file_id": body["input_file_id"],
            "completion_window": body["completion_window"],
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": int(now),
            **dict.fromkeys(TIMES),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "usage": None,
            "metadata": metadata,
        }
        wire["expires_at"] = int(now + self._settings.completion_window_seconds)
        work = new_work(self._settings, now, caller.organization, body.get("output_expires_after"))
        subject = str(metadata or {})
        for point in ("batches.create", "batch"):
            for rule in self._faults.strike(point, subject, actions=BATCH_ACTIONS):
                work["faults"][rule.do] = rule.options
                if rule.do == "pace":
                    work["pace"] |= {key: float(value) for key, value in rule.options.items()}
        self._store.add_batch(BatchRecord(batch_id, PROVIDER, caller.account, now, True, wire, work))
        self._worker.wake()
        return answer(wire)

    async def list(self, request: Request) -> Response:
        """A page of the account's batches, newest first."""
        caller = caller_of(request, self._settings)
        limit = integer_query(request, "limit", 20, 1, 100)
        after = request.query_params.get("after")
        if after and self._store.get_batch(after, PROVIDER, caller.account) is None:
            raise ApiError(404, f"No batch found with id '{after}'.", param="after")
        records, more = self._store.list_batches(PROVIDER, caller.account, after, limit)
        return answer(
            {
                "object": "list",
                "data": [each.wire for each in records],
                "first_id": records[0].id if records else None,
                "last_id": records[-1].id if records else None,
                "has_more": more,
            }
        )

    async def retrieve(self, request: Request) -> Response:
        """One batch as it stands."""
        return answer(self._find(request).wire)

    async def cancel(self, request: Request) -> Response:
        """Ask a batch to stop; what has been done stays done and paid for."""
        with self._store.transaction():
            record = self._find(request)
            status = record.wire["status"]
            if not record.active:
                raise ApiError(409, f"Cannot cancel a batch with status '{status}'.")
            if status != "cancelling":
                begin_cancelling(record, self._clock)
                self._store.save_batch(record)
        self._worker.wake()
        return answer(record.wire)

    def _find(self, request: Request) -> BatchRecord:
        caller = caller_of(request, self._settings)
        batch_id = request.path_params["batch_id"]
        record = self._store.get_batch(batch_id, PROVIDER, caller.account)
        if record is None:
            raise ApiError(404, f"No batch found with id '{batch_id}'.")
        return record

    def _check(self, body: dict[str, Any], caller: Caller, now: float) -> None:
        for name in ("input_file_id", "endpoint", "completion_window"):
            if not isinstance(body.get(name), str):
                raise ApiError(
                    400,
                    f"Missing required parameter: '{name}'.",
                    param=name,
                    code="missing_required_parameter",
                )
        if body["endpoint"] not in self._endpoints:
            raise _invalid_value("endpoint", body["endpoint"], sorted(self._endpoints))
        if body["completion_window"] != "24h":
            raise _invalid_value("completion_window", body["completion_window"], ["24h"])
        expiry = body.get("output_expires_after")
        low, high = EXPIRY_RANGE
        if expiry is not None and not (
            isinstance(expiry, dict)
            and expiry.get("anchor") == "created_at"
            and isinstance(expiry.get("seconds"), int)
            and low <= expiry["seconds"] <= high
        ):
            raise ApiError(
                400,
                f"Invalid 'output_expires_after': anchor must be 'created_at', seconds {low} to {high}.",
                param="output_expires_after",
            )
        per_hour = self._settings.creations_per_hour
        if (
            per_hour is not None
            and self._store.batches_since(PROVIDER, caller.account, now - HOUR) >= per_hour
        ):
            raise ApiError(
                429,
                f"Rate limit reached for batch creations in organization {caller.organization}: "
                f"Limit {per_hour}, Used {per_hour} per hour. Please try again later.",
                kind="requests",
                code="rate_limit_exceeded",
            )
        file = self._store.get_file(PROVIDER, caller.account, body["input_file_id"], now)
        if file is None:
            if self._settings.missing_input == "refuse":
                raise ApiError(
                    400,
                    f"Invalid 'input_file_id': no such file '{body['input_file_id']}'.",
                    param="input_file_id",
                    code="invalid_value",
                )
        elif file.wire["purpose"] != "batch":
            raise ApiError(
                400,
                f"Invalid purpose of file '{file.id}': expected 'batch', but got '{file.wire['purpose']}'.",
                param="input_file_id",
                code="invalid_value",
            )


def _invalid_value(param: str, value: str, supported: list[str]) -> ApiError:
    listed = ", ".join(f"'{each}'" for each in supported)
    return ApiError(
        400, f"Invalid value: '{value}'. Supported values are: {listed}.", param=param, code="invalid_value"
    )


def _metadata(value: Any) -> dict[str, str] | None:
    """The batch's metadata as given.

    Raises ApiError 400 beyond 16 pairs, keys of 64 and values of 512 characters.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ApiError(400, "Invalid type for 'metadata': expected an object.", param="metadata")
    if len(value) > 16:
        raise ApiError(
            400,
            "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, "
            f"but got an object with {len(value)} properties instead.",
            param="metadata",
            code="object_above_max_properties",
        )
    for key, text in value.items():
        if not isinstance(text, str):
            raise ApiError(
                400,
                f"Invalid type for 'metadata.{key}': expected a string.",
                param=f"metadata.{key}",
                code="invalid_type",
            )
        if len(key) > 64 or len(text) > 512:
            raise ApiError(
                400,
                f"Invalid 'metadata.{key}': keys have up to 64 characters, values up to 512.",
                param=f"metadata.{key}",
                code="string_above_max_length",
            )
    return value
