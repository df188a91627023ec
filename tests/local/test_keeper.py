"""Nothing outlives the launcher, however it and its programs end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from include.local.errors import StackError
from include.local.keeper import Program
from include.local.options import PROJECT_ROOT
from include.local.processes import Processes

#: Starts a child in a session of its own, whose parent then dies, and stays deaf to SIGTERM itself.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1] + ".orphan", "w").write(str(os.getpid()))
    time.sleep(600)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    owned = Processes(PROJECT_ROOT, tmp_path / "keeper.log")
    yield owned
    owned.close()


def program(folder: Path, code: str, name: str = "one", grace: float = 0.3, stage: int = 0) -> Program:
    return Program(
        name=name,
        argv=[sys.executable, "-c", code, str(folder / f"{name}.pid")],
        env=dict(os.environ),
        cwd=str(folder),
        log=str(folder / f"{name}.log"),
        stage=stage,
        grace_seconds=grace,
    )


def pids(folder: Path, name: str = "one") -> list[psutil.Process]:
    """The program's own process and the orphan it left, once both have said who they are."""
    files = [folder / f"{name}.pid", folder / f"{name}.pid.orphan"]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [psutil.Process(int(file.read_text())) for file in files]


def wait_until(condition: object, seconds: float = 20) -> None:
    import time

    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def gone(found: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(found, timeout=20)[1]


class TestNothingIsLeft:
    def test_of_a_deaf_program_and_its_detached_child_when_the_launcher_closes(
        self, processes: Processes, tmp_path: Path
    ) -> None:
        processes.start(program(tmp_path, STUBBORN))
        found = pids(tmp_path)
        processes.close()
        assert gone(found)

    def test_when_the_launcher_is_killed(self, tmp_path: Path) -> None:
        launcher = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys, time; from pathlib import Path\n"
                "from include.local.processes import Processes\n"
                "from tests.local.test_keeper import program, STUBBORN\n"
                "folder = Path(sys.argv[1])\n"
                "owned = Processes(Path.cwd(), folder / 'keeper.log')\n"
                "owned.start(program(folder, STUBBORN)); time.sleep(600)",
                str(tmp_path),
            ],
            cwd=PROJECT_ROOT,
            env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
        )
        found = pids(tmp_path)
        keeper = found[0].parent()
        assert keeper is not None
        launcher.kill()
        launcher.wait()
        assert gone([*found, keeper])

    def test_of_the_programs_when_the_keeper_itself_is_killed(
        self, processes: Processes, tmp_path: Path
    ) -> None:
        pid = processes.start(program(tmp_path, "import time; time.sleep(600)"))
        found = [psutil.Process(pid)]
        os.kill(processes.pid, signal.SIGKILL)
        assert gone(found)
        with pytest.raises(StackError, match="keeper process is gone"):
            processes.start(program(tmp_path, "pass"))


class TestPrograms:
    def test_tell_their_exit_code(self, processes: Processes, tmp_path: Path) -> None:
        processes.start(program(tmp_path, "raise SystemExit(3)"))
        assert processes.wait("one", 20) == 3
        assert processes.ended("one") == 3

    def test_are_killed_with_their_descendants(self, processes: Processes, tmp_path: Path) -> None:
        processes.start(program(tmp_path, "import subprocess; subprocess.run(['sleep', '600'])"))
        top = psutil.Process(processes.pid)
        wait_until(lambda: len(top.children(recursive=True)) == 2)
        found = top.children(recursive=True)
        processes.kill("one")
        assert gone(found)
        assert processes.ended("one") == -signal.SIGKILL

    def test_end_in_the_order_of_their_stages(self, processes: Processes, tmp_path: Path) -> None:
        code = (
            "import signal, sys, time\n"
            "def end(*_):\n"
            "    open('order', 'a').write(sys.argv[1][-7:-4]); sys.exit()\n"
            "signal.signal(signal.SIGTERM, end)\n"
            "open(sys.argv[1], 'w').write('x'); time.sleep(600)"
        )
        for name, stage in (("two", 2), ("one", 1), ("six", 6)):
            processes.start(program(tmp_path, code, name, grace=20, stage=stage))
        wait_until(lambda: all((tmp_path / f"{name}.pid").exists() for name in ("two", "one", "six")))
        processes.close()
        assert (tmp_path / "order").read_text() == "sixtwoone"

    def test_that_cannot_be_started_say_why(self, processes: Processes, tmp_path: Path) -> None:
        impossible = program(tmp_path, "")
        impossible.argv[0] = "no-such-program"
        with pytest.raises(StackError, match="no-such-program"):
            processes.start(impossible)
