"""The few settings of the installation: section `[batch_inference]` of airflow.cfg, or its variables.

Pure Python reads the environment; the plugins read Airflow's configuration and pass it in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from include.contracts import PROJECT_ROOT
from include.errors import ConfigError

ENV_PREFIX = "AIRFLOW__BATCH_INFERENCE__"


@dataclass(frozen=True)
class Settings:
    """Where things lie. Secrets are not here: they are in Airflow connections.

    `storage_root` is any fsspec URL; `ledger_url` a PostgreSQL URL; `redis_url` may be empty;
    `deployment` tells one installation's batches from another's on a shared account.
    """

    storage_root: str
    ledger_url: str
    redis_url: str = ""
    deployment: str = "default"
    corpora_dir: str = str(PROJECT_ROOT / "include" / "config" / "corpora")
    poll_seconds: float = 60.0
    admission_seconds: float = 30.0
    unknown_grace_seconds: float = 900.0
    batch_deadline_hours: float = 30.0
    retry_seconds: float = 60.0
    queue_full_seconds: float = 300.0
    """The wait after an account's queue was full, where the provider names none; doubled each time."""
    cool_down_seconds: float = 7200.0
    """How long a working limit stays halved after that."""
    file_wait_seconds: float = 0.25
    """The first wait for an uploaded file that the provider doesn't find yet; doubled each time."""


def load_settings(get: Callable[[str], str | None] | None = None) -> Settings:
    """Read the settings with `get(name)`, by default from `AIRFLOW__BATCH_INFERENCE__*`.

    Raises ConfigError where a required one is missing or a number isn't one.
    """
    read = get or (lambda name: os.environ.get(ENV_PREFIX + name.upper()))

    def required(name: str) -> str:
        value = read(name)
        if not value:
            raise ConfigError(
                f"setting [batch_inference] {name} is missing: set {ENV_PREFIX}{name.upper()}, "
                "or the option in airflow.cfg; `make up` and `make demo` set it by themselves"
            )
        return value

    def number(name: str, default: float) -> float:
        value = read(name)
        if not value:
            return default
        try:
            return float(value)
        except ValueError:
            raise ConfigError(f"setting [batch_inference] {name} is {value!r}, not a number") from None

    return Settings(
        storage_root=required("storage_root").rstrip("/"),
        ledger_url=required("ledger_url"),
        redis_url=read("redis_url") or "",
        deployment=read("deployment") or "default",
        corpora_dir=read("corpora_dir") or Settings.corpora_dir,
        poll_seconds=number("poll_seconds", Settings.poll_seconds),
        admission_seconds=number("admission_seconds", Settings.admission_seconds),
        unknown_grace_seconds=number("unknown_grace_seconds", Settings.unknown_grace_seconds),
        batch_deadline_hours=number("batch_deadline_hours", Settings.batch_deadline_hours),
        retry_seconds=number("retry_seconds", Settings.retry_seconds),
        queue_full_seconds=number("queue_full_seconds", Settings.queue_full_seconds),
        cool_down_seconds=number("cool_down_seconds", Settings.cool_down_seconds),
        file_wait_seconds=number("file_wait_seconds", Settings.file_wait_seconds),
    )
