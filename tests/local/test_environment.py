"""One settings file for the launcher and compose, and no setting from outside by accident."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from include.local.environment import Ports, build_environment, emulator_connection, read_settings_file
from include.local.errors import StackError
from include.local.options import StackOptions, choose_port
from include.local.postgres import Postgres
from include.local.secrets import load_secrets

PORTS = Ports(airflow=1, emulator=2, postgres=3)


def environment(state: Path, outside: dict[str, str], **options: object) -> dict[str, str]:
    secrets = load_secrets(state / "secrets.json", state / "passwords.json")
    postgres = Postgres(state / "postgres", PORTS.postgres, secrets.postgres_password)
    return build_environment(StackOptions(state=state, **options), PORTS, postgres, secrets, outside)  # type: ignore[arg-type]


def test_every_shared_setting_reaches_the_components(tmp_path: Path) -> None:
    built = environment(tmp_path, {})
    ours = {"AIRFLOW__BATCH_INFERENCE__POLL_SECONDS", "AIRFLOW__BATCH_INFERENCE__ADMISSION_SECONDS"}
    shared = {name: value for name, value in read_settings_file().items() if name not in ours}
    assert shared == {name: built[name] for name in shared}


def test_settings_and_connections_of_the_caller_stay_outside(tmp_path: Path) -> None:
    outside = {
        "AIRFLOW__CORE__LOAD_EXAMPLES": "True",
        "AIRFLOW_CONN_OPENAI_DEFAULT": "the real one",
        "AIRFLOW_CONN_ANTHROPIC_DEFAULT": "the real one",
        "AIRFLOW_HOME": "/elsewhere",
        "OPENAI_API_KEY": "real",
        "HOME": "/home/somebody",
    }
    built = environment(tmp_path, outside)
    assert built["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert built["AIRFLOW_CONN_OPENAI_DEFAULT"] == emulator_connection(PORTS.emulator_url)
    assert built["AIRFLOW_CONN_ANTHROPIC_DEFAULT"] == emulator_connection(PORTS.emulator_url, "anthropic")
    assert "OPENAI_API_KEY" not in built
    assert built["HOME"] == "/home/somebody"


def test_they_count_where_asked_for_but_never_where_the_parts_find_each_other(tmp_path: Path) -> None:
    outside = {"AIRFLOW_CONN_OPENAI_DEFAULT": "own", "AIRFLOW_HOME": "/x", "AIRFLOW__API__PORT": "99"}
    built = environment(tmp_path, outside, inherit=True)
    assert built["AIRFLOW_CONN_OPENAI_DEFAULT"] == "own"
    assert built["AIRFLOW_HOME"] == str(tmp_path / "airflow")
    assert built["AIRFLOW__API__PORT"] == "1"


def test_the_emulator_on_another_port_is_the_same_service() -> None:
    one, other = (json.loads(emulator_connection(f"http://127.0.0.1:{port}")) for port in (1, 2))
    assert one["host"] != other["host"]
    assert one["extra"]["service"] == other["extra"]["service"] == "emulator"


def test_a_line_that_is_no_setting_is_named(tmp_path: Path) -> None:
    file = tmp_path / "some.env"
    file.write_text("A=1\n\n# comment\nB = 2\n")
    with pytest.raises(StackError, match=r"some\.env, line 4"):
        read_settings_file(file)


def test_secrets_are_kept_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    files = (tmp_path / "secrets.json", tmp_path / "passwords.json")
    first, second = load_secrets(*files), load_secrets(*files)
    assert first == second
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert json.loads(files[1].read_text()) == first.passwords


def test_a_preferred_port_that_is_taken_becomes_a_free_one() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert choose_port(port) not in (port, 0)
