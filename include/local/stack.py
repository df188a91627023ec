"""The whole stack: PostgreSQL, the emulator and a real Airflow, started together and ended together."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from include.local.airflow_api import AirflowApi
from include.local.environment import Ports, build_environment
from include.local.errors import StackError
from include.local.keeper import Program
from include.local.options import PROJECT_ROOT, StackOptions, StateFolder, choose_port
from include.local.postgres import Postgres
from include.local.processes import Processes
from include.local.secrets import Secrets, load_secrets, write_private

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_HEALTH_NAMES = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
_STALE_STACK_SECONDS = 45


class Stack:
    """A running stack. `with Stack(options) as stack:` starts it, waits until it is healthy, and ends it.

    After the start: `ports`, `env` (the environment of its components, for commands that work on it),
    `api` (Airflow's API as admin), `secrets`, `state`. Raises StackError where a part doesn't start.
    """

    def __init__(self, options: StackOptions, say: Callable[[str], None] = lambda _: None) -> None:
        self.options = options
        self.state = StateFolder(options.state.resolve())
        self._say = say
        self._started: dict[str, datetime] = {}
        self._lock = -1
        self.processes: Processes
        self.ports: Ports
        self.secrets: Secrets
        self.postgres: Postgres
        self.env: dict[str, str]
        self.api: AirflowApi

    @property
    def airflow_url(self) -> str:
        return self.ports.airflow_url

    @property
    def emulator_url(self) -> str:
        return self.ports.emulator_url

    @property
    def ledger_url(self) -> str:
        return self.postgres.url("ledger")

    @property
    def storage_root(self) -> str:
        return self.env["AIRFLOW__BATCH_INFERENCE__STORAGE_ROOT"]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process and let go of the state folder. Does nothing the second time."""
        if self._lock >= 0:
            self.state.running.unlink(missing_ok=True)
        if hasattr(self, "api"):
            self.api.close()
        if hasattr(self, "processes"):
            self.processes.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def token(self) -> str:
        """A bearer token of the admin user."""
        return self.api.token()

    def kill(self, component: str) -> None:
        """SIGKILL to a component and all its descendants."""
        self.processes.kill(component)

    def restart(self, component: str) -> None:
        """Start a component that was killed or ended, and wait until the stack is healthy again."""
        if component == "postgres":
            self._start_postgres()
        elif component == "emulator":
            self._start_emulator()
            self._await_emulator()
        else:
            self._start_component(component)
            self._await_healthy()

    def check(self) -> None:
        """Raise StackError if a part has ended."""
        for name in ("postgres", "emulator", *COMPONENTS):
            code = self.processes.ended(name)
            if code is not None:
                raise self._failure(name, f"ended by itself with exit code {code}")

    def wait_until(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Wait for a state; raises StackError with `otherwise` where it doesn't come in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise StackError(f"{otherwise} after {seconds:.0f} s")
            time.sleep(0.2)

    def _start(self) -> None:
        self.state.create()
        self._take_folder()
        for log in self.state.logs.glob("*.log"):
            log.unlink()
        self.secrets = load_secrets(self.state.secrets, self.state.passwords)
        self.ports = Ports(
            airflow=choose_port(self.options.airflow_port),
            emulator=choose_port(self.options.emulator_port),
            postgres=choose_port(0),
        )
        self.postgres = Postgres(self.state.postgres, self.ports.postgres, self.secrets.postgres_password)
        self.env = build_environment(self.options, self.ports, self.postgres, self.secrets, os.environ)
        self.api = AirflowApi(self.airflow_url, "admin", self.secrets.admin_password)
        self.processes = Processes(PROJECT_ROOT, self.state.log("keeper"), held=(self._lock,))
        self._start_emulator()
        self._say("starting PostgreSQL and the emulator")
        self.postgres.prepare()
        self._start_postgres()
        self.postgres.create_databases()
        self._migrate()
        if self.options.airflow:
            self._say("starting Airflow")
            for name in COMPONENTS:
                self._start_component(name)
        self._await_emulator()
        if self.options.airflow:
            self._await_healthy()
            self._await_dags()
        write_private(self.state.running, json.dumps(self.env))

    def _take_folder(self) -> None:
        """One stack a folder. One that was killed is given the time to end."""
        self._lock = os.open(self.state.lock, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _STALE_STACK_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                owner = os.pread(self._lock, 32, 0).decode().strip()
                alive = owner.isdigit() and _alive(int(owner))
                if alive or time.monotonic() > deadline:
                    raise StackError(
                        f"another stack runs on {self.state.root} (process {owner}): stop it first, "
                        "with Ctrl-C where it was started"
                    ) from None
                time.sleep(0.2)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _start_postgres(self) -> None:
        self.postgres.wait_gone(20)
        self.processes.start(self.postgres.program(self.state, durable=self.options.durable))
        self._wait_for("postgres", self.postgres.ready, 60)

    def _start_emulator(self) -> None:
        argv = [sys.executable, "-m", "include.emulator", "--port", str(self.ports.emulator)]
        argv += ["--data", str(self.state.emulator), *self.options.emulator.arguments()]
        self.processes.start(self._program("emulator", argv, stage=1))

    def _await_emulator(self) -> None:
        def answers() -> bool:
            with suppress(httpx.TransportError):
                url = f"{self.emulator_url}/_control/state"
                return httpx.get(url, timeout=5, trust_env=False).is_success
            return False

        self._wait_for("emulator", answers, 60)

    def _migrate(self) -> None:
        """Both databases at once; Airflow's only where this version hasn't done it yet: it takes 15 s."""
        done = self.state.root / "airflow_version"
        version = importlib.metadata.version("apache-airflow-core")
        self.processes.start(self._program("ledger-migrate", _python("include.cli", "migrate"), stage=2))
        if self.options.airflow and not (done.exists() and done.read_text() == version):
            self._say("creating Airflow's tables (once)")
            self.processes.start(self._program("db-migrate", _python("airflow", "db", "migrate"), stage=2))
            self._finish("db-migrate", 180)
            done.write_text(version)
        self._finish("ledger-migrate", 60)

    def _finish(self, name: str, seconds: float) -> None:
        code = self.processes.wait(name, seconds)
        if code:
            raise self._failure(name, f"failed with exit code {code}")

    def _start_component(self, name: str) -> None:
        self._started[name] = datetime.now(UTC)
        self.processes.start(self._program(name, _python("airflow", *COMPONENTS[name]), stage=3))

    def _await_healthy(self) -> None:
        since = {_HEALTH_NAMES[name]: at for name, at in self._started.items() if name in _HEALTH_NAMES}

        def answers() -> bool:
            with suppress(httpx.HTTPError):
                self.api.health()
                return True
            return False

        def healthy() -> bool:
            with suppress(httpx.HTTPError):
                return not self.api.health().missing(since)
            return False

        self._wait_for("api-server", answers, self.options.start_seconds)
        self.api.warm_up()
        self._wait_for("api-server", healthy, self.options.start_seconds)

    def _await_dags(self) -> None:
        """Wait for the DAGs the caller needs, or for whatever the folder holds to be parsed."""
        wanted = set(self.options.wait_for_dags)
        expects_any = any(self.options.dags.glob("**/*.py"))

        def parsed() -> bool:
            there = self.api.dags()
            errors = self.api.import_errors()
            if errors and wanted - there.keys():
                texts = "\n".join(f"{file}:\n{trace}" for file, trace in errors.items())
                raise StackError(f"Airflow couldn't import the DAGs:\n{texts}")
            return wanted <= there.keys() and bool(there or errors or not expects_any)

        self._wait_for("dag-processor", parsed, 90)

    def _wait_for(self, name: str, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            for program in self.state.logs.glob("*.log"):
                code = self.processes.ended(program.stem)
                if code is not None and program.stem not in ("db-migrate", "ledger-migrate"):
                    raise self._failure(program.stem, f"ended with exit code {code}")
            if time.monotonic() > deadline:
                raise self._failure(name, f"wasn't ready within {seconds:.0f} s")
            time.sleep(0.1)

    def _program(self, name: str, argv: list[str], stage: int) -> Program:
        return Program(
            name=name,
            argv=argv,
            env=self.env,
            cwd=str(PROJECT_ROOT),
            log=str(self.state.log(name)),
            stage=stage,
        )

    def _failure(self, name: str, what: str) -> StackError:
        log = self.state.log(name)
        lines = log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
        tail = "\n".join(f"  {line}" for line in lines) or "  (empty)"
        return StackError(f"{name} {what}. The end of its log ({log}):\n{tail}")


def running_environment(state: Path) -> dict[str, str] | None:
    """The environment of the stack that runs on a state folder now; None where none does."""
    folder = StateFolder(state.resolve())
    try:
        with folder.lock.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except FileNotFoundError:
        return None
    except BlockingIOError:
        pass
    try:
        return dict(json.loads(folder.running.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise StackError(f"the stack on {folder.root} is starting or stopping: try again shortly") from None


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
