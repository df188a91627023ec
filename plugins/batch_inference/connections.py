"""From Airflow's connections and configuration to ready clients.

The SDKs load inside the functions: DAG parsing and the triggerer import this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf

from include.contracts import BatchProvider
from include.errors import ConfigError
from include.settings import Settings, load_settings
from include.workloads.clients import check_known, endpoint_on, make_provider
from include.workloads.services import Endpoint, Services


def settings() -> Settings:
    """Section `[batch_inference]` of airflow.cfg, or its environment variables."""
    return load_settings(lambda name: conf.get("batch_inference", name, fallback=None))


def services() -> Services:
    """What a step needs, wired to this Airflow."""
    return Services(settings=settings(), endpoint=endpoint, sql=sql)


def endpoint(provider: str, conn_id: str) -> Endpoint:
    """The provider `provider` on the connection `conn_id`; its SDK loads when it is first called."""
    check_known(provider)
    connection = BaseHook.get_connection(conn_id)
    client = partial(_client, provider, conn_id)
    return endpoint_on(provider, connection.host, connection.extra_dejson, client)


def _client(provider: str, conn_id: str) -> Any:
    if provider == "anthropic":
        from airflow.providers.anthropic.hooks.anthropic import AnthropicHook

        return AnthropicHook(conn_id=conn_id).get_conn()
    from airflow.providers.openai.hooks.openai import OpenAIHook

    return OpenAIHook(conn_id=conn_id).get_conn()


@contextmanager
def sql(conn_id: str) -> Iterator[Any]:
    """A DB-API connection of any database that Airflow has a hook for, rolled back and closed at the end.

    Raises ConfigError for a connection of another kind.
    """
    hook = BaseHook.get_hook(conn_id)
    if not callable(getattr(hook, "get_conn", None)) or not hasattr(hook, "get_records"):
        raise ConfigError(f"source.connection is {conn_id!r}, whose hook {type(hook).__name__} knows no SQL")
    with closing(hook.get_conn()) as connection:
        yield connection


async def async_provider(provider: str, conn_id: str) -> BatchProvider:
    """The same provider with an asynchronous client, for polling in the triggerer."""
    check_known(provider)
    client: Any
    if provider == "anthropic":
        from airflow.providers.anthropic.hooks.anthropic import AnthropicHook

        client = await AnthropicHook(conn_id=conn_id).get_async_conn()
    else:
        from airflow.providers.openai.hooks.openai import OpenAIHook

        client = await OpenAIHook(conn_id=conn_id).aget_conn()
    return make_provider(provider, {}, None, client, account="")
