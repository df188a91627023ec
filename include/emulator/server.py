"""The HTTP server: uvicorn, with each request's connection at hand so that a fault can cut it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TRANSPORT = "emulator.transport"
"""Where a request's scope carries its asyncio transport."""


class ConnectionProtocol(HttpToolsProtocol):
    """uvicorn's protocol; puts the connection into the scope."""

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[TRANSPORT] = self.transport


def transport_of(scope: Any) -> asyncio.Transport | None:
    """The connection that a request came over; None under a server other than ours."""
    return cast(asyncio.Transport | None, scope.get(TRANSPORT))


class Server(uvicorn.Server):
    """Says one line when it answers."""

    def __init__(self, config: uvicorn.Config, ready: str) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        """Bind, then say so."""
        await super().startup(sockets)
        if self.started:
            print(self._ready, flush=True)  # noqa: T201 - the launcher and people wait for this line


def make_server(app: Any, host: str, port: int, ready: str) -> Server:
    """A server that is quiet, and gives open calls two seconds at its end."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=ConnectionProtocol,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=75,
    )
    return Server(config, ready)
