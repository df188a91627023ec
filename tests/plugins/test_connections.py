"""Airflow's connections become providers with Airflow's own hooks, synchronous and not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.emulators import ROOT, Emulator

SCRIPT = """
import asyncio, json, sys
from batch_inference.connections import async_provider, endpoint
from include.contracts import Space
from include.providers.prompts import answer_params

name, path, model = sys.argv[1:]
found = endpoint(name, f"{name}_default")
loaded = name in sys.modules
space = Space(name, found.service, path, model, answer_params(name, path, max_tokens=50))
outcome = found.provider.probe(space, "Does it work?")

async def poll():
    return await (await async_provider(name, f"{name}_default")).poll(["batch_gone"])

print(json.dumps([found.service, loaded, outcome.cls, [s.state for s in asyncio.run(poll())]]))
"""


@pytest.mark.parametrize(
    ("name", "path", "model"),
    [
        ("openai", "/v1/chat/completions", "gpt-5-mini"),
        ("anthropic", "/v1/messages", "claude-sonnet-5-5"),
    ],
)
def test_a_connection_becomes_a_provider(
    emulator: Emulator, airflow_env: Mapping[str, str], name: str, path: str, model: str
) -> None:
    host = {"openai": emulator.openai_url, "anthropic": emulator.anthropic_url}[name]
    extra = {"service": "emulator", "prompt_cache": "1h"}
    connection = {"conn_type": name, "host": host, "password": "key", "extra": extra}
    env = {
        **airflow_env,
        f"AIRFLOW_CONN_{name.upper()}_DEFAULT": json.dumps(connection),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
    }
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, path, model],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told == ["emulator", False, "succeeded", ["not_found"]]
