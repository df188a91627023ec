"""Killed at any point, and run again: the end is the same as of a run that nobody disturbed.

Every call of every task that changes something is a point, before its work and after it. CI takes a
few of each step; `make soak` takes all. POINT="…" in the environment, with a point's name
as a failure prints it, takes that one alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.conftest import Emulator
from tests.faults.points import Point, kill_at, record
from tests.faults.promises import End, broken, end_of
from tests.faults.story import DOCUMENTS, FAULTS, tell_the_beginning
from tests.faults.workers import StepFailed
from tests.faults.world import EXTRACTION, INGEST, STAGES, Run, Saved, World

SAMPLE = {INGEST: 2, EXTRACTION: 1}
"""How many points of each step CI takes: one provider's more than the other's."""


@dataclass
class Recorded:
    """The story up to its run, kept; the points of the run, and how it ends undisturbed."""

    world: World
    beginning: Saved
    run: Run
    other: Run
    points: list[Point]
    end: End


@pytest.fixture(scope="module", params=[INGEST, EXTRACTION])
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


STEPS = sorted({stage.removesuffix(" again") for stage in STAGES}, key=STAGES.index)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_point_it_ends_as_if_nothing_had_been(recorded: Recorded, step: str) -> None:
    points = [point for point in recorded.points if point.task.split()[0] == step]
    judge(recorded, spread(points, SAMPLE[recorded.run.ref.workload]))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_point_it_ends_as_if_nothing_had_been(recorded: Recorded, step: str) -> None:
    judge(recorded, [point for point in recorded.points if point.task.split()[0] == step])


def judge(recorded: Recorded, points: list[Point]) -> None:
    """Tell the story once for each point, killed there."""
    if one := os.environ.get("POINT"):
        points = [point for point in recorded.points if str(point) == one]
    assert points
    wrong = {str(point): found for point in points if (found := killed_there(recorded, point))}
    assert wrong == {}, f"{len(wrong)} of {len(points)} points"


def killed_there(recorded: Recorded, point: Point) -> list[str]:
    """What is broken after the run was killed at a point and went on."""
    world, run, other = recorded.world, recorded.run.copy(), recorded.other.copy()
    world.restore(recorded.beginning)
    world.emulator.faults(*FAULTS)
    try:
        kill_at(world, run, point)
        with world.worker() as worker:
            world.go(worker, run)
            world.go(worker, other)
    except (StepFailed, AssertionError) as failure:
        return [f"{type(failure).__name__}: {failure}"]
    finally:
        world.release()
    found = broken(world, DOCUMENTS)
    end = end_of(world)
    return found or [
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
