"""A proxy before PostgreSQL, at whose gate the messages of one process stop.

Speaks just enough of the protocol to tell messages apart: what a client sends up to a Sync, a Query or
a CopyDone is one call, named by its SQL. Held before its work, a call hasn't reached the server; held
after it, the server has answered and the client doesn't know.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress
from urllib.parse import quote, urlsplit

from psycopg.conninfo import conninfo_to_dict

from tests.faults.gate import SECONDS, Call, Gate

_ENDS_CALL = b"QSc"
"""Query, Sync, CopyDone: what the server works on at once."""
_CHANGES_NOTHING = re.compile(r"(select|show|set|begin|declare|fetch|close|sync)\b")
"""Locks are among them: they die with their owner."""
_COPY_DONE = "copy done"
_BLANKS = re.compile(r"\s+")


class LedgerProxy:
    """Listens on a port of its own; every connection goes on to the server of `url`."""

    def __init__(self, url: str, gate: Gate) -> None:
        self._gate = gate
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        self._socket = _unix_socket(parts)
        self._address = (parts.get("host", "localhost"), int(parts.get("port", 5432)))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        who = quote(parts.get("user", "postgres"))
        if parts.get("password"):
            who += f":{quote(parts['password'])}"
        database = urlsplit(url).path.lstrip("/") or parts["dbname"]
        self.url = f"postgresql://{who}@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = _Connection(client, self._upstream(), self._gate)
                threading.Thread(target=connection.run, daemon=True).start()

    def _upstream(self) -> socket.socket:
        if self._socket is None:
            return socket.create_connection(self._address)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._socket)
        return server


def _unix_socket(parts: dict[str, str]) -> str | None:
    host = parts.get("host", "")
    return f"{host}/.s.PGSQL.{parts.get('port', '5432')}" if host.startswith("/") else None


class _Connection:
    """One client and its server, until either hangs up."""

    def __init__(self, client: socket.socket, server: socket.socket, gate: Gate) -> None:
        self._client = client
        self._server = server
        self._gate = gate
        self._statements: dict[bytes, str] = {}
        self._pending = b""
        self._name = ""
        self._ends = b"Z"
        self._answered = threading.Event()
        self._may_answer = threading.Event()
        self._may_answer.set()

    def run(self) -> None:
        threading.Thread(target=self._answers, daemon=True).start()
        with suppress(OSError, EOFError):
            (size,) = struct.unpack("!I", _exactly(self._client, 4))
            self._server.sendall(struct.pack("!I", size) + _exactly(self._client, size - 4))
            while True:
                self._message()
        self._hang_up()

    def _message(self) -> None:
        kind, body, raw = _read(self._client)
        self._pending += raw
        self._learn(kind, body)
        if kind not in _ENDS_CALL:
            if kind == b"d":
                self._forward()
            return
        name, self._name = self._name or "sync", ""
        if _CHANGES_NOTHING.match(name):
            self._forward()
            return
        call = self._gate.arrive("ledger", _BLANKS.sub(" ", name)[:100])
        if self._client_is_gone():
            raise EOFError
        if self._gate.stops_after(call):
            self._stop_after(call)
        else:
            self._forward()

    def _stop_after(self, call: Call) -> None:
        """Let the server work, and keep its answer to itself until the gate opens."""
        self._ends = b"ZCE" if call.name == _COPY_DONE else b"ZG"
        self._answered.clear()
        self._may_answer.clear()
        self._forward()
        assert self._answered.wait(SECONDS), f"the server didn't answer: {call}"
        self._gate.leave(call)
        self._may_answer.set()

    def _learn(self, kind: bytes, body: bytes) -> None:
        """Find out what a message is about. The first statement names the call."""
        sql = ""
        if kind == b"Q":
            sql = body.rstrip(b"\0").decode()
        elif kind == b"P":
            statement, query, _ = body.split(b"\0", 2)
            sql = self._statements[statement] = query.decode()
        elif kind == b"B":
            _, statement, _ = body.split(b"\0", 2)
            sql = self._statements.get(statement, "")
        elif kind == b"c":
            sql = _COPY_DONE
        self._name = self._name or sql.lstrip().lower()

    def _client_is_gone(self) -> bool:
        """A call that was held while its process died hasn't left it."""
        try:
            return not self._client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _forward(self) -> None:
        self._server.sendall(self._pending)
        self._pending = b""

    def _answers(self) -> None:
        """Carry the server's messages back."""
        kept = b""
        with suppress(OSError, EOFError):
            while True:
                kind, _, raw = _read(self._server)
                kept += raw
                if kind in self._ends:
                    self._answered.set()
                    self._may_answer.wait()
                if self._may_answer.is_set():
                    self._client.sendall(kept)
                    kept = b""
        self._answered.set()
        self._hang_up()

    def _hang_up(self) -> None:
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _read(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
    """One message: its kind, its body, and all of it."""
    head = _exactly(connection, 5)
    body = _exactly(connection, struct.unpack("!I", head[1:])[0] - 4)
    return head[:1], body, head + body


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
