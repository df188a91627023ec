"""A project of its own on an emulator that several tests share: each sees only its own books."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.conftest import Emulator


@dataclass
class Tenant(Emulator):
    """An emulator seen from one project: files, batches, charges, and counts of calls since it was made.

    Faults and the clock are the whole emulator's.
    """

    project: str = field(default_factory=lambda: f"proj_{uuid.uuid4().hex[:12]}")
    calls_before: Counter[str] = field(default_factory=Counter)

    def state(self) -> dict[str, Any]:
        """The books of this project; `requests` are the calls since it was made, whoever called."""
        url = f"{self.url}/_control/state"
        books = dict(httpx.get(url, params={"project": self.project}).raise_for_status().json())
        books["requests"] = Counter(books["requests"])
        books["requests"].subtract(self.calls_before)
        return books


def tenant_of(emulator: Emulator) -> Tenant:
    """A new project on this emulator, with no faults and no holds."""
    emulator.faults()
    calls = Counter(emulator.state()["requests"])
    return Tenant(emulator.url, emulator.data, emulator.process, calls_before=calls)
