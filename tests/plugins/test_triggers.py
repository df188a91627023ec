"""The triggers: what ends a wait, and what must never end it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from openai import OpenAI

from tests.emulators import ROOT, Emulator

RUN = """
import asyncio, json, sys
from batch_inference.triggers import BatchTrigger

async def main():
    trigger = BatchTrigger(provider="openai", conn_id="openai_default", batch_ids=json.loads(sys.argv[1]),
                           poll_seconds=0.05, give_back_seconds=float(sys.argv[2]))
    path, kwargs = trigger.serialize()
    assert path == "batch_inference.triggers.BatchTrigger"
    print("started", flush=True)
    async for event in BatchTrigger(**kwargs).run():
        print(json.dumps(event.payload), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def batch(emulator: Emulator) -> str:
    """A batch of one line that runs until the emulator's clock is moved."""
    client = OpenAI(base_url=emulator.openai_url, api_key="key")
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "text-embedding-3-small", "input": "text"},
    }
    file = client.files.create(file=("a.jsonl", json.dumps(line).encode()), purpose="batch")
    created = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    return created.id


def start(
    emulator: Emulator, airflow_env: Mapping[str, str], batch_ids: list[str], seconds: float
) -> subprocess.Popen[str]:
    connection = {"conn_type": "openai", "host": emulator.openai_url, "password": "key"}
    env = {
        **airflow_env,
        "AIRFLOW_CONN_OPENAI_DEFAULT": json.dumps(connection),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
    }
    return subprocess.Popen(
        [sys.executable, "-c", RUN, json.dumps(batch_ids), str(seconds)],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def event_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return dict(json.loads(output.splitlines()[-1]))


def polls(emulator: Emulator) -> int:
    requests = emulator.state()["requests"]
    return sum(count for route, count in requests.items() if "batches" in route and "retrieve" in route)


def test_no_error_of_a_poll_ends_the_wait(
    emulator: Emulator, airflow_env: Mapping[str, str], batch: str
) -> None:
    emulator.faults({"on": "batches.retrieve", "do": "status", "status": 500})
    process = start(emulator, airflow_env, [batch], 1e9)
    before = polls(emulator)
    while polls(emulator) < before + 5:
        assert process.poll() is None, "an error of the provider ended the trigger"
    emulator.faults()
    emulator.advance(86_400)
    assert event_of(process) == {"ended": [batch]}


def test_it_gives_back_while_a_batch_is_not_found(
    emulator: Emulator, airflow_env: Mapping[str, str], batch: str
) -> None:
    process = start(emulator, airflow_env, [batch, "batch_unknown"], 2.0)
    emulator.advance(86_400)
    assert event_of(process) == {"ended": [batch]}
