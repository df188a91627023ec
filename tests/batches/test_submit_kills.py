"""Killed at any call, or run twice at once: one paid batch a shard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from include.batches import submissions
from include.batches.sending import Submitted, Waiting
from include.contracts import Shard
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.batches.submitting import (
    SETTINGS,
    add_run,
    add_shard,
    advance,
    batches,
    openai_provider,
    row_of,
    send,
)
from tests.emulators import ROOT, Tenant


@pytest.fixture
def provider(emulator: Tenant) -> OpenAIBatches:
    return openai_provider(emulator.openai_url, emulator.project)


@pytest.fixture
def shard(ledger: Connection, storage: Storage) -> Shard:
    add_run(ledger)
    return add_shard(ledger, storage, ["one", "two"])


Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def start(ledger_url: str, storage: Storage, emulator: Tenant, shard: Shard) -> Any:
    """Starts a process that submits the shard."""
    children: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.batches.submit_once",
                ledger_url,
                storage.root,
                emulator.openai_url,
                shard.id,
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_PROJECT_ID": emulator.project},
            stdout=subprocess.PIPE,
        )
        children.append(child)
        return child

    yield begin
    release(emulator)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.communicate()


def hold(emulator: Tenant, on: str, point: str, orphans: str = "drop") -> None:
    body = {"on": on, "point": point, "orphans": orphans}
    httpx.post(f"{emulator.url}/_control/hold", json=body).raise_for_status()


def release(emulator: Tenant) -> None:
    httpx.delete(f"{emulator.url}/_control/hold").raise_for_status()


def wait_until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def held(emulator: Tenant, what: str = "waiting") -> int:
    answer = httpx.get(f"{emulator.url}/_control/hold").json()
    holds = answer["holds"] if isinstance(answer, dict) else answer
    return sum(int(each[what]) for each in holds)


def killed_at(emulator: Tenant, start: Start, on: str, point: str, orphans: str = "drop") -> None:
    """Start a submit, stop it at this call, and kill it there."""
    hold(emulator, on, point, orphans)
    child = start()
    wait_until(lambda: held(emulator) == 1)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(timeout=30)
    wait_until(lambda: held(emulator, "gone") == 1)


def only_batch(emulator: Tenant) -> str:
    (batch,) = batches(emulator)
    return str(batch["id"])


@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_in_an_upload_it_sends_one_batch(
    ledger: Connection,
    storage: Storage,
    provider: OpenAIBatches,
    emulator: Tenant,
    shard: Shard,
    start: Start,
    point: str,
) -> None:
    killed_at(emulator, start, "files.create", point)
    release(emulator)
    submitted = send(ledger, storage, provider, shard.id)
    assert isinstance(submitted, Submitted) and submitted.attempt == 1
    assert only_batch(emulator) == submitted.batch_id


def test_killed_after_a_create_it_adopts_the_batch(
    ledger: Connection,
    storage: Storage,
    provider: OpenAIBatches,
    emulator: Tenant,
    shard: Shard,
    start: Start,
) -> None:
    killed_at(emulator, start, "batches.create", "after")
    release(emulator)
    assert row_of(ledger, shard).state == "creating"
    submitted = send(ledger, storage, provider, shard.id)
    assert isinstance(submitted, Submitted) and submitted.attempt == 1
    assert only_batch(emulator) == submitted.batch_id


def test_killed_before_a_create_it_sends_a_second_attempt_after_the_grace(
    ledger: Connection,
    storage: Storage,
    provider: OpenAIBatches,
    emulator: Tenant,
    shard: Shard,
    start: Start,
) -> None:
    killed_at(emulator, start, "batches.create", "before")
    release(emulator)
    assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
    advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
    submitted = send(ledger, storage, provider, shard.id)
    assert isinstance(submitted, Submitted) and submitted.attempt == 2
    assert only_batch(emulator) == submitted.batch_id


def test_a_create_that_the_provider_carries_out_late_is_adopted(
    ledger: Connection,
    storage: Storage,
    provider: OpenAIBatches,
    emulator: Tenant,
    shard: Shard,
    start: Start,
) -> None:
    killed_at(emulator, start, "batches.create", "before", orphans="run")
    assert isinstance(send(ledger, storage, provider, shard.id), Waiting)
    release(emulator)
    wait_until(lambda: len(batches(emulator)) == 1)
    advance(ledger, emulator, SETTINGS.unknown_grace_seconds + 1)
    submitted = send(ledger, storage, provider, shard.id)
    assert isinstance(submitted, Submitted) and submitted.attempt == 1
    assert only_batch(emulator) == submitted.batch_id


def test_two_processes_at_once_send_one_batch(
    ledger: Connection, emulator: Tenant, shard: Shard, start: Start
) -> None:
    hold(emulator, "batches.create", "before")
    first = start()
    wait_until(lambda: held(emulator) == 1)
    second = start()
    wait_until(lambda: waiting_for_the_lock(ledger))
    release(emulator)
    told = {child.communicate(timeout=60)[0] for child in (first, second)}
    assert len(told) == 1 and b"Submitted" in told.pop()
    assert only_batch(emulator) == row_of(ledger, shard).batch_id
    assert len(submissions.attempts(ledger, shard.id)) == 1


def waiting_for_the_lock(ledger: Connection) -> bool:
    found = ledger.execute(
        "select count(*) as waiting from pg_locks where locktype = 'advisory' and not granted"
        " and database = (select oid from pg_database where datname = current_database())"
    ).fetchone()
    assert found is not None
    return bool(found["waiting"])
