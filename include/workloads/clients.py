"""Providers from connections; without Airflow, for the command line and readers, from the environment.

Airflow reads `AIRFLOW_CONN_{ID}` as JSON, and so does this; without one the SDK's own variables
(`OPENAI_API_KEY`, `OPENAI_BASE_URL`, `ANTHROPIC_API_KEY`, …) count. Connections kept in Airflow's
database are Airflow's: there the steps of a DAG use them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args
from urllib.parse import urlsplit

from include.contracts import BatchProvider
from include.errors import ConfigError
from include.settings import Settings, load_settings
from include.workloads.services import Endpoint, Services


@dataclass(frozen=True, slots=True)
class _Protocol:
    """How a provider's connection is read, as Airflow's hook and the SDK read it."""

    arguments: str
    """The field of its extra that holds arguments of the SDK's client."""
    url: str
    variables: str
    """What the SDK's own variables begin with."""


_PROTOCOLS = {
    "openai": _Protocol("openai_client_kwargs", "https://api.openai.com/v1", "OPENAI"),
    "anthropic": _Protocol("anthropic_client_kwargs", "https://api.anthropic.com", "ANTHROPIC"),
}


def services(settings: Settings | None = None) -> Services:
    """What a step needs, wired to the environment."""
    return Services(settings=settings or load_settings(), endpoint=endpoint)


def endpoint(provider: str, conn_id: str) -> Endpoint:
    """The provider on a connection of the environment. Raises ConfigError where there is none."""
    check_known(provider)
    connection = _connection(conn_id)
    extra = connection.get("extra") or {}
    if isinstance(extra, str):
        extra = json.loads(extra)
    client = partial(_client, provider, conn_id, connection, extra)
    return endpoint_on(provider, connection.get("host"), extra, client)


def check_known(provider: str) -> None:
    """Raise ConfigError for a provider that this version doesn't know."""
    if provider not in _PROTOCOLS:
        raise ConfigError(f"provider is {provider!r}; this version knows: {', '.join(_PROTOCOLS)}")


def endpoint_on(
    provider: str, host: str | None, extra: dict[str, Any], client: Callable[[], Any]
) -> Endpoint:
    """A service, from a connection's host and extra; `client` makes the SDK's client.

    Who answers and who pays is read the way the SDK reads it, without loading it. Raises ConfigError
    for a provider that isn't known, and where an extra isn't what it may be.
    """
    check_known(provider)
    protocol = _PROTOCOLS[provider]
    options = extra.get(protocol.arguments) or {}
    own_url = options.get("base_url") or host or os.environ.get(f"{protocol.variables}_BASE_URL")
    service = str(extra.get("service") or urlsplit(str(own_url or protocol.url)).netloc)
    make = _anthropic if provider == "anthropic" else _openai
    return make(service, extra, options, client)


def make_provider(
    provider: str, extra: dict[str, Any], client: Any, async_client: Any, *, account: str
) -> BatchProvider:
    """A provider around ready clients, either of which may be None."""
    if provider == "anthropic":
        from include.providers.anthropic import AnthropicBatches

        return AnthropicBatches(client, async_client, account=account, cache=_prompt_cache(extra))
    from include.providers.openai import OpenAIBatches

    return OpenAIBatches(client, async_client, account=account)


def _openai(service: str, extra: dict[str, Any], options: dict[str, Any], client: Any) -> Endpoint:
    organisation = options.get("organization") or os.environ.get("OPENAI_ORG_ID")
    project = options.get("project") or os.environ.get("OPENAI_PROJECT_ID")
    return _endpoint("openai", service, extra, client, organisation, project)


def _anthropic(service: str, extra: dict[str, Any], options: dict[str, Any], client: Any) -> Endpoint:
    platform = extra.get("platform") or "anthropic"
    if platform != "anthropic":
        raise ConfigError(f"extra `platform` is {platform!r}: message batches are Anthropic's own API's only")
    _prompt_cache(extra)
    # A key belongs to one workspace, and doesn't tell which: only who names it here is told apart.
    headers = options.get("default_headers") or {}
    federated = extra.get("workload_identity") or {}
    workspace = headers.get("anthropic-workspace-id") or federated.get("workspace_id")
    return _endpoint("anthropic", service, extra, client, workspace)


def _endpoint(
    provider: str, service: str, extra: dict[str, Any], client: Callable[[], Any], *owner: str | None
) -> Endpoint:
    from include.providers.listing import account_of

    account = str(extra.get("account") or account_of(service, *owner))
    return Endpoint(
        service=service,
        account=account,
        offline=make_provider(provider, extra, None, None, account=account),
        connect=lambda: make_provider(provider, extra, client(), None, account=account),
    )


def _prompt_cache(extra: dict[str, Any]) -> Any:
    from include.providers.anthropic_lines import PromptCache

    chosen = extra.get("prompt_cache", "5m")
    known = get_args(PromptCache)
    if chosen not in known:
        raise ConfigError(f"extra `prompt_cache` is {chosen!r}; it may be {', '.join(known)}")
    return chosen


def _client(provider: str, conn_id: str, connection: dict[str, Any], extra: dict[str, Any]) -> Any:
    """The SDK's client on a connection of the environment."""
    protocol = _PROTOCOLS[provider]
    options = dict(extra.get(protocol.arguments) or {})
    variable = f"{protocol.variables}_API_KEY"
    own_key = options.pop("api_key", None)
    key = connection.get("password") or own_key or os.environ.get(variable)
    if not key:
        raise ConfigError(
            f"no key for connection {conn_id!r}: set AIRFLOW_CONN_{conn_id.upper()} or {variable}"
        )
    base_url = options.pop("base_url", None) or connection.get("host") or None
    if provider == "anthropic":
        from anthropic import Anthropic

        return Anthropic(api_key=key, base_url=base_url, **options)
    from openai import OpenAI

    return OpenAI(api_key=key, base_url=base_url, **options)


def _connection(conn_id: str) -> dict[str, Any]:
    text = os.environ.get(f"AIRFLOW_CONN_{conn_id.upper()}", "").strip()
    if not text:
        return {}
    if not text.startswith("{"):
        raise ConfigError(f"AIRFLOW_CONN_{conn_id.upper()} must be JSON for the command line")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ConfigError(f"AIRFLOW_CONN_{conn_id.upper()} must be a JSON object")
    return found
