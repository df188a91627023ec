"""Stop a named call before or after its work until released, so that a test can kill its caller there."""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

Point = Literal["before", "after"]


@dataclass(slots=True)
class Waiting:
    """A call that is stopped at a hold."""

    transport: asyncio.Transport | None

    @property
    def gone(self) -> bool:
        """Whether its caller has closed the connection or died."""
        return self.transport is not None and self.transport.is_closing()


@dataclass(slots=True)
class Hold:
    """One place where calls stop. `nth` lets those before the nth pass; with `times`, only so many stop."""

    id: str
    on: str
    point: Point
    orphans: Literal["drop", "run"]
    match: str | None
    times: int | None
    nth: int | None
    seen: int = 0
    caught: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: list[Waiting] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """The hold, how many calls wait there now, and how many of their callers are gone."""
        return {
            "id": self.id,
            "on": self.on,
            "point": self.point,
            "orphans": self.orphans,
            "match": self.match,
            "times": self.times,
            "nth": self.nth,
            "seen": self.seen,
            "caught": self.caught,
            "waiting": len(self.waiting),
            "gone": sum(each.gone for each in self.waiting),
        }


class Holds:
    """The holds in force. Only used on the event loop; a restart forgets them, as it does the calls."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}

    def add(self, given: dict[str, Any]) -> Hold:
        """A hold from JSON: `on`, `point`, and optionally `match`, `nth`, `times`, `orphans`.

        `orphans` says what becomes of a call held `before` its work whose caller is gone when it's
        released: `drop` (never happened; the default) or `run` (the service had received it).
        Raises ValueError saying what is wrong.
        """
        rest = dict(given)
        on, point = rest.pop("on", None), rest.pop("point", "before")
        orphans, match = rest.pop("orphans", "drop"), rest.pop("match", None)
        times, nth = rest.pop("times", None), rest.pop("nth", None)
        if (
            not isinstance(on, str)
            or point not in ("before", "after")
            or orphans not in ("drop", "run")
            or rest
            or any(number is not None and not isinstance(number, int) for number in (times, nth))
        ):
            raise ValueError(
                "a hold is {on: operation, point: before|after, match?: regex, nth?: n, "
                f"times?: n, orphans?: drop|run}}, not {given}"
            )
        hold = Hold(f"hold_{uuid.uuid4().hex[:12]}", on, point, orphans, match, times, nth)
        self._holds[hold.id] = hold
        return hold

    def describe(self) -> list[dict[str, Any]]:
        """All holds with who waits there."""
        return [each.describe() for each in self._holds.values()]

    def get(self, hold_id: str) -> Hold | None:
        """One hold by id."""
        return self._holds.get(hold_id)

    def release(self, hold_id: str | None = None) -> int:
        """Let the calls go on and remove the hold (None: all). Returns how many calls were waiting."""
        ids = list(self._holds) if hold_id is None else [hold_id]
        count = 0
        for each in ids:
            if hold := self._holds.pop(each, None):
                count += len(hold.waiting)
                hold.released.set()
        return count

    def watches(self, operation: str) -> bool:
        """Whether any hold is about this operation."""
        return any(each.on == operation for each in self._holds.values())

    async def wait(
        self, operation: str, point: Point, subject: str, transport: asyncio.Transport | None
    ) -> bool:
        """Stop here if a hold says so. False if the call is to be dropped: its caller is gone."""
        for hold in list(self._holds.values()):
            if hold.on != operation or hold.point != point:
                continue
            if hold.match is not None and not re.search(hold.match, subject):
                continue
            hold.seen += 1
            if hold.nth is not None and hold.seen < hold.nth:
                continue
            if hold.times is not None and hold.caught >= hold.times:
                continue
            hold.caught += 1
            waiting = Waiting(transport)
            hold.waiting.append(waiting)
            await hold.released.wait()
            if waiting.gone and hold.orphans == "drop":
                return False
        return True
