"""What the tests of providers share: the common emulator, a project on it for each test."""

from __future__ import annotations

import pytest

from tests.emulators import Tenant


@pytest.fixture
def emulator(tenant: Tenant) -> Tenant:
    """A project of its own for a test."""
    return tenant
