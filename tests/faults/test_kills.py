"""Killed at any point, and run again: the end is the same as of a run that nobody disturbed.

Every call of every task that changes something is a point, before its work and after it. CI takes all of
one provider and a few of the other, many to a run; `make soak` takes all, each alone. POINT="…" in the
environment, with a point's name as a failure prints it, has it take that one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.emulators import Emulator
from tests.faults.points import Point, kill_at, passes, record
from tests.faults.promises import End, broken, end_of
from tests.faults.story import DOCUMENTS, FAULTS, tell_the_beginning
from tests.faults.workers import StepFailed
from tests.faults.world import EXTRACTION, INGEST, Run, Saved, World

PARTS = 4
"""In how many tests CI takes the points of one provider."""
SAMPLE = 2
"""How many points of each step CI takes where it doesn't take all."""


@dataclass
class Recorded:
    """The story up to its run, kept; the points of the run, and how it ends undisturbed."""

    world: World
    beginning: Saved
    run: Run
    other: Run
    points: list[Point]
    end: End


@pytest.fixture(scope="module")
def recorded(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    warm: Path,
    shared_emulator: Emulator,
    postgres_url: str,
    ledger_template: str,
) -> Iterator[Recorded]:
    shared_emulator.faults()
    world = World(tmp_path_factory.mktemp("story"), warm, shared_emulator, postgres_url)
    other = tell_the_beginning(world, request.param)
    beginning = world.save()
    world.restore(beginning)
    world.emulator.faults(*FAULTS)
    run = world.run(request.param)
    start = run.copy()
    points = record(world, run)
    with world.worker() as worker:
        world.go(worker, other.copy())
    assert broken(world, DOCUMENTS) == []
    yield Recorded(world, beginning, start, other, points, end_of(world))
    world.close()


@pytest.mark.parametrize("recorded", [INGEST], indirect=True)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_that_a_kill_can_leave_behind_is_gone_on_from(recorded: Recorded, part: int) -> None:
    """Every point of one provider, over all parts. What is dead after a call and what is dead before the
    next one leave the same behind, so the half of the points will do."""
    points = [point for point in recorded.points if point.when != "before"]
    kill_in_passes(recorded, passes(points)[part::PARTS])


@pytest.mark.parametrize("recorded", [EXTRACTION], indirect=True)
def test_and_a_few_points_of_each_step_of_another(recorded: Recorded) -> None:
    steps: dict[str, list[Point]] = {}
    for point in recorded.points:
        steps.setdefault(point.task.split()[0], []).append(point)
    kill_in_passes(recorded, passes([point for points in steps.values() for point in spread(points, SAMPLE)]))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("recorded", [INGEST, EXTRACTION], indirect=True)
def test_killed_at_any_point_alone_it_ends_as_if_nothing_had_been(recorded: Recorded) -> None:
    one = os.environ.get("POINT")
    points = [point for point in recorded.points if one in (None, str(point))]
    assert points
    wrong: dict[str, list[str]] = {}
    for number, point in enumerate(points, 1):
        if found := killed_alone(recorded, point):
            wrong[str(point)] = found
            print(f"{point}: {found}", flush=True)
        if number % 50 == 0 or number == len(points):
            print(f"{number} of {len(points)} points, {len(wrong)} failed", flush=True)
    assert wrong == {}, f"{len(wrong)} of {len(points)} points"


def kill_in_passes(recorded: Recorded, rounds: list[list[Point]]) -> None:
    """Tell the story once a pass, each task killed once each time, until all points were met.

    A task that was killed may have made a later task's calls for it: where the later one comes to
    another call, its point is met alone.
    """
    assert rounds
    wrong: dict[str, list[str]] = {}
    for together in rounds:
        missed, found = killed_there(recorded, together)
        # Where a pass fails, the points of it that fail alone are told, if any does.
        suspects = together if found else missed
        alone = {str(point): killed_alone(recorded, point) for point in suspects}
        wrong |= {point: what for point, what in alone.items() if what}
        if found and not any(alone.values()):
            wrong[" and ".join(map(str, together))] = found
    assert wrong == {}, f"{len(wrong)} of {sum(map(len, rounds))} points"


def killed_alone(recorded: Recorded, point: Point) -> list[str]:
    """What is broken after the run was killed at this point and no other."""
    missed, found = killed_there(recorded, [point])
    return found or ["it never came to it"] * len(missed)


def killed_there(recorded: Recorded, points: list[Point]) -> tuple[list[Point], list[str]]:
    """The points that the run never came to, and what is broken after it was killed at the others."""
    world, run, other = recorded.world, recorded.run.copy(), recorded.other.copy()
    world.restore(recorded.beginning)
    world.emulator.faults(*FAULTS)
    try:
        missed = kill_at(world, run, points)
        with world.worker() as worker:
            world.go(worker, other)
    except (StepFailed, AssertionError) as failure:
        return [], [f"{type(failure).__name__}: {failure}"]
    finally:
        world.release()
    found = broken(world, DOCUMENTS)
    end = end_of(world)
    return missed, found or [
        f"{name}: {getattr(end, name)}, not {getattr(recorded.end, name)}"
        for name in End.__dataclass_fields__
        if getattr(end, name) != getattr(recorded.end, name)
    ]


def spread(points: list[Point], most: int) -> list[Point]:
    """So many of the points, always the same, of each kind in turn; and a late one if there is any."""
    chance = random.Random(len(points))
    kinds: dict[str, list[Point]] = {}
    for point in chance.sample(points, len(points)):
        kinds.setdefault("late" if point.when == "late" else point.kind, []).append(point)
    late = kinds.pop("late", [])[:1]
    turns = zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return late + [point for turn in turns for point in turn if point is not None][:most]
