"""docker-compose.yaml is valid, complete, and can't drift from the launcher and the lock."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import jsonschema
import pytest
import yaml

from include.local.environment import read_settings_file
from include.local.options import PROJECT_ROOT
from include.local.stack import COMPONENTS

TEXT = (PROJECT_ROOT / "docker-compose.yaml").read_text(encoding="utf-8")
LOCK = (PROJECT_ROOT / "requirements.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(TEXT)
    return loaded


def test_it_is_valid_by_the_compose_specification(compose: dict[str, Any]) -> None:
    schemas = resources.files("check_jsonschema").joinpath("builtin_schemas/vendor")
    schema = json.loads(schemas.joinpath("compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.validators.validator_for(schema)(schema).validate(compose)


def test_it_runs_what_the_launcher_runs_and_the_services_of_celery(compose: dict[str, Any]) -> None:
    wanted = {*COMPONENTS, "worker", "init", "postgres", "redis", "emulator"}
    assert compose["services"].keys() == wanted


def test_every_airflow_service_reads_the_shared_settings_and_has_the_same_secrets(
    compose: dict[str, Any],
) -> None:
    for name in (*COMPONENTS, "worker", "init"):
        service = compose["services"][name]
        assert service["env_file"] == ["airflow.env"], name
        assert read_settings_file().keys().isdisjoint(service["environment"]), name
        for secret in ("CORE__FERNET_KEY", "API__SECRET_KEY", "API_AUTH__JWT_SECRET"):
            assert service["environment"][f"AIRFLOW__{secret}"].startswith("${"), (name, secret)


def test_every_variable_it_asks_for_is_in_the_example(compose: dict[str, Any]) -> None:
    example = (PROJECT_ROOT / ".env.example").read_text(encoding="utf-8")
    offered = set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE))
    assert set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", TEXT)) == offered


def test_ports_are_open_to_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_holds_the_airflow_of_the_lock() -> None:
    dockerfile = (PROJECT_ROOT / "Dockerfile").read_text(encoding="utf-8")
    image = re.search(r"^FROM apache/airflow:([\d.]+)-python", dockerfile, re.MULTILINE)
    locked = re.search(r"^apache-airflow==([\d.]+)$", LOCK, re.MULTILINE)
    assert image and locked
    assert image.group(1) == locked.group(1)


def test_celery_is_older_than_the_version_that_breaks_its_provider() -> None:
    celery = re.search(r"^celery==(\d+)\.(\d+)", LOCK, re.MULTILINE)
    assert celery
    assert (int(celery.group(1)), int(celery.group(2))) < (5, 7)
