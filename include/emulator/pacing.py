"""Batches over time: what is due follows from the clock alone.

The i-th of n requests ends at i/n of `batch_seconds`. On a manual clock transitions happen in the
order of their due times and carry those as timestamps, so a jump of a day gives what a day would have
given. On a real clock they happen as soon as they are due and the work is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from include.emulator.clock import Clock
from include.emulator.store import BatchRecord


class Paced(Protocol):
    """What a provider says of its batches."""

    def due(self, record: BatchRecord) -> float:
        """When the state that the batch is in ends."""
        ...

    def unfinished(self, record: BatchRecord, moment: float) -> int:
        """Requests that should have ended by a moment and haven't."""
        ...

    def chunk(self, record: BatchRecord, most: int) -> bool:
        """Run up to `most` of the next requests; False if there are none."""
        ...

    def move(self, record: BatchRecord, due: float | None) -> None:
        """Turn to the next state, as of the moment it was due; None: as of now."""
        ...


def step(batches: Paced, live: Sequence[BatchRecord], clock: Clock) -> bool:
    """One transition or one chunk of requests, whichever is due first; False if nothing is."""
    now = clock.now()
    manual = clock.kind == "manual"
    for record in sorted(live, key=lambda each: (batches.due(each), each.seq)):
        due = batches.due(record)
        if due > now:
            break
        if batches.unfinished(record, now) > 0:
            if manual:
                return batches.chunk(record, batches.unfinished(record, due))
            continue
        batches.move(record, due if manual else None)
        return True
    worked = False
    for record in live:
        if (left := batches.unfinished(record, now)) > 0:
            worked = batches.chunk(record, left) or worked
    return worked


def ended_by(requests: int, elapsed: float, seconds: float) -> int:
    """How many of so many requests have ended after `elapsed` of the `seconds` that all of them take."""
    if seconds <= 0:
        return requests
    # The small term keeps 3 of 10 requests after 0.3 of the time from being 2.9999.
    return max(0, min(requests, math.floor(requests * elapsed / seconds + 1e-6)))
