"""Processes that run the steps of runs, and can be killed in the middle of one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from include.contracts import RunRef
from tests.emulators import ROOT
from tests.faults.warm import Place, log_of

SECONDS = 120.0


class Killed(Exception):
    """The process ended before its step did."""


class StepFailed(Exception):
    """The step raised; `kind` is the name of its exception."""

    def __init__(self, step: str, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{step}: {kind}: {message}")
        self.kind = kind
        self.message = message
        self.trace = trace


@contextmanager
def warm_process() -> Iterator[Path]:
    """The process that others are forked from; yields the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        path = Path(folder) / "socket"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.warm", str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stdin is not None
        try:
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the warm process didn't start (exit code {process.wait(10)})")
            yield path
        finally:
            process.stdin.close()
            process.wait(20)
            process.stdout.close()


class Worker:
    """A process of its own for some steps, one at a time. A context: it is gone at the end."""

    def __init__(self, warm: Path, place: Place) -> None:
        self._place = place
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(SECONDS)
        self._connection.connect(str(warm))
        self._stream = self._connection.makefile("rwb")
        self._tell(asdict(place))
        self.pid = int(self._hear()["pid"])
        self._step = ""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self, step: str, run: RunRef, *arguments: Any) -> None:
        """Begin a step."""
        self._step = f"{step} {' '.join(map(str, arguments))}".strip()
        self._tell({"step": step, "run": asdict(run), "arguments": arguments})

    def finish(self) -> Any:
        """What the step begun last came to. Raises StepFailed, or Killed."""
        answer = self._hear()
        if "error" in answer:
            raise StepFailed(self._step, answer["error"], answer["message"], answer["trace"])
        return answer["result"]

    def do(self, step: str, run: RunRef, *arguments: Any) -> Any:
        """Run a step to its end."""
        self.start(step, run, *arguments)
        return self.finish()

    def wait(self, happens: Callable[[], bool] = lambda: False) -> None:
        """Wait until this happens, or the step begun last has ended."""
        wait_until(lambda: happens() or self.ended(), f"{self._step} ends:\n{self.log[-3000:]}")

    def ended(self) -> bool:
        """Whether the step begun last has come to something, or its process is gone."""
        self._connection.settimeout(0)
        try:
            return self._connection.recv(1, socket.MSG_PEEK) is not None
        except BlockingIOError:
            return False
        finally:
            self._connection.settimeout(SECONDS)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if self._connection.fileno() < 0:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(OSError):
            while self._connection.recv(4096):
                pass
        self._stream.close()
        self._connection.close()

    @property
    def log(self) -> str:
        """What the process logged so far."""
        return log_of(Path(self._place.folder), self.pid)

    def _tell(self, line: dict[str, Any]) -> None:
        self._stream.write(orjson.dumps(line) + b"\n")
        self._stream.flush()

    def _hear(self) -> dict[str, Any]:
        line = self._stream.readline()
        if not line:
            raise Killed(f"process {self.pid} ended in {self._step or 'its beginning'}")
        return dict(orjson.loads(line))


def wait_until(happens: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for a state. Fails saying what didn't happen."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.005)
