"""A real stack for tests that need Airflow, and what they ask of it.

One serves the whole session; the tests that use it run last (see tests/conftest.py). Each test works
on a corpus, or on runs, of its own, and leaves the others' alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from psycopg.rows import dict_row

from include.local.options import PROJECT_ROOT, EmulatorOptions, StackOptions
from include.local.stack import Stack

CORPORA = PROJECT_ROOT / "include" / "config" / "corpora"
FIRST_DAG = "initial_ingest__python_docs"
RUN_SECONDS = 240
KILLED = "killed"
#: Airflow's own place for policies of an installation. In a run named `fail__{task}`, that task fails;
#: in one named `killed`, the process of each task's first try dies when its work is done.
POLICY = """
import os
import signal

from airflow.sdk.exceptions import AirflowFailException


def _fail(context):
    if context["run_id"] == "fail__" + context["task"].task_id:
        raise AirflowFailException("made to fail by a test")


def _die(context, result=None):
    if context["run_id"] == "killed" and context["ti"].try_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def task_policy(task):
    if hasattr(task, "partial_kwargs"):
        task.partial_kwargs.update(pre_execute=_fail, post_execute=_die)
    else:
        task._pre_execute_hook = _fail
        task._post_execute_hook = _die
"""
#: Short enough for tests, long enough that every state is passed through.
EMULATOR = EmulatorOptions(
    embeddings="hash", validating_seconds=0.3, batch_seconds=1.0, finalizing_seconds=0.3
)


class IntegrationStack(Stack):
    """A stack with the helpers of the integration, fault and browser tests.

    Its corpora are a copy of the bundled ones in `corpora`: a test may add a YAML there and call
    `add_corpus`.
    """

    @property
    def corpora(self) -> Path:
        return self.state.root / "corpora"

    def run(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        expect: Collection[str] = ("success",),
        seconds: float = RUN_SECONDS,
    ) -> str:
        """Unpause and trigger a DAG, and wait for the run's end; returns its id."""
        self.api.unpause(dag_id)
        run_id = self.api.trigger(dag_id, conf)
        self.api.wait(dag_id, run_id, seconds, expect=expect)
        return run_id

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """The state of every task instance: `task_id`, or `task_id[map_index]` for a mapped one."""
        return {
            task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]": task.state
            for task in self.api.tasks(dag_id, run_id)
        }

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """What a query of the ledger gives; parameters are written `%(name)s`."""
        options = "-c search_path=batch_inference -c timezone=UTC"
        with psycopg.connect(
            self.ledger_url, autocommit=True, row_factory=dict_row, options=options
        ) as connection:
            cursor = connection.execute(sql.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def report(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """The report of a run, as it lies in storage. Run ids from `run` are safe as folder names."""
        workload, corpus = dag_id.split("__", 1)
        file = self.state.storage / "runs" / workload / corpus / run_id / "report.json"
        return dict(json.loads(file.read_text(encoding="utf-8")))

    def emulator_state(self) -> dict[str, Any]:
        """The emulator's books: files, batches, charges by custom_id."""
        return dict(httpx.get(f"{self.emulator_url}/_control/state", timeout=30).raise_for_status().json())

    def faults(self, *faults: Mapping[str, Any]) -> None:
        """Set the faults the emulator injects; none clears them."""
        body = {"faults": list(faults)}
        httpx.put(f"{self.emulator_url}/_control/faults", json=body).raise_for_status()

    def cli(self, *arguments: str) -> str:
        """What a command of ours prints. Raises CalledProcessError where it fails."""
        return subprocess.run(
            [sys.executable, "-m", "include.cli", *arguments],
            cwd=PROJECT_ROOT,
            env=self.env,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def add_corpus(self, name: str, yaml: str, seconds: float = 60) -> str:
        """Write a corpus's YAML and wait until its first DAG is there; returns the DAG's id."""
        (self.corpora / f"{name}.yaml").write_text(yaml, encoding="utf-8")
        dag_id = f"initial_ingest__{name}"
        self.api.reparse(FIRST_DAG)
        self.wait_until(lambda: dag_id in self.api.dags(), seconds, f"DAG {dag_id} isn't there")
        return dag_id


@contextmanager
def temporary_state() -> Iterator[Path]:
    """A folder for a stack's state, gone at the end.

    Not below pytest's own folder: as root, PostgreSQL runs as another user, and each pytest session
    that starts on the machine shuts that folder to everybody else.
    """
    with tempfile.TemporaryDirectory(prefix="stack-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def listening(processes: Iterable[psutil.Process]) -> set[int]:
    """The TCP ports that these processes listen on."""
    ports: set[int] = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            connections = process.net_connections("tcp")
            ports |= {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return ports


def taken(ports: set[int]) -> set[int]:
    """Those of the ports that anybody listens on."""
    connections = psutil.net_connections("tcp")
    return ports & {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="session")
def stack() -> Iterator[IntegrationStack]:
    """The running stack: our DAGs and plugins, the emulator with hash embeddings on a real clock."""
    with temporary_state() as state:
        yield from _running(state)


def _running(state: Path) -> Iterator[IntegrationStack]:
    shutil.copytree(CORPORA, state / "corpora")
    policy = state / "airflow" / "config" / "airflow_local_settings.py"
    policy.parent.mkdir(parents=True)
    policy.write_text(POLICY)
    options = StackOptions(
        state=state,
        emulator=EMULATOR,
        durable=False,
        settings={
            "AIRFLOW__BATCH_INFERENCE__CORPORA_DIR": str(state / "corpora"),
            "AIRFLOW__BATCH_INFERENCE__UNKNOWN_GRACE_SECONDS": "5",
            "AIRFLOW__BATCH_INFERENCE__RETRY_SECONDS": "1",
            # A worker that a test killed is missed in seconds.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            # So are the tasks of a scheduler that a test killed.
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
        },
        wait_for_dags=(FIRST_DAG,),
    )
    with IntegrationStack(options, print) as running:
        running.cli("sample-documents")
        yield running
