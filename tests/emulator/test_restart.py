"""Nothing that was answered is forgotten, and nothing is done twice, when the process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.emulator.conftest import drive, embedding_line
from tests.emulators import ROOT, Emulator, free_port


def kill(emulator: Emulator) -> None:
    os.kill(emulator.process.pid, signal.SIGKILL)
    emulator.process.wait(20)


def test_state_is_kept_over_kill_9(start: Callable[..., Emulator]) -> None:
    port = free_port()
    first = start("--clock", "manual", port=port)
    driver = drive(first)
    batch_id = driver.create([embedding_line(f"r{index}", "x") for index in range(10)])
    half = driver.after(2.5, batch_id)
    driver.emulator.faults({"on": "line", "when": {"custom_id": "r9"}, "do": "line_error", "status": 500})
    before = driver.emulator.state()
    kill(first)
    driver = drive(start("--clock", "manual", port=port))
    after = driver.emulator.state()
    assert after == before
    assert driver.client.batches.retrieve(batch_id) == half
    done = driver.after(10, batch_id)
    output, errors = driver.results(done)
    assert (len(output), set(errors)) == (9, {"r9"})
    assert driver.emulator.state()["charges"] == dict.fromkeys(output, 1)


def test_a_batch_killed_in_the_middle_of_its_work_is_finished_once(start: Callable[..., Emulator]) -> None:
    port = free_port()
    pace = ("--validating-seconds", "0", "--batch-seconds", "0", "--finalizing-seconds", "0")
    emulator = start(*pace, port=port)
    driver = drive(emulator)
    count = 20_000
    batch_id = driver.create([embedding_line(f"r{index}", f"text {index}") for index in range(count)])
    kills = 0
    deadline = time.monotonic() + 120
    while (batch := driver.client.batches.retrieve(batch_id)).status != "completed":
        assert time.monotonic() < deadline
        counts = batch.request_counts
        if counts and kills < 3 and counts.completed > kills * count / 4:
            kill(emulator)
            kills += 1
            emulator = start(*pace, port=port)
            driver = drive(emulator)
    assert kills > 0
    output, errors = driver.results(batch)
    assert (len(output), errors) == (count, {})
    assert set(driver.emulator.state()["charges"].values()) == {1}


def test_a_folder_has_one_emulator(start: Callable[..., Emulator]) -> None:
    emulator = start()
    command = [
        sys.executable,
        "-m",
        "include.emulator",
        "--data",
        str(emulator.data),
        "--port",
        str(free_port()),
    ]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert "another emulator runs on the folder" in second.stderr


def test_sigterm_ends_it_cleanly(start: Callable[..., Emulator]) -> None:
    emulator = start()
    emulator.process.terminate()
    assert emulator.process.wait(10) == 0
