"""A disk that is full while a batch is landed: a clear error, nothing half-written counts, and again."""

from __future__ import annotations

import pytest

from tests.faults.conftest import NewWorld
from tests.faults.promises import broken
from tests.faults.story import DOCUMENTS, FAULTS, tell_the_beginning
from tests.faults.workers import StepFailed
from tests.faults.world import World

LAND = "land shard 1 of 2"


@pytest.fixture
def world(new_world: NewWorld) -> World:
    return new_world("file")


def test_a_landing_on_a_full_disk_says_so_and_is_done_again(world: World) -> None:
    other = tell_the_beginning(world)
    world.emulator.faults(*FAULTS)
    run = world.run()
    with world.worker() as worker:
        world.go(worker, run, until=LAND)
    messages = []
    most = 1
    while True:
        with world.worker(most_bytes=most) as worker:
            world.begin(worker, run)
            try:
                world.end(worker, run)
                break
            except StepFailed as failure:
                messages.append(f"{failure.kind}: {failure.message}")
                assert run.here == LAND
        assert not list((world.folder / "storage").rglob(".tmp-*"))
        most = most * 3 // 2 + 1
    assert len(messages) > 3
    assert {message.partition(":")[0] for message in messages} == {"DiskFull"}, messages
    assert all("can't be written" in message and "make room" in message for message in messages)
    with world.worker() as worker:
        world.go(worker, run)
        world.go(worker, other)
    assert broken(world, DOCUMENTS) == []
