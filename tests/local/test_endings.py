"""`make up` ends without a trace: by Ctrl-C, by SIGTERM, and by kill -9, at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from include.local.options import PROJECT_ROOT
from tests.stack import listening, taken, temporary_state

START_SECONDS = 240


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """One folder for all starts, so that the tables are made once."""
    with temporary_state() as folder:
        yield folder


@pytest.fixture
def launcher(state: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m include.local up`, with SIGINT as a terminal leaves it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "include.local", "--state", str(state), "up"],
        cwd=PROJECT_ROOT,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
        stdout=(state / "out").open("wb"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], launcher: subprocess.Popen[bytes], state: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert launcher.poll() is None and time.monotonic() < deadline, (state / "out").read_text()
        time.sleep(0.1)


def is_ready(state: Path) -> bool:
    return "Ctrl-C stops all of it" in (state / "out").read_text()


def is_half_started(state: Path) -> bool:
    return (state / "logs" / "triggerer.log").exists()


@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        pytest.param(signal.SIGTERM, is_half_started, 143, id="SIGTERM while it starts"),
        pytest.param(signal.SIGKILL, is_ready, -9, id="kill -9"),
        pytest.param(signal.SIGINT, is_ready, 0, id="Ctrl-C"),
    ],
)
def test_no_process_and_no_port_is_left_after(
    number: int, moment: Callable[[Path], bool], code: int, launcher: subprocess.Popen[bytes], state: Path
) -> None:
    wait_for(lambda: moment(state), launcher, state)
    processes = psutil.Process(launcher.pid).children(recursive=True)
    ports = listening(processes)
    assert len(processes) > 5
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == code
    # Whoever was killed had no time to wait for the rest; whoever ended by itself did.
    assert not psutil.wait_procs(processes, timeout=40 if number == signal.SIGKILL else 1)[1]
    assert not taken(ports)
