"""The environment of every component: the shared settings file, then what only this stack knows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from include.local.errors import StackError
from include.local.options import PROJECT_ROOT, StackOptions, StateFolder
from include.local.postgres import Postgres
from include.local.secrets import Secrets

SETTINGS_FILE = PROJECT_ROOT / "airflow.env"
EMULATOR_SERVICE = "emulator"
_OURS = ("AIRFLOW", "OPENAI_", "ANTHROPIC_", "PYTHON")


@dataclass(frozen=True)
class Ports:
    """Where the stack listens, on 127.0.0.1."""

    airflow: int
    emulator: int
    postgres: int

    @property
    def airflow_url(self) -> str:
        return f"http://127.0.0.1:{self.airflow}"

    @property
    def emulator_url(self) -> str:
        return f"http://127.0.0.1:{self.emulator}"


def read_settings_file(file: Path = SETTINGS_FILE) -> dict[str, str]:
    """Read `NAME=value` lines, as `docker compose` reads an env_file; `#` starts a comment line.

    Raises StackError naming the line that isn't one.
    """
    settings: dict[str, str] = {}
    for number, raw in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.isidentifier():
            raise StackError(f"{file.name}, line {number}: expected NAME=value, found {line!r}")
        settings[name] = value
    return settings


_EMULATED = {"openai": "/openai/v1", "anthropic": "/anthropic"}
"""The providers that the emulator stands in for, and where."""


def emulator_connection(emulator_url: str, provider: str = "openai") -> str:
    """The connection `{provider}_default` for the emulator.

    Its `service` label names the service in place of the URL's authority, so that the emulator on
    another port is the same service, and what it answered once is not asked again.
    """
    return json.dumps(
        {
            "conn_type": provider,
            "host": f"{emulator_url}{_EMULATED[provider]}",
            "password": "emulator",
            "extra": {"service": EMULATOR_SERVICE},
        }
    )


def build_environment(
    options: StackOptions, ports: Ports, postgres: Postgres, secrets: Secrets, outside: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of Airflow's components, the emulator and the command line."""
    state = StateFolder(options.state)
    environment = {name: value for name, value in outside.items() if not name.startswith(_OURS)}
    environment |= read_settings_file()
    environment |= {
        **{
            f"AIRFLOW_CONN_{provider.upper()}_DEFAULT": emulator_connection(ports.emulator_url, provider)
            for provider in _EMULATED
        },
        "AIRFLOW__BATCH_INFERENCE__STORAGE_ROOT": state.storage.as_uri(),
        "AIRFLOW__BATCH_INFERENCE__DEPLOYMENT": "local",
        "AIRFLOW__BATCH_INFERENCE__POLL_SECONDS": "1",
        "AIRFLOW__BATCH_INFERENCE__ADMISSION_SECONDS": "1",
        "AIRFLOW__CORE__PARALLELISM": str(options.parallelism),
    }
    if options.inherit:
        environment |= {
            name: value
            for name, value in outside.items()
            if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))
        }
    environment |= options.settings
    return environment | _decided(options, ports, postgres, secrets, environment)


def _decided(
    options: StackOptions,
    ports: Ports,
    postgres: Postgres,
    secrets: Secrets,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """What nobody else may decide: where the parts of this stack find each other."""
    state = StateFolder(options.state)
    local = "127.0.0.1,localhost"
    proxied = [environment[name] for name in ("NO_PROXY", "no_proxy") if environment.get(name)]
    return {
        "AIRFLOW_HOME": str(state.airflow_home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(options.dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(options.plugins),
        "AIRFLOW__CORE__EXECUTOR": "batch_inference.executor.WarmLocalExecutor",
        "AIRFLOW__CORE__FERNET_KEY": secrets.fernet_key,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(state.passwords),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{ports.airflow_url}/execution/",
        "AIRFLOW__API__BASE_URL": ports.airflow_url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(ports.airflow),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secrets.api_secret_key,
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.jwt_secret,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url("airflow", "psycopg2"),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(state.airflow_home / "logs"),
        "AIRFLOW__BATCH_INFERENCE__LEDGER_URL": postgres.url("ledger"),
        # Put before what is there: a task started from this environment must find our packages,
        # and calls between the parts must not go through a proxy.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT), str(PROJECT_ROOT / "plugins")]),
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": ",".join([local, *proxied]),
        "no_proxy": ",".join([local, *proxied]),
    }
