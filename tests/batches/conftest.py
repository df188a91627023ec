"""What the tests of batches share: one emulator for the tests of a file that need no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Emulator, start_emulator


@pytest.fixture(scope="module")
def shared_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator for a whole file; its clock only moves forward, its books hold all tests' batches."""
    folder = tmp_path_factory.mktemp("emulator")
    yield from start_emulator(folder, "--embeddings", "hash", "--clock", "manual")


@pytest.fixture
def calm_emulator(shared_emulator: Emulator) -> Iterator[Emulator]:
    """The shared emulator without faults, before and after."""
    shared_emulator.faults()
    yield shared_emulator
    shared_emulator.faults()
