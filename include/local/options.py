"""What a stack is started with, and the folder its state lives in."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PROJECT_ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class EmulatorOptions:
    """How the emulator behaves.

    `embeddings`: `minilm` (the real model) or `hash` (fast); `clock`: `real` or `manual` (moved over
    `/_control/clock`). The seconds are what a batch stays in each of its states.
    """

    embeddings: Literal["minilm", "hash"] = "minilm"
    clock: Literal["real", "manual"] = "real"
    validating_seconds: float = 1.0
    batch_seconds: float = 4.0
    finalizing_seconds: float = 1.0

    def arguments(self) -> list[str]:
        """Its command line, without port and folder."""
        return [
            "--embeddings",
            self.embeddings,
            "--clock",
            self.clock,
            "--validating-seconds",
            str(self.validating_seconds),
            "--batch-seconds",
            str(self.batch_seconds),
            "--finalizing-seconds",
            str(self.finalizing_seconds),
        ]


@dataclass(frozen=True)
class StackOptions:
    """One stack.

    `state` keeps databases, storage, the emulator's files and all logs; starting again on the same
    folder goes on where it ended. A preferred port that is taken, or 0, becomes a free one.
    `durable=False` lets PostgreSQL skip its syncs (tests). `inherit` lets the caller's own
    `AIRFLOW__…` and `AIRFLOW_CONN_…` variables win over the shared file and the emulator's
    connection. `settings` win over everything but what the launcher itself must decide.
    `wait_for_dags` are the DAG ids that must be parsed before the stack counts as ready. Without
    `airflow` only PostgreSQL and the emulator are started, in two seconds.
    """

    state: Path
    airflow_port: int = 0
    emulator_port: int = 0
    dags: Path = PROJECT_ROOT / "dags"
    plugins: Path = PROJECT_ROOT / "plugins"
    emulator: EmulatorOptions = field(default_factory=EmulatorOptions)
    parallelism: int = 6
    durable: bool = True
    inherit: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    wait_for_dags: tuple[str, ...] = ()
    start_seconds: float = 240.0
    airflow: bool = True


@dataclass(frozen=True)
class StateFolder:
    """The parts of a state folder."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def airflow_home(self) -> Path:
        return self.root / "airflow"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def storage(self) -> Path:
        return self.root / "storage"

    @property
    def emulator(self) -> Path:
        return self.root / "emulator"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets.json"

    @property
    def passwords(self) -> Path:
        return self.root / "passwords.json"

    @property
    def running(self) -> Path:
        """Written while a stack is ready: the environment that commands need to work on it."""
        return self.root / "running.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def log(self, name: str) -> Path:
        """The log file of a program."""
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Make the folders; those that hold secrets or data are the owner's alone."""
        for folder in (self.root, self.airflow_home, self.logs, self.storage, self.emulator):
            folder.mkdir(parents=True, exist_ok=True)


def choose_port(preferred: int) -> int:
    """`preferred` where it is free on the loopback address, else any free port."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")
