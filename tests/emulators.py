"""The emulator as a real server: one of a test's own, or a project of its own on one that tests share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Emulator:
    """A running emulator and its control plane."""

    url: str
    data: Path
    process: subprocess.Popen[bytes]

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    @property
    def anthropic_url(self) -> str:
        return f"{self.url}/anthropic"

    def state(self) -> dict[str, Any]:
        """The emulator's books: files, batches, charges by custom_id."""
        return dict(httpx.get(f"{self.url}/_control/state").raise_for_status().json())

    def advance(self, seconds: float) -> None:
        """Move the emulator's clock forward, and wait until all that fell due is done."""
        move, deadline = {"advance": seconds}, time.monotonic() + 120
        while (
            not httpx.post(f"{self.url}/_control/clock", json=move, timeout=60)
            .raise_for_status()
            .json()["settled"]
        ):
            if time.monotonic() > deadline:
                raise RuntimeError("the emulator doesn't get its work done")
            move = {"advance": 0}

    def faults(self, *faults: dict[str, Any]) -> None:
        """Set the faults to inject; none clears them."""
        httpx.put(f"{self.url}/_control/faults", json={"faults": list(faults)}).raise_for_status()


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
    tenant = Tenant(emulator.url, emulator.data, emulator.process)
    tenant.calls_before.update(tenant.state()["requests"])
    return tenant


def start_emulator(data: Path, *options: str, port: int | None = None) -> Iterator[Emulator]:
    """Start `python -m include.emulator` and stop it at the end."""
    port = port or free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "include.emulator", "--port", str(port), "--data", str(data), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    emulator = Emulator(f"http://127.0.0.1:{port}", data, process)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{emulator.url}/_control/state", timeout=2).raise_for_status()
                break
            except httpx.HTTPError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the emulator didn't start (exit code {process.poll()})") from None
                time.sleep(0.05)
        yield emulator
    finally:
        process.terminate()
        process.wait(timeout=20)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
