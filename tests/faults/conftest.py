"""What the fault tests share: an emulator, the process that others are forked from, and worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.emulators import Emulator, start_emulator
from tests.faults.workers import warm_process
from tests.faults.world import World


@pytest.fixture(scope="session")
def warm() -> Iterator[Path]:
    """The warm process's socket."""
    with warm_process() as path:
        yield path


@pytest.fixture(scope="session")
def shared_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator for all worlds, each of which has a project of its own there."""
    folder = tmp_path_factory.mktemp("emulator")
    yield from start_emulator(folder, "--embeddings", "hash", "--tokens", "guess", "--clock", "manual")


NewWorld = Callable[..., World]


@pytest.fixture
def new_world(
    tmp_path: Path, warm: Path, shared_emulator: Emulator, postgres_url: str, ledger_template: str
) -> Iterator[NewWorld]:
    """Makes worlds without faults; they are gone at the end of the test."""
    worlds: list[World] = []

    def make(protocol: str = "held") -> World:
        folder = tmp_path / f"world-{len(worlds)}"
        folder.mkdir()
        worlds.append(World(folder, warm, shared_emulator, postgres_url, protocol=protocol))
        return worlds[-1]

    shared_emulator.faults()
    yield make
    shared_emulator.faults()
    for world in worlds:
        world.release()
        world.close()


@pytest.fixture
def world(new_world: NewWorld) -> World:
    """A world on the tests' object store."""
    return new_world()
