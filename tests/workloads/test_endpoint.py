"""A run keeps to the service that it was planned for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include.contracts import Item, Space
from include.corpora.config import load_corpus
from include.errors import ConfigError
from include.providers.anthropic import AnthropicBatches
from include.settings import Settings
from include.workloads.clients import endpoint, endpoint_on
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
        return endpoint_on("openai", host, extra, lambda: None)

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
    endpoint = endpoint_on("openai", None, {"openai_client_kwargs": {"organization": "o"}}, lambda: None)
    assert endpoint.service == "api.openai.com"
    other = endpoint_on("openai", None, {"openai_client_kwargs": {"organization": "p"}}, lambda: None)
    assert endpoint.account != other.account
    assert endpoint_on("openai", None, {"account": "label"}, lambda: None).account == "label"


class TestAnthropic:
    def test_service_and_account_are_read_without_the_sdk(self) -> None:
        own = endpoint_on("anthropic", None, {}, lambda: None)
        assert own.service == "api.anthropic.com"
        headers = {"anthropic_client_kwargs": {"default_headers": {"anthropic-workspace-id": "w"}}}
        other = endpoint_on("anthropic", None, headers, lambda: None)
        federated = endpoint_on("anthropic", None, {"workload_identity": {"workspace_id": "w"}}, lambda: None)
        assert own.account != other.account == federated.account
        assert own.account != endpoint_on("openai", "https://api.anthropic.com", {}, lambda: None).account
        assert endpoint_on("anthropic", "http://gateway:1", {"account": "a"}, lambda: None).account == "a"

    @pytest.mark.parametrize(
        ("chosen", "marked"), [("1h", b'"ttl":"1h"'), (None, b'"ttl":"5m"'), ("off", b"}")]
    )
    def test_the_prompt_cache_is_chosen_by_the_connection(self, chosen: str | None, marked: bytes) -> None:
        extra = {"prompt_cache": chosen} if chosen else {}
        offline = endpoint_on("anthropic", None, extra, lambda: None).offline
        space = Space("anthropic", "s", "/v1/messages", "m", {"max_tokens": 1})
        line = offline.line(space, [Item(b"", {"system": "S", "messages": []}, 1)], "id")
        assert marked in line and (b"cache_control" in line) == (chosen != "off")

    @pytest.mark.parametrize(
        ("extra", "named"),
        [
            ({"prompt_cache": "1d"}, "prompt_cache.*5m, 1h, off"),
            ({"platform": "bedrock"}, "platform.*bedrock"),
        ],
    )
    def test_an_extra_that_cannot_be_is_named(self, extra: dict[str, str], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            endpoint_on("anthropic", None, extra, lambda: None)

    def test_the_environment_makes_a_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        monkeypatch.delenv("AIRFLOW_CONN_CLAUDE", raising=False)
        with pytest.raises(ConfigError, match="AIRFLOW_CONN_CLAUDE or ANTHROPIC_API_KEY"):
            _ = endpoint("anthropic", "claude").provider
        extra = {"anthropic_client_kwargs": {"max_retries": 7}}
        connection = {"host": "http://h:1", "password": "k", "extra": json.dumps(extra)}
        monkeypatch.setenv("AIRFLOW_CONN_CLAUDE", json.dumps(connection))
        found = endpoint("anthropic", "claude")
        provider = found.provider
        assert isinstance(provider, AnthropicBatches)
        client = provider.client
        assert (str(client.base_url).rstrip("/"), client.max_retries) == ("http://h:1", 7)
        assert found.service == "h:1"


def test_a_provider_that_is_not_known_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nobody.*openai, anthropic"):
        endpoint("nobody", "x")
