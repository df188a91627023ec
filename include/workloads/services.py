"""What a step needs from outside: settings, storage, the ledger, and clients for the services named.

The plugins fill it from Airflow's connections, the command line from the environment. Everything
is made when asked for, so a step that needs no provider opens none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

from include.contracts import BatchProvider, VectorStore
from include.corpora.sql import Connect
from include.ledger.connect import Connection, connect
from include.settings import Settings
from include.storage import Storage
from include.stores.registry import open_store


@dataclass(frozen=True)
class Endpoint:
    """A provider as its connection describes it: who answers, and who pays.

    `service` is the base URL's authority or the connection's `service` label; `account` a label
    or the hash of (service, organisation, project), never of the key. `offline` can do what needs no
    call, such as writing request lines; `connect` loads the SDK, which takes a second or more.
    """

    service: str
    account: str
    offline: BatchProvider
    connect: Callable[[], BatchProvider]

    @cached_property
    def provider(self) -> BatchProvider:
        """The provider with its clients."""
        return self.connect()


@dataclass(frozen=True)
class Services:
    """The outside world of a step. `endpoint(provider, connection id)` reads a connection; `sql(connection
    id)` opens a database's, for sources that are a query."""

    settings: Settings
    endpoint: Callable[[str, str], Endpoint]
    sql: Connect | None = None

    @cached_property
    def storage(self) -> Storage:
        """The storage root."""
        return Storage(self.settings.storage_root)

    def ledger(self) -> AbstractContextManager[Connection]:
        """A ledger connection for the length of a block."""
        return connect(self.settings.ledger_url)

    def store(self, kind: str, url: str) -> VectorStore:
        """The vector store a corpus names."""
        return open_store(kind, url)
