"""What `python -m include.local` does: `up`, `demo`, and `cli` for commands on the stack's data."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from include.local.environment import EMULATOR_SERVICE
from include.local.options import PROJECT_ROOT, StackOptions
from include.local.stack import Stack, running_environment

STATE = PROJECT_ROOT / ".local"
AIRFLOW_PORT = 8080
EMULATOR_PORT = 8700
DAG = "initial_ingest__python_docs"


def say(text: str) -> None:
    """A line for the person who waits."""
    print(f"{datetime.now().astimezone():%H:%M:%S}  {text}", flush=True)


def up(state: Path) -> int:
    """Start everything, say where it is, and run until a signal or until a part ends by itself."""
    began = time.monotonic()
    options = StackOptions(state=state, airflow_port=AIRFLOW_PORT, emulator_port=EMULATOR_PORT, inherit=True)
    with Stack(options, say) as stack:
        run_cli(stack.env, ["sample-documents"])
        say(f"ready after {time.monotonic() - began:.0f} s")
        print(_welcome(stack), flush=True)
        while True:
            stack.check()
            time.sleep(1)


def cli(arguments: Sequence[str], state: Path) -> int:
    """Run `python -m include.cli` on the stack's data; starts PostgreSQL and the emulator if need be."""
    environment = running_environment(state)
    if environment is not None:
        return cli_process(environment, arguments).returncode
    with Stack(StackOptions(state=state, emulator_port=EMULATOR_PORT, inherit=True, airflow=False)) as stack:
        return cli_process(stack.env, arguments).returncode


def run_cli(environment: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Run one of our commands; raises CalledProcessError where it fails."""
    cli_process(environment, arguments).check_returncode()


def cli_process(
    environment: Mapping[str, str], arguments: Sequence[str], stdout: int | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run one of our commands to its end, whatever comes of it."""
    return subprocess.run(
        [sys.executable, "-m", "include.cli", *arguments], cwd=PROJECT_ROOT, env=environment, stdout=stdout
    )


def _welcome(stack: Stack) -> str:
    service = "the emulator" if f'"{EMULATOR_SERVICE}"' in _connection(stack) else "your own connection"
    return f"""
  Airflow     {stack.airflow_url}
              user admin, password {stack.secrets.admin_password}
              (viewer, who may only look: {stack.secrets.viewer_password})
  Emulator    {stack.emulator_url}/openai/v1 and /anthropic, its books at {stack.emulator_url}/_control/state
  Provider    connection openai_default is {service}
  Storage     {stack.storage_root}
  Logs        {stack.state.logs}

  In Airflow: open Dags, {DAG}, switch it on, press Trigger twice: the form's
  defaults read the whole corpus. The task `report` says what was done and what it cost.
  In another shell: make ask Q="How do I leave a loop early?"

  Ctrl-C stops all of it; `make up` again goes on where it ended.
"""


def _connection(stack: Stack) -> str:
    return stack.env.get("AIRFLOW_CONN_OPENAI_DEFAULT", "")
