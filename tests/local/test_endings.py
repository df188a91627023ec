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

START_SECONDS = 240


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all starts, so that the tables are made once."""
    return tmp_path_factory.mktemp("state")


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


def descendants(launcher: subprocess.Popen[bytes]) -> tuple[list[psutil.Process], set[int]]:
    """All processes of the stack, and the ports they listen on."""
    processes = psutil.Process(launcher.pid).children(recursive=True)
    ports: set[int] = set()
    for process in processes:
        try:
            connections = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        ports |= {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return processes, ports


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
    processes, ports = descendants(launcher)
    assert len(processes) > 5
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == code
    # Whoever was killed had no time to wait for the rest; whoever ended by itself did.
    assert not psutil.wait_procs(processes, timeout=40 if number == signal.SIGKILL else 1)[1]
    listening = {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    assert not ports & listening
