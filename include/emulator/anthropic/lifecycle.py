"""A message batch over time: in_progress, perhaps canceling, ended. When what happens is in pacing.py.

No batch fails or expires as a whole: at its end each request has succeeded, errored, been canceled or
expired, and only then the counts say so.
"""

from __future__ import annotations

import logging
from typing import Any

from include.emulator import pacing
from include.emulator.anthropic.execute import ENDS, Executor
from include.emulator.anthropic.wire import PROVIDER, rfc3339
from include.emulator.clock import Clock
from include.emulator.settings import Settings
from include.emulator.store import BatchRecord, Store

logger = logging.getLogger(__name__)


def new_work(settings: Settings, now: float, requests: int) -> dict[str, Any]:
    """What the worker keeps of a new batch."""
    return {
        "pace": {
            "batch_seconds": settings.batch_seconds,
            "cancelling_seconds": settings.cancelling_seconds,
        },
        "begun": now,
        "since": now,
        "expires_at": now + settings.completion_window_seconds,
        "faults": {},
        "requests": requests,
        "done": 0,
        "read": 0,
        "results": {"bytes": 0},
        "counts": dict.fromkeys(ENDS, 0),
        "input_tokens": 0,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "output_tokens": 0,
        "dollars": 0.0,
        "stop": None,
        "deleted": False,
    }


def ended_by(record: BatchRecord, moment: float) -> int:
    """How many of the batch's requests have ended by a moment, if nothing stops them."""
    work = record.work
    elapsed = float(min(moment, work["expires_at"]) - work["begun"])
    return pacing.ended_by(int(work["requests"]), elapsed, float(work["pace"]["batch_seconds"]))


def begin_cancelling(record: BatchRecord, clock: Clock) -> None:
    """Turn a live batch to `canceling`: requests that have ended by now are its last."""
    now = clock.now()
    record.work["stop"] = ended_by(record, now) if clock.kind == "manual" else record.work["done"]
    record.work["since"] = now
    record.wire["processing_status"] = "canceling"
    record.wire["cancel_initiated_at"] = rfc3339(now)


class BatchLifecycle:
    """Moves batches on; only the worker's thread calls it."""

    def __init__(self, clock: Clock, store: Store, executor: Executor) -> None:
        self._clock = clock
        self._store = store
        self._executor = executor

    def step(self) -> bool:
        """One transition or one chunk of requests, whichever is due first; False if nothing is."""
        return pacing.step(self, self._store.active_batches(PROVIDER), self._clock)

    def due(self, record: BatchRecord) -> float:
        """When the state that the batch is in ends."""
        work = record.work
        if record.wire["processing_status"] == "canceling":
            return float(work["since"] + work["pace"]["cancelling_seconds"])
        return float(
            min(work["begun"] + work["pace"]["batch_seconds"], max(work["begun"], work["expires_at"]))
        )

    def unfinished(self, record: BatchRecord, moment: float) -> int:
        """Requests that should have ended by a moment and haven't."""
        work = record.work
        if record.wire["processing_status"] == "canceling":
            return int(work["stop"] - work["done"])
        told = "expire_at" in work["faults"]
        if self._clock.kind == "real" and moment >= work["expires_at"] and not told:
            # The window is over, however slow this machine is; a fault's share is kept exactly.
            return 0
        return int(ended_by(record, moment) - work["done"])

    def chunk(self, record: BatchRecord, most: int) -> bool:
        """Run up to `most` of the batch's next requests."""
        return self._executor.chunk(record, most)

    def move(self, record: BatchRecord, due: float | None) -> None:
        """End the batch, as of the moment it was due."""
        with self._store.transaction():
            fresh = self._store.get_batch(record.id, PROVIDER)
            if fresh is None or fresh.wire["processing_status"] != record.wire["processing_status"]:
                return
            work, wire = fresh.work, fresh.wire
            if work["done"] < work["requests"]:
                canceled = wire["processing_status"] == "canceling"
                self._executor.write_rest(fresh, "canceled" if canceled else "expired")
            wire["processing_status"] = "ended"
            wire["ended_at"] = rfc3339(self._clock.now() if due is None else due)
            wire["request_counts"] = {"processing": 0, **work["counts"]}
            fresh.active = False
            self._store.save_batch(fresh)
        self._executor.forget(record.id)
        logger.info("batch %s has ended", record.id)
