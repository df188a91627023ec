"""The launcher's side of the keeper: start programs, learn of their end, end them all."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from include.local.errors import StackError
from include.local.keeper import Program


class Processes:
    """All processes of one stack, owned by a keeper process.

    `held` are file descriptors that stay open until the last process is gone: a lock on the state
    folder is let go of only then.
    """

    def __init__(self, root: Path, log: Path, held: tuple[int, ...] = ()) -> None:
        self._changed = threading.Condition()
        self._ended: dict[str, int] = {}
        self._answers: list[dict[str, Any]] = []
        self._closed = False
        with log.open("ab") as stderr:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "include.local.keeper"],
                cwd=root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                pass_fds=held,
            )
        self._reader = threading.Thread(target=self._read, name="keeper", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The keeper's process id: every process of the stack descends from it."""
        return self._keeper.pid

    def start(self, program: Program) -> int:
        """Start a program; returns its process id. Raises StackError where it can't be started."""
        with self._changed:
            self._ended.pop(program.name, None)
        return int(self._ask(program.request()))

    def ended(self, name: str) -> int | None:
        """The exit code of a program that ended (negative: the signal), None while it runs."""
        with self._changed:
            if self._closed:
                return self._ended.get(name, -1)
            return self._ended.get(name)

    def wait(self, name: str, seconds: float) -> int:
        """Wait for a program's end; returns its exit code. Raises StackError after `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while name not in self._ended:
                if self._closed:
                    raise StackError(f"{name} was ended from outside, together with all others")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StackError(f"{name} didn't end within {seconds:.0f} s")
                self._changed.wait(left)
            return self._ended[name]

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a program (not to its descendants)."""
        self._ask({"do": "signal", "name": name, "signal": number})

    def kill(self, name: str) -> None:
        """SIGKILL to a program and all its descendants; returns when it is gone."""
        if self._ask({"do": "kill", "name": name}):
            self.wait(name, 10)

    def close(self) -> None:
        """End everything, in order, and wait for it; a second Ctrl-C meanwhile ends it at once."""
        if self._keeper.stdin and not self._keeper.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()
        while self._keeper.poll() is None:
            try:
                self._keeper.wait()
            except KeyboardInterrupt:
                self._keeper.terminate()
        self._reader.join(timeout=5)
        if self._keeper.stdout:
            self._keeper.stdout.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        """One question at a time: callers are the launcher's main thread, or hold a lock of their own."""
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
            self._keeper.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise StackError("the stack's keeper process is gone, and all it started with it") from error
        with self._changed:
            while not self._answers and not self._closed:
                self._changed.wait()
            if not self._answers:
                raise StackError("the stack's keeper process is gone, and all it started with it")
            message = self._answers.pop(0)
        if "error" in message:
            raise StackError(f"{request.get('name')} can't be started: {message['error']}")
        return message["answer"]

    def _read(self) -> None:
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            message = json.loads(line)
            with self._changed:
                if "exited" in message:
                    self._ended[message["exited"]] = message["code"]
                else:
                    self._answers.append(message)
                self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
