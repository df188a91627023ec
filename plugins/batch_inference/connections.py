"""From Airflow's connections and configuration to ready clients.

The SDKs load inside the functions: DAG parsing and the triggerer import this file.
"""

from __future__ import annotations

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf

from include.contracts import BatchProvider
from include.errors import ConfigError
from include.settings import Settings, load_settings
from include.workloads.clients import openai_endpoint
from include.workloads.services import Endpoint, Services


def settings() -> Settings:
    """Section `[batch_inference]` of airflow.cfg, or its environment variables."""
    return load_settings(lambda name: conf.get("batch_inference", name, fallback=None))


def services() -> Services:
    """What a step needs, wired to this Airflow."""
    return Services(settings=settings(), endpoint=endpoint)


def endpoint(provider: str, conn_id: str) -> Endpoint:
    """The provider `provider` on the connection `conn_id`, with synchronous clients."""
    if provider != "openai":
        raise ConfigError(f"embedding.provider is {provider!r}; this version knows: openai")
    from airflow.providers.openai.hooks.openai import OpenAIHook

    client = OpenAIHook(conn_id=conn_id).get_conn()
    return openai_endpoint(client, None, BaseHook.get_connection(conn_id).extra_dejson)


async def async_provider(provider: str, conn_id: str) -> BatchProvider:
    """The same provider with an asynchronous client, for polling in the triggerer."""
    if provider != "openai":
        raise ConfigError(f"embedding.provider is {provider!r}; this version knows: openai")
    from airflow.providers.openai.hooks.openai import OpenAIHook

    return openai_endpoint(None, await OpenAIHook(conn_id=conn_id).aget_conn(), {}).provider
