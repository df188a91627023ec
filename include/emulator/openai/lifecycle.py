"""A batch over time: validating, in_progress, finalizing, completed; or failed, expired, cancelled.

When what happens is in pacing.py.
"""

from __future__ import annotations

import logging
from typing import Any

from include.emulator import pacing
from include.emulator.clock import Clock
from include.emulator.openai.execute import Executor
from include.emulator.openai.files import BATCH_FILE_DAYS, DAY, file_object
from include.emulator.openai.validate import error, validate
from include.emulator.openai.wire import PROVIDER, new_id
from include.emulator.settings import Settings
from include.emulator.store import BatchRecord, FileRecord, Store

logger = logging.getLogger(__name__)

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed because the batch was cancelled.")


def new_work(
    settings: Settings, now: float, organization: str, output_expires_after: dict[str, Any] | None
) -> dict[str, Any]:
    """What the worker keeps of a new batch."""
    return {
        "organization": organization,
        "pace": {
            "validating_seconds": settings.validating_seconds,
            "batch_seconds": settings.batch_seconds,
            "finalizing_seconds": settings.finalizing_seconds,
            "cancelling_seconds": settings.cancelling_seconds,
        },
        "since": now,
        "expires_at": now + settings.completion_window_seconds,
        "output_seconds": (output_expires_after or {}).get("seconds", BATCH_FILE_DAYS * DAY),
        "faults": {},
        "requests": 0,
        "tokens": 0,
        "done": 0,
        "read": 0,
        "output": {"id": new_id("file-"), "bytes": 0, "lines": 0},
        "error": {"id": new_id("file-"), "bytes": 0, "lines": 0},
        "input_tokens": 0,
        "output_tokens": 0,
        "dollars": 0.0,
        "stop": None,
    }


def finished_by(record: BatchRecord, moment: float) -> int:
    """How many of the batch's requests have ended by a moment, if nothing stops them."""
    work = record.work
    if record.wire["status"] == "validating":
        return 0
    if record.wire["status"] == "finalizing":
        return int(work["requests"])
    elapsed = float(min(moment, work["expires_at"]) - work["since"])
    return pacing.ended_by(int(work["requests"]), elapsed, float(work["pace"]["batch_seconds"]))


def begin_cancelling(record: BatchRecord, clock: Clock) -> None:
    """Turn a live batch to `cancelling`: requests that have ended by now are its last."""
    now = clock.now()
    record.work["stop"] = finished_by(record, now) if clock.kind == "manual" else record.work["done"]
    record.work["since"] = now
    record.wire["status"] = "cancelling"
    record.wire["cancelling_at"] = int(now)


class BatchLifecycle:
    """Moves batches on; only the worker's thread calls it."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, executor: Executor) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._executor = executor

    def step(self) -> bool:
        """One transition or one chunk of requests, whichever is due first; False if nothing is."""
        return pacing.step(self, self._store.active_batches(PROVIDER), self._clock)

    def chunk(self, record: BatchRecord, most: int) -> bool:
        """Run up to `most` of the batch's next requests."""
        return self._executor.chunk(record, most)

    def due(self, record: BatchRecord) -> float:
        """When the state that the batch is in ends."""
        work, status = record.work, record.wire["status"]
        pace = work["pace"]
        since = float(work["since"])
        if status == "in_progress":
            return float(min(since + pace["batch_seconds"], max(since, work["expires_at"])))
        return since + float(pace[f"{status}_seconds"])

    def unfinished(self, record: BatchRecord, moment: float) -> int:
        """Requests that should have ended by a moment and haven't."""
        if record.wire["status"] == "cancelling":
            return int(record.work["stop"] - record.work["done"])
        if record.wire["status"] != "in_progress":
            return 0
        told = "expire_at" in record.work["faults"]
        if self._clock.kind == "real" and moment >= record.work["expires_at"] and not told:
            # The window is over, however slow this machine is; a fault's share is kept exactly.
            return 0
        return int(finished_by(record, moment) - record.work["done"])

    def move(self, record: BatchRecord, due: float | None) -> None:
        """Turn to the next state, as of the moment it was due."""
        # Reading the file takes seconds: outside the transaction, so that calls don't wait.
        verdict = self._validate(record) if record.wire["status"] == "validating" else None
        with self._store.transaction():
            fresh = self._store.get_batch(record.id, PROVIDER)
            if fresh is None or fresh.wire["status"] != record.wire["status"]:
                return
            record = fresh
            # On a real clock the next state begins when the work of this one has ended.
            at = self._clock.now() if due is None else due
            status = record.wire["status"]
            if verdict is not None:
                self._validated(record, verdict, at)
            elif status == "in_progress" and record.work["done"] < record.work["requests"]:
                self._executor.write_unfinished(record, *EXPIRED)
                self._end(record, "expired", at)
            elif status == "in_progress":
                self._turn(record, "finalizing", at)
            elif status == "finalizing":
                self._end(record, "completed", at)
            elif status == "cancelling":
                if self._settings.cancelled_lines == "written":
                    self._executor.write_unfinished(record, *CANCELLED)
                self._end(record, "cancelled", at)
            self._store.save_batch(record)
        logger.info("batch %s is %s", record.id, record.wire["status"])

    # ----------------------------------------------------------------- validation

    def _validate(self, record: BatchRecord) -> dict[str, Any]:
        """What the file's validation says: `errors`, or `model`, `requests` and `tokens`."""
        if fail := record.work["faults"].get("fail_batch"):
            code = fail.get("code", "invalid_request")
            return {
                "errors": [error(code, fail.get("message", f"The batch failed: {code}."), fail.get("line"))]
            }
        found = self._store.get_file(
            PROVIDER, record.account, record.wire["input_file_id"], self._clock.now()
        )
        if found is None:
            message = f"The input file '{record.wire['input_file_id']}' does not exist or is not accessible."
            return {"errors": [error("file_not_found", message, param="input_file_id")]}
        url = record.wire["endpoint"]
        verdict = validate(self._store.path(found.id), url, self._executor.endpoints[url], self._settings)
        if verdict.measures is not None:
            self._executor.keep_measures(record.id, verdict.measures)
        return {
            "errors": verdict.errors,
            "model": verdict.model,
            "requests": verdict.requests,
            "tokens": verdict.tokens,
        }

    def _validated(self, record: BatchRecord, verdict: dict[str, Any], at: float) -> None:
        errors = verdict["errors"] or self._over_queue_limit(record, verdict)
        if errors:
            record.wire["errors"] = {"object": "list", "data": errors}
            self._executor.forget(record.id)
            self._end(record, "failed", at)
            return
        record.work |= {"requests": verdict["requests"], "tokens": verdict["tokens"]}
        record.wire["model"] = verdict["model"]
        record.wire["request_counts"]["total"] = verdict["requests"]
        if expire := record.work["faults"].get("expire_at"):
            moment = at + float(expire["fraction"]) * record.work["pace"]["batch_seconds"]
            record.work["expires_at"] = moment
            record.wire["expires_at"] = int(moment)
        self._turn(record, "in_progress", at)

    def _over_queue_limit(self, record: BatchRecord, verdict: dict[str, Any]) -> list[dict[str, Any]]:
        model = verdict["model"]
        waiting = [
            each
            for each in self._store.active_batches(PROVIDER)
            if each.account == record.account and each.wire["model"] == model
        ]
        tokens = verdict["tokens"] + sum(each.work["tokens"] for each in waiting)
        limit = self._settings.limit(self._settings.enqueued_tokens, model)
        what = "token"
        if limit is None or tokens <= limit:
            if record.wire["endpoint"] != "/v1/embeddings":
                return []
            requests = verdict["requests"] + sum(
                each.work["requests"] for each in waiting if each.wire["endpoint"] == "/v1/embeddings"
            )
            limit = self._settings.limit(self._settings.enqueued_requests, model)
            if limit is None or requests <= limit:
                return []
            what = "request"
        message = (
            f"Enqueued {what} limit reached for {model} in organization {record.work['organization']}. "
            f"Limit: {limit:,} enqueued {what}s. "
            "Please try again once some in_progress batches have been completed."
        )
        return [error(f"{what}_limit_exceeded", message)]

    # ----------------------------------------------------------------- transitions

    def _turn(self, record: BatchRecord, status: str, at: float) -> None:
        record.wire["status"] = status
        record.wire[f"{status}_at"] = int(at)
        record.work["since"] = at

    def _end(self, record: BatchRecord, status: str, at: float) -> None:
        self._turn(record, status, at)
        record.active = False
        if status == "failed":
            return
        for kind in ("output", "error"):
            part = record.work[kind]
            if not part["lines"]:
                self._store.path(part["id"]).unlink(missing_ok=True)
                continue
            expires_at = at + record.work["output_seconds"]
            name = f"{record.id}_{kind}.jsonl"
            wire = file_object(part["id"], part["bytes"], at, name, "batch_output", expires_at)
            self._store.add_file(FileRecord(part["id"], PROVIDER, record.account, expires_at, wire))
            record.wire[f"{kind}_file_id"] = part["id"]
        work = record.work
        record.wire["usage"] = {
            "input_tokens": work["input_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": work["output_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": work["input_tokens"] + work["output_tokens"],
        }
        self._executor.forget(record.id)
