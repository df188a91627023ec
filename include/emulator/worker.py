"""The thread that does the batches' work when their time has come, so that no request waits for it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
"""How often a running clock is looked at while nobody calls."""


class Lifecycle(Protocol):
    """A provider's batches over time."""

    def step(self) -> bool:
        """Do one small piece of what is due; False if nothing is."""
        ...


class Worker:
    """One thread over all lifecycles: what it does is then in one order, and repeatable."""

    def __init__(self, lifecycles: list[Lifecycle]) -> None:
        self._lifecycles = lifecycles
        self._changed = threading.Condition()
        self._wanted = 0
        self._settled = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the piece of work in hand."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def wake(self) -> None:
        """Look again now: a batch or the time has changed."""
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def settle(self, timeout: float) -> bool:
        """Wait until all that is due now has been done; False if that takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._wanted += 1
            wanted = self._wanted
            self._changed.notify_all()
            while self._settled < wanted:
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping:
                    return False
                self._changed.wait(left)
        return True

    def _run(self) -> None:
        while not self._stopping:
            with self._changed:
                seen = self._wanted
            busy = False
            for lifecycle in self._lifecycles:
                try:
                    busy = lifecycle.step() or busy
                except Exception:
                    # The thread must outlive one broken batch, or every later batch hangs without a word.
                    logger.exception("a batch's step failed; it is tried again")
                    time.sleep(1.0)
            if busy:
                continue
            with self._changed:
                self._settled = max(self._settled, seen)
                self._changed.notify_all()
                if self._wanted == seen and not self._stopping:
                    self._changed.wait(IDLE_SECONDS)
