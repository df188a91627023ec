"""The emulator's own time: it runs with the machine's, or stands until a test moves it."""

from __future__ import annotations

import time
from typing import Literal

from include.emulator.store import Store

Kind = Literal["real", "manual"]


class Clock:
    """Seconds since the epoch. What a control call set or advanced is kept over a restart.

    `real` runs on by itself, shifted by what it was advanced; `manual` only moves when told to.
    """

    def __init__(self, store: Store, kind: Kind) -> None:
        self.kind: Kind = kind
        self._store = store
        self._offset = float(store.get_meta("clock_offset") or 0)
        kept = store.get_meta("clock_manual")
        self._manual = float(kept) if kept else float(int(time.time()))
        if kind == "manual":
            store.set_meta("clock_manual", repr(self._manual))

    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._manual if self.kind == "manual" else time.time() + self._offset

    def advance(self, seconds: float) -> None:
        """Move forward. Raises ValueError for a negative step: finished batches can't be undone."""
        if seconds < 0:
            raise ValueError("the clock only moves forward: `advance` must be 0 or more seconds")
        if self.kind == "manual":
            self._manual += seconds
            self._store.set_meta("clock_manual", repr(self._manual))
        else:
            self._offset += seconds
            self._store.set_meta("clock_offset", repr(self._offset))

    def set(self, moment: float) -> None:
        """Move forward to a moment. Raises ValueError if it has passed."""
        self.advance(moment - self.now())
