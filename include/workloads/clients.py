"""Clients without Airflow: from a connection in the environment, for the command line and readers.

Airflow reads `AIRFLOW_CONN_{ID}` as JSON, and so does this; without one the SDK's own variables
(`OPENAI_API_KEY`, `OPENAI_BASE_URL`) count. Connections kept in Airflow's database are Airflow's:
there the steps of a DAG use them.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlsplit

from include.errors import ConfigError
from include.settings import Settings, load_settings
from include.workloads.services import Endpoint, Services


def services(settings: Settings | None = None) -> Services:
    """What a step needs, wired to the environment."""
    return Services(settings=settings or load_settings(), endpoint=endpoint)


def endpoint(provider: str, conn_id: str) -> Endpoint:
    """The provider on a connection of the environment. Raises ConfigError where there is none."""
    if provider != "openai":
        raise ConfigError(f"provider {provider!r} isn't known; this version knows: openai")
    from openai import OpenAI

    connection = _connection(conn_id)
    extra = connection.get("extra") or {}
    if isinstance(extra, str):
        extra = json.loads(extra)
    options = dict(extra.get("openai_client_kwargs") or {})
    key = connection.get("password") or options.pop("api_key", None) or os.environ.get("OPENAI_API_KEY")
    if not key:
        raise ConfigError(
            f"no key for connection {conn_id!r}: set AIRFLOW_CONN_{conn_id.upper()} or OPENAI_API_KEY"
        )
    base_url = options.pop("base_url", None) or connection.get("host") or None
    return openai_endpoint(OpenAI(api_key=key, base_url=base_url, **options), None, extra)


def openai_endpoint(client: Any, async_client: Any, extra: dict[str, Any]) -> Endpoint:
    """An OpenAI-compatible service: its label and account come from the connection's extra."""
    from include.providers.openai import OpenAIBatches, account_of

    known = client or async_client
    service = str(extra.get("service") or urlsplit(str(known.base_url)).netloc)
    account = str(extra.get("account") or account_of(service, known.organization, known.project))
    return Endpoint(OpenAIBatches(client, async_client, account=account), service, account)


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
