"""The points at which a run is killed: found by recording an undisturbed run, so that none is forgotten.

A point is a call that changes something, before its work or after it. `late` is a call that reaches
the provider only after its caller's death and the next try, as a request on its way does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import httpx

from tests.faults.gate import Kind, When
from tests.faults.workers import wait_until
from tests.faults.world import Run, World

_WHEN: tuple[When, When] = ("before", "after")
_LATE = frozenset({"batches.create", "messages.batches.create"})
"""The one call that may still do its work when its caller is dead, and costs money."""


@dataclass(frozen=True, slots=True)
class Point:
    """The nth call of a kind in a task. Provider calls are counted by operation, which is `name`."""

    task: str
    kind: Kind | Literal["provider"]
    name: str
    nth: int
    when: When | Literal["late"]

    def __str__(self) -> str:
        return f"{self.task} | {self.kind} {self.nth} | {self.when} | {self.name}"


def record(world: World, run: Run) -> list[Point]:
    """Take a run to its end undisturbed; returns the points that it passed."""
    points: list[Point] = []
    while run.next is not None:
        here = run.here
        with world.gated_worker() as (worker, gate):
            before = Counter(world.books()["requests"])
            world.begin(worker, run)
            worker.wait()
            asked = Counter(world.books()["requests"]) - before
            world.end(worker, run)
        for call in gate.calls:
            points += [Point(here, call.kind, call.name, call.nth, when) for when in _WHEN]
        for operation, count in sorted(asked.items()):
            for nth in range(1, count + 1):
                points += [Point(here, "provider", operation, nth, when) for when in _WHEN]
                if operation in _LATE:
                    points.append(Point(here, "provider", operation, nth, "late"))
    return points


def passes(points: list[Point]) -> list[list[Point]]:
    """The points in as few passes as will do: in each, every task is killed at one point of its own."""
    of_task: dict[str, list[Point]] = {}
    for point in points:
        of_task.setdefault(point.task, []).append(point)
    return [[point for point in column if point is not None] for column in zip_longest(*of_task.values())]


def kill_at(world: World, run: Run, points: list[Point]) -> list[Point]:
    """Take a run to its end, and at each point kill the process that does its task; at most one a task.

    Returns the points that it never came to: the task comes to another call there, or isn't begun that
    often.
    """
    left = {point.task: point for point in points}
    missed: list[Point] = []
    while run.next is not None:
        point = left.pop(run.here, None)
        if point is None:
            with world.worker() as worker:
                world.go(worker, run, until=left.keys())
        elif not (_killed_at_the_provider if point.kind == "provider" else _killed)(world, run, point):
            missed.append(point)
    return missed + list(left.values())


def _killed(world: World, run: Run, point: Point) -> bool:
    with world.gated_worker() as (worker, gate):
        gate.stop(point.kind, point.nth, "before" if point.when == "before" else "after")
        world.begin(worker, run)
        worker.wait(lambda: gate.caught is not None)
        if gate.caught is not None and gate.caught.name == point.name:
            worker.kill()
            return True
        gate.open()
        world.end(worker, run)
        return False


def _killed_at_the_provider(world: World, run: Run, point: Point) -> bool:
    control = f"{world.emulator.url}/_control/hold"
    late = point.when == "late"
    hold = {
        "on": point.name,
        "nth": point.nth,
        "times": 1,
        "point": "before" if late else point.when,
        "orphans": "run" if late else "drop",
    }
    number = httpx.post(control, json=hold).raise_for_status().json()["id"]

    def held(what: str) -> bool:
        return bool(httpx.get(f"{control}/{number}").raise_for_status().json()[what])

    def release() -> None:
        httpx.delete(f"{control}/{number}").raise_for_status()

    with world.worker() as worker:
        world.begin(worker, run)
        worker.wait(lambda: held("waiting"))
        if not held("waiting"):
            release()
            world.end(worker, run)
            return False
        worker.kill()
    wait_until(lambda: held("gone"), "the provider sees that its caller is gone")
    if late:
        with world.worker() as worker:
            world.begin(worker, run)
            world.end(worker, run)
    before = len(world.books()["batches"])
    release()
    if late:
        wait_until(lambda: len(world.books()["batches"]) > before, "the late create is done")
    return True
