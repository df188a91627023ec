"""What the tests of batches share: the common emulator, whole or as a project of a test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulators import Emulator, Tenant


@pytest.fixture
def calm_emulator(common_emulator: Emulator) -> Iterator[Emulator]:
    """The common emulator, without faults before and after; its books hold all tests' batches."""
    common_emulator.faults()
    yield common_emulator
    common_emulator.faults()


@pytest.fixture
def emulator(tenant: Tenant) -> Tenant:
    """A project of its own for a test."""
    return tenant
