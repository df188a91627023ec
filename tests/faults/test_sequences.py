"""Whatever happens to runs, in whatever order: both promises hold when all is over.

CI plays a few seeds. `make soak SECONDS=…` plays new ones until its time is over, and says which failed;
SEED=… in the environment plays that one alone, as often as one likes.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.faults.conftest import NewWorld
from tests.faults.driver import Driver
from tests.faults.promises import broken

ACTIONS = int(os.environ.get("ACTIONS", "40"))
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, 2, 3, 4]


@pytest.mark.parametrize("seed", SEEDS)
def test_both_promises_hold_after_anything(new_world: NewWorld, seed: int) -> None:
    found, story = played(new_world, seed)
    assert found == [], story


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_both_promises_hold_for_as_long_as_one_likes(new_world: NewWorld) -> None:
    deadline = time.monotonic() + float(os.environ.get("SOAK_SECONDS", "600"))
    played_so_far, failed = 0, {}
    while time.monotonic() < deadline:
        seed = random.SystemRandom().randrange(1 << 32)
        found, story = played(new_world, seed)
        played_so_far += 1
        if found:
            failed[seed] = found
            print(f"SEED={seed} ACTIONS={ACTIONS}: {found}\n{story}", flush=True)
        elif played_so_far % 20 == 0:
            print(f"{played_so_far} sequences, {len(failed)} failed", flush=True)
    print(f"{played_so_far} sequences of {ACTIONS} actions, {len(failed)} failed: {list(failed)}", flush=True)
    assert failed == {}


def played(new_world: NewWorld, seed: int) -> tuple[list[str], str]:
    """What is broken after a seed's sequence, and the sequence."""
    world = new_world()
    driver = Driver(world, seed)
    try:
        driver.play(ACTIONS)
        found = broken(world, driver.history, spoilt=2 * (driver.runs + 1))
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    finally:
        world.release()
        world.close()
    return found, "\n".join(driver.story)
