"""Airflow's own batch operator and trigger, unmodified, against the emulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.emulator.conftest import drive, embedding_line
from tests.emulators import Emulator

SCRIPT = """
import asyncio, sys
from airflow.sdk.exceptions import TaskDeferred
from airflow.providers.openai.operators.openai import OpenAITriggerBatchOperator

def operator(**options):
    return OpenAITriggerBatchOperator(
        task_id="batch", file_id=sys.argv[1], endpoint="/v1/embeddings", **options
    )

async def first_event(trigger):
    async for event in trigger.run():
        return event

print("batch:" + operator(deferrable=False, wait_seconds=0.1).execute({}))
deferring = operator(deferrable=True, poll_interval=0.1)
try:
    deferring.execute({})
except TaskDeferred as deferred:
    event = asyncio.run(first_event(deferred.trigger))
    print("batch:" + getattr(deferring, deferred.method_name)({}, event.payload))
"""


def run_operator(home: Path, emulator: Emulator, file_id: str) -> list[str]:
    """Run the operator, waiting and deferred, with `openai_default` on the emulator; returns batch ids."""
    connection = {"conn_type": "openai", "password": "sk-test", "host": emulator.openai_url}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_OPENAI_DEFAULT": json.dumps(connection),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, file_id], env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return re.findall(r"batch:(\S+)", done.stdout)


def test_airflow_s_operator_completes_a_batch_waiting_and_deferred(
    start: Callable[..., Emulator], tmp_path: Path
) -> None:
    pace = ("--validating-seconds", "0.2", "--batch-seconds", "0.5", "--finalizing-seconds", "0.2")
    emulator = start(*pace)
    driver = drive(emulator)
    file_id = driver.upload([embedding_line(each, each) for each in ("a", "b", "c")])
    batch_ids = run_operator(tmp_path / "airflow", emulator, file_id)
    assert len(batch_ids) == 2
    for batch_id in batch_ids:
        batch = driver.client.batches.retrieve(batch_id)
        assert batch.status == "completed"
        assert set(driver.results(batch)[0]) == {"a", "b", "c"}
