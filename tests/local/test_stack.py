"""A real stack: healthy when it says so, one a folder, mended when a part was killed, gone at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from include.local.airflow_api import AirflowApi
from include.local.errors import ApiError, RunFailedError, StackError
from include.local.options import EmulatorOptions, StackOptions
from include.local.stack import Stack, running_environment
from tests.stack import listening, taken, temporary_state

DAG_FILE = """
import os, sys
from airflow.sdk import Param, dag, task

@dag(schedule=None, params={"fail": Param(False, type="boolean")})
def trivial():
    @task
    def look(params=None):
        if params["fail"]:
            raise RuntimeError("asked to fail")
        import include.contracts
        return os.environ["AIRFLOW__BATCH_INFERENCE__STORAGE_ROOT"]
    look()

trivial()
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with temporary_state() as made:
        (made / "dags").mkdir()
        (made / "plugins").mkdir()
        (made / "dags" / "trivial_dag.py").write_text(DAG_FILE)
        yield made


@pytest.fixture(scope="module")
def options(folder: Path) -> StackOptions:
    return StackOptions(
        state=folder / "state",
        dags=folder / "dags",
        plugins=folder / "plugins",
        emulator=EmulatorOptions(embeddings="hash"),
        durable=False,
        wait_for_dags=("trivial",),
    )


@pytest.fixture(scope="module")
def own(options: StackOptions) -> Iterator[Stack]:
    """Starts once for all tests of this file; at its end no process and no port may be left."""
    with Stack(options, print) as running:
        processes = psutil.Process(running.processes.pid).children(recursive=True)
        assert len(processes) > 8
        ports = listening(processes)
        assert {running.ports.airflow, running.ports.emulator, running.ports.postgres} <= ports
        yield running
        processes += psutil.Process(running.processes.pid).children(recursive=True)
    assert not psutil.wait_procs(processes, timeout=5)[1]
    assert not taken(ports)


def test_all_four_components_are_healthy_when_it_is_ready(own: Stack) -> None:
    status = own.api.health().status
    assert status == dict.fromkeys(["metadatabase", "scheduler", "triggerer", "dag_processor"], "healthy")
    own.check()


def test_a_run_is_triggered_with_its_defaults_and_finds_our_packages_and_settings(own: Stack) -> None:
    own.api.unpause("trivial")
    heard: list[str] = []
    run = own.api.trigger("trivial")
    assert own.api.wait("trivial", run, 60, progress=heard.append)["state"] == "success"
    assert "look: success" in heard
    assert own.api.xcom("trivial", run, "look") == own.storage_root


def test_a_run_that_fails_says_which_task_and_why(own: Stack) -> None:
    own.api.unpause("trivial")
    run = own.api.trigger("trivial", {"fail": True})
    with pytest.raises(RunFailedError, match=r"(?s)look: failed.*asked to fail"):
        own.api.wait("trivial", run, 60)


def test_the_viewer_may_look_and_not_touch(own: Stack) -> None:
    viewer = AirflowApi(own.airflow_url, "viewer", own.secrets.viewer_password)
    assert "trivial" in viewer.dags()
    with pytest.raises(ApiError) as refused:
        viewer.trigger("trivial")
    assert refused.value.status == 403
    viewer.close()


def test_the_ledger_is_migrated_and_the_emulator_answers(own: Stack) -> None:
    with psycopg.connect(own.ledger_url) as connection:
        assert connection.execute("select count(*) from batch_inference.schema_migrations").fetchone()
    assert httpx.get(f"{own.emulator_url}/_control/state").is_success


def test_the_database_needs_its_password(own: Stack) -> None:
    open_url = own.ledger_url.replace(own.secrets.postgres_password, "guessed")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(open_url)


def test_commands_find_the_running_stack(own: Stack, options: StackOptions) -> None:
    assert running_environment(options.state) == own.env


def test_a_second_stack_on_the_same_folder_is_refused(own: Stack, options: StackOptions) -> None:
    with pytest.raises(StackError, match="another stack runs on"), Stack(options):
        pass


def test_a_component_that_was_killed_is_noticed_and_started_again(own: Stack) -> None:
    own.kill("triggerer")
    with pytest.raises(StackError, match="triggerer ended by itself"):
        own.check()
    own.restart("triggerer")
    own.check()


class TestWithoutAirflow:
    """PostgreSQL and the emulator alone, as `make ask` uses them."""

    @pytest.fixture
    def small(self) -> Iterator[StackOptions]:
        with temporary_state() as state:
            yield StackOptions(state=state, emulator=EmulatorOptions(embeddings="hash"), airflow=False)

    def test_data_stays_from_one_start_to_the_next(self, small: StackOptions) -> None:
        with Stack(small) as first, psycopg.connect(first.ledger_url) as connection:
            connection.execute("create table kept (n int)")
        assert running_environment(small.state) is None
        with Stack(small) as second, psycopg.connect(second.ledger_url) as connection:
            connection.execute("select n from kept")

    def test_a_killed_database_recovers(self, small: StackOptions) -> None:
        with Stack(small) as own:
            with psycopg.connect(own.ledger_url) as connection:
                connection.execute("create table kept (n int)")
            own.kill("postgres")
            own.restart("postgres")
            with psycopg.connect(own.ledger_url) as connection:
                connection.execute("select n from kept")

    def test_a_start_that_fails_shows_the_log_and_leaves_nothing(self, small: StackOptions) -> None:
        nobody = EmulatorOptions(embeddings="none")  # type: ignore[arg-type]
        wrong = replace(small, emulator=nobody)
        before = set(psutil.pids())
        with pytest.raises(StackError, match=r"(?s)emulator ended with exit code 2.*invalid choice"):
            with Stack(wrong):
                pass
        left = [
            process
            for process in psutil.process_iter()
            if process.pid not in before and str(small.state) in " ".join(process.cmdline())
        ]
        assert not left

    def test_a_command_starts_what_it_needs(self, small: StackOptions) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "include.local", "--state", str(small.state), "cli", "runs"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "Runs" in done.stdout
