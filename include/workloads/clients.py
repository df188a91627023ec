"""Clients without Airflow: from a connection in the environment, for the command line and readers.

Airflow reads `AIRFLOW_CONN_{ID}` as JSON, and so does this; without one the SDK's own variables
(`OPENAI_API_KEY`, `OPENAI_BASE_URL`) count. Connections kept in Airflow's database are Airflow's:
there the steps of a DAG use them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from include.errors import ConfigError
from include.settings import Settings, load_settings
from include.workloads.services import Endpoint, Services

_OPENAI = "https://api.openai.com/v1"


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

    def client() -> Any:
        from openai import OpenAI

        options = dict(extra.get("openai_client_kwargs") or {})
        key = connection.get("password") or options.pop("api_key", None) or os.environ.get("OPENAI_API_KEY")
        if not key:
            raise ConfigError(
                f"no key for connection {conn_id!r}: set AIRFLOW_CONN_{conn_id.upper()} or OPENAI_API_KEY"
            )
        base_url = options.pop("base_url", None) or connection.get("host") or None
        return OpenAI(api_key=key, base_url=base_url, **options)

    return openai_endpoint(connection.get("host"), extra, client)


def check_known(provider: str) -> None:
    """Raise ConfigError for a provider that this version doesn't know."""
    if provider != "openai":
        raise ConfigError(f"embedding.provider is {provider!r}; this version knows: openai")


def openai_endpoint(host: str | None, extra: dict[str, Any], client: Callable[[], Any]) -> Endpoint:
    """An OpenAI-compatible service, from a connection's host and extra; `client` makes the SDK's client.

    Who answers and who pays is read the way the SDK reads it, without loading it.
    """
    from include.providers.listing import account_of
    from include.providers.openai import OpenAIBatches

    options = extra.get("openai_client_kwargs") or {}
    base_url = options.get("base_url") or host or os.environ.get("OPENAI_BASE_URL") or _OPENAI
    service = str(extra.get("service") or urlsplit(str(base_url)).netloc)
    organisation = options.get("organization") or os.environ.get("OPENAI_ORG_ID")
    project = options.get("project") or os.environ.get("OPENAI_PROJECT_ID")
    account = str(extra.get("account") or account_of(service, organisation, project))
    return Endpoint(
        service=service,
        account=account,
        offline=OpenAIBatches(None, None, account=account),
        connect=lambda: OpenAIBatches(client(), None, account=account),
    )


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
