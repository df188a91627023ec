"""Where the calls of a step under test pass, and stop: before their work or after it, until the test says so.

A step runs in a process of its own. What it does to storage and index it announces here over a socket;
what it says to the ledger passes a proxy that announces it for it. Only calls that change something
are announced: a process that dies at a call that changes nothing has died after the change before.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

Kind = Literal["ledger", "storage", "index"]
When = Literal["before", "after"]
SECONDS = 60.0
"""How long a call may take that should take none."""


@dataclass(frozen=True, slots=True)
class Call:
    """The `nth` call of this kind since the gate was cleared; `name` says what it does, for people."""

    kind: Kind
    name: str
    nth: int


class Gate:
    """One process's gate. `calls` are those that have passed or stand at it, in their order."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        self.calls: list[Call] = []
        self._counts: Counter[str] = Counter()
        self._stop: tuple[Kind, int, When] | None = None
        self._caught: Call | None = None
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    # ----------------------------------------------------------------- the test's side

    def clear(self) -> None:
        """Forget the calls so far, and count anew."""
        with self._changed:
            self.calls, self._caught, self._stop = [], None, None
            self._counts.clear()

    def stop(self, kind: Kind, nth: int, when: When) -> None:
        """Stop the nth call of this kind, before or after its work."""
        with self._changed:
            self._stop, self._caught = (kind, nth, when), None

    def open(self) -> None:
        """Let the call that stands here go on, and stop none."""
        with self._changed:
            self._stop = None
            self._changed.notify_all()

    @property
    def caught(self) -> Call | None:
        """The call that stands here."""
        return self._caught

    def close(self) -> None:
        """Let everything go on; nobody can come any more."""
        self._closed = True
        self.open()
        self._listener.close()

    # ----------------------------------------------------------------- the caller's side

    def arrive(self, kind: Kind, name: str) -> Call:
        """A call is about to be made; returns once it may."""
        with self._changed:
            self._counts[kind] += 1
            call = Call(kind, name, self._counts[kind])
            self.calls.append(call)
            self._wait(call, "before")
            return call

    def leave(self, call: Call) -> None:
        """The call's work is done; returns once its caller may know."""
        with self._changed:
            self._wait(call, "after")

    def stops_after(self, call: Call) -> bool:
        """Whether the call will be stopped when it leaves."""
        return self._stop == (call.kind, call.nth, "after")

    def _wait(self, call: Call, when: When) -> None:
        if self._stop != (call.kind, call.nth, when):
            return
        self._caught = call
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._stop is None)
        self._caught = None

    # ----------------------------------------------------------------- over the socket

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closed:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection, connection.makefile("rwb") as stream:
            for line in stream:
                kind, name = orjson.loads(line)
                call = self.arrive(kind, name)
                stream.write(b"go\n")
                stream.flush()
                if not stream.readline():
                    return
                self.leave(call)
                stream.write(b"go\n")
                stream.flush()


class _Way:
    """A process's way to its gate: one connection a thread."""

    def __init__(self) -> None:
        self.path = ""
        self._local = threading.local()

    def say(self, line: bytes) -> None:
        stream = getattr(self._local, "stream", None)
        if stream is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.path)
            stream = self._local.stream = connection.makefile("rwb")
        stream.write(line + b"\n")
        stream.flush()
        if not stream.readline():
            raise ConnectionError("the test has closed its gate")


_WAY = _Way()


def use(path: str) -> None:
    """Announce this process's calls at the gate of this path; "" for none."""
    _WAY.path = path


@contextmanager
def passing(kind: Kind, name: str) -> Iterator[None]:
    """A call of this process, announced at its gate, if it has one."""
    if not _WAY.path:
        yield
        return
    _WAY.say(orjson.dumps([kind, name]))
    try:
        yield
    finally:
        _WAY.say(b"done")
