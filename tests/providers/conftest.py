"""What the tests of providers share: one emulator for a file, a project on it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Emulator, start_emulator
from tests.tenant import Tenant, tenant_of


@pytest.fixture(scope="module")
def shared_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator for a whole file; its clock only moves forward."""
    folder = tmp_path_factory.mktemp("emulator")
    yield from start_emulator(folder, "--embeddings", "hash", "--clock", "manual")


@pytest.fixture
def emulator(shared_emulator: Emulator) -> Tenant:
    """A project of its own for a test."""
    return tenant_of(shared_emulator)
