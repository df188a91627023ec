"""Every test here needs a real Airflow: the fixture `stack` of tests/stack.py."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, so that `-m "not integration"` leaves the slow ones out."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
