"""A process that has imported everything and used nothing, and forks one that runs steps for each caller.

A fork takes milliseconds where a start takes seconds. Nothing that has threads or connections is
alive when it forks: LanceDB's event loop, which its import starts, is stopped here, and started anew
in each child by LanceDB itself.

    python -m tests.faults.warm SOCKET      ends when its standard input does

What a caller says, a line of JSON each: first where the child works, then a step at a time. The child
answers with its process id, then with what each step came to; it ends when its caller hangs up.
"""

from __future__ import annotations

import importlib
import logging
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

MODULES = (
    "anthropic",
    "duckdb",
    "lancedb",
    "openai",
    "psycopg",
    "pyarrow.parquet",
    "include.workloads.clients",
    "include.workloads.plan",
    "include.workloads.steps",
    "tests.faults.held_index",
)
CHUNK_TOKENS, CHUNK_OVERLAP = 60, 8
"""How the runs cut their texts."""


@dataclass(frozen=True)
class Place:
    """Where a child works: its settings, environment, gate and temporary folder, and the most bytes
    that a file of it may have (None: any)."""

    settings: dict[str, Any]
    environment: dict[str, str]
    folder: str
    gate: str = ""
    most_bytes: int | None = None
    log: str = field(default="")


def main(path: str) -> None:
    """Serve until standard input ends."""
    _import()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    # Children are nobody's to wait for: their callers see the connection end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            status = 1
            try:
                _Child(connection).run()
                status = 0
            finally:
                os._exit(status)
        connection.close()


def _import() -> None:
    for name in MODULES:
        importlib.import_module(name)
    from include.corpora import tokens
    from include.corpora.chunking import Chunker
    from include.corpora.config import ChunkingConfig

    tokens.encoding()
    # Its tables are loaded once a process, in a third of a second.
    Chunker(ChunkingConfig(tokens=CHUNK_TOKENS, overlap=CHUNK_OVERLAP))
    from lancedb.background_loop import LOOP

    LOOP.loop.call_soon_threadsafe(LOOP.loop.stop)
    LOOP.thread.join()
    warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert not others, f"a thread is lost in every fork: {others}"


class _Child:
    """Runs steps for one caller."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def run(self) -> None:
        place = Place(**orjson.loads(self._stream.readline()))
        self._say({"pid": os.getpid()})
        self._settle(place)
        for line in self._stream:
            self._say(self._step(orjson.loads(line)))

    def _settle(self, place: Place) -> None:
        from tests.faults import gate

        os.environ.update(place.environment)
        tempfile.tempdir = place.folder
        log = os.open(f"{place.folder}/{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", force=True)
        if place.most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (place.most_bytes, place.most_bytes))
        gate.use(place.gate)
        from include.settings import Settings
        from include.workloads.clients import services

        self._services = services(Settings(**place.settings))

    def _step(self, told: dict[str, Any]) -> dict[str, Any]:
        """Run `told["step"]` of the run `told["run"]`; what it returned, or what it raised."""
        import dataclasses

        from include.contracts import RunRef
        from include.workloads import steps
        from include.workloads.plan import Request
        from include.workloads.replay import Replay

        arguments = list(told["arguments"])
        if told["step"] == "prepare":
            replay = Replay() if told["run"]["workload"] == "dead_letter_replay" else None
            arguments = [Request(**arguments[0], replay=replay)]
        # As in a task, nothing is kept from the step before.
        services = dataclasses.replace(self._services)
        try:
            result = getattr(steps, told["step"])(services, RunRef(**told["run"]), *arguments)
        except Exception as error:
            return {
                "error": type(error).__name__,
                "message": str(error),
                "trace": traceback.format_exc(),
            }
        return {"result": result if isinstance(result, list | dict) else None}

    def _say(self, answer: dict[str, Any]) -> None:
        self._stream.write(orjson.dumps(answer) + b"\n")
        self._stream.flush()


def log_of(folder: Path, pid: int) -> str:
    """What a child logged."""
    file = folder / f"{pid}.log"
    return file.read_text(errors="replace") if file.exists() else ""


if __name__ == "__main__":
    main(sys.argv[1])
