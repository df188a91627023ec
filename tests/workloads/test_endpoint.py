"""A run keeps to the service that it was planned for."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.contracts import Space
from include.corpora.config import load_corpus
from include.errors import ConfigError
from include.settings import Settings
from include.workloads.clients import openai_endpoint
from include.workloads.plan import Plan, Request
from include.workloads.services import Endpoint, Services
from include.workloads.steps.shared import endpoint_of
from tests.stack import CORPORA


def plan_for(service: str) -> Plan:
    config = load_corpus(Path(CORPORA) / "python_docs.yaml")
    space: Space = config.space(service)
    return Plan(
        run="r",
        workload="initial_ingest",
        corpus="python_docs",
        request=Request(),
        config=config.to_plan(),
        space=space.describe(),
        space_id=space.id,
        account="a",
        version="v",
        deployment="d",
        created_at="",
    )


def services_at(host: str, extra: dict[str, str]) -> Services:
    def endpoint(provider: str, conn_id: str) -> Endpoint:
        return openai_endpoint(host, extra, lambda: None)

    return Services(Settings(storage_root="memory://x", ledger_url=""), endpoint)


def test_answers_of_another_service_are_never_kept_as_the_planned_ones() -> None:
    services = services_at("https://other.example/v1", {})
    with pytest.raises(
        ConfigError, match=r"points to service 'other\.example'.*planned for 'api\.openai\.com'"
    ):
        endpoint_of(services, plan_for("api.openai.com"))


def test_the_same_service_under_its_label_on_another_host_goes_on() -> None:
    services = services_at("http://127.0.0.1:9/v1", {"service": "emulator"})
    assert endpoint_of(services, plan_for("emulator")).service == "emulator"


def test_service_and_account_are_read_without_the_sdk() -> None:
    endpoint = openai_endpoint(None, {"openai_client_kwargs": {"organization": "o"}}, lambda: None)
    assert endpoint.service == "api.openai.com"
    other = openai_endpoint(None, {"openai_client_kwargs": {"organization": "p"}}, lambda: None)
    assert endpoint.account != other.account
    assert openai_endpoint(None, {"account": "label"}, lambda: None).account == "label"
