"""The process that owns all others: whatever becomes of the launcher, nothing it started survives it.

The launcher talks to it over stdin and stdout, one JSON object a line. The end of stdin, however it
comes about (a clean exit, an error, Ctrl-C, kill -9 of the launcher), means: stop everything and exit.
On Linux it is a subreaper, so that a grandchild whose parent died comes to it and is found, and its
children get their stop signal from the kernel should it die itself.

Requests: `{"do": "start", …Program}`, `{"do": "signal", "name", "signal"}`, `{"do": "kill", "name"}`.
Answers: `{"answer": …}` to each in turn, `{"error": …}` instead where it failed, and at any time
`{"exited": name, "pid": pid, "code": code}`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_SECONDS = 0.05


@dataclass(frozen=True)
class Program:
    """What to start and how to stop it.

    Stopping goes from the highest `stage` to the lowest, all of a stage at once: `stop_signal`, then
    after `grace_seconds` SIGKILL for it and all its descendants. `log` is appended to.
    """

    name: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    stage: int
    stop_signal: int = int(signal.SIGTERM)
    grace_seconds: float = 10.0
    uid: int | None = None
    gid: int | None = None

    def request(self) -> dict[str, Any]:
        """The request that starts it."""
        return {"do": "start", **asdict(self)}


@dataclass
class _Child:
    program: Program
    process: subprocess.Popen[bytes]


class Keeper:
    """Starts, watches and ends programs until stdin ends."""

    def __init__(self) -> None:
        self._children: dict[str, _Child] = {}
        self._hurry = False

    def run(self) -> None:
        """Serve requests until the launcher is gone, then end everything."""
        for name in ("SIGINT", "SIGHUP"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_terminate)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._serve()
        finally:
            self._end_all()

    def _on_terminate(self, *_: Any) -> None:
        self._hurry = True

    def _serve(self) -> None:
        os.set_blocking(0, False)
        pending = b""
        while not self._hurry:
            self._reap()
            readable, _, _ = select.select([0], [], [], _TICK_SECONDS)
            if not readable:
                continue
            received = os.read(0, 1 << 20)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            do = request.pop("do")
            if do == "start":
                _write({"answer": self._start(Program(**request))})
            elif do == "signal":
                child = self._children.get(request["name"])
                if child is not None:
                    os.kill(child.process.pid, request["signal"])
                _write({"answer": child is not None})
            else:
                child = self._children.get(request["name"])
                if child is not None:
                    _kill(_tree(child.process.pid))
                _write({"answer": child is not None})
        except (OSError, subprocess.SubprocessError) as error:
            _write({"error": str(error)})

    def _start(self, program: Program) -> int:
        with open(program.log, "ab") as log:
            process = subprocess.Popen(
                program.argv,
                env=program.env,
                cwd=program.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=program.uid,
                group=program.gid,
                extra_groups=None if program.uid is None else [],
                preexec_fn=_dies_with_parent(program.stop_signal),
            )
        self._children[program.name] = _Child(program, process)
        return process.pid

    def _reap(self) -> None:
        """Collect every process that ended, adopted ones too, and tell of those we started."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            for name, child in list(self._children.items()):
                if child.process.pid == pid:
                    child.process.returncode = code
                    del self._children[name]
                    _write({"exited": name, "pid": pid, "code": code})
                    _log(f"{name} (process {pid}) ended with exit code {code}")

    def _end_all(self) -> None:
        _log("ending everything")
        stages = sorted({child.program.stage for child in self._children.values()}, reverse=True)
        for stage in stages:
            self._end([child for child in self._children.values() if child.program.stage == stage])
        # What left its session or lost its parent was adopted, and is found here.
        deadline = time.monotonic() + 10
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            _kill(left)
            self._reap()
            time.sleep(_TICK_SECONDS)

    def _end(self, children: list[_Child]) -> None:
        descendants = {process for child in children for process in _tree(child.process.pid)}
        for child in children:
            _quietly(lambda child=child: os.kill(child.process.pid, child.program.stop_signal))  # type: ignore[misc]
        deadline = time.monotonic() + max((child.program.grace_seconds for child in children), default=0)
        names = {child.program.name for child in children}
        while names & set(self._children) and time.monotonic() < deadline and not self._hurry:
            self._reap()
            time.sleep(_TICK_SECONDS)
        for child in children:
            if child.program.name in self._children:
                _log(
                    f"{child.program.name} didn't end within {child.program.grace_seconds:.0f} s: killing it"
                )
            descendants.update(_tree(child.process.pid))
        _kill(descendants)
        self._reap()


def _tree(pid: int) -> set[psutil.Process]:
    """A program with its descendants, and whoever else is in its session."""
    found: set[psutil.Process] = set()
    try:
        top = psutil.Process(pid)
        found.update([top, *top.children(recursive=True)])
    except psutil.NoSuchProcess:
        pass
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid:
                found.add(process)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _dies_with_parent(stop_signal: int) -> Callable[[], None]:
    return lambda: _prctl(_PR_SET_PDEATHSIG, stop_signal)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _write(message: dict[str, Any]) -> None:
    """Tell the launcher; it may be gone, and that is noticed by the end of stdin."""
    _quietly(lambda: os.write(1, json.dumps(message).encode() + b"\n"))


def _log(text: str) -> None:
    print(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}", file=sys.stderr, flush=True)


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except OSError:
        return


if __name__ == "__main__":
    Keeper().run()
