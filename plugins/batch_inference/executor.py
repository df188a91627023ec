"""Airflow's LocalExecutor with workers that have imported what tasks import.

A task is a process of its own, forked from a worker. Without this it spends most of its time on imports:
of packages, for seconds, and of our own modules, for half a second. Those may change while Airflow runs; a
task that finds one changed on disk imports all of ours anew, as any task of Airflow's does.
"""

from __future__ import annotations

import importlib
import os
import sys

import psutil
from airflow.executors.local_executor import LocalExecutor

PACKAGES = (
    "include",  # which chooses Arrow's allocator, before Arrow does
    "airflow.providers.anthropic.hooks.anthropic",
    "airflow.providers.openai.hooks.openai",
    "anthropic",
    "duckdb",
    "lance_namespace",
    "openai",
    "psycopg",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "semantic_text_splitter",
)
"""LanceDB isn't among them: its import starts a thread, which a fork would lose."""
OURS = (
    "batch_inference.dag_factory",
    "include.workloads.clients",
    "include.workloads.plan",
    "include.workloads.steps",
)
_GENERATIONS = 2
"""Workers are forked from the scheduler, and tasks from workers. What a task forks is in the middle of its
work, and keeps what it has."""

_SLACK_NS = 2_000_000_000

_State = tuple[int, int, int]
_read: dict[str, _State | None] = {}
"""The file of each of our modules as it was imported; None where it was changed since this process began, so
that nobody knows which was read."""
_generation = 0


def warm_up() -> None:
    """Import what tasks import, and have each task look whether that is still what is on disk."""
    for name in (*PACKAGES, *OURS):
        importlib.import_module(name)
    import pyarrow as pa

    pa.array([])  # the first array imports pandas, where that is installed
    began = int(psutil.Process().create_time() * 1e9) - _SLACK_NS
    for file in _files():
        state = _state(file)
        _read[file] = state if state and state[0] < began else None
    os.register_at_fork(after_in_child=_forget_what_changed)


def _forget_what_changed() -> None:
    global _generation
    _generation += 1
    if _generation <= _GENERATIONS and _has_changed():
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]


def _files() -> list[str]:
    modules = [module for name, module in sys.modules.items() if _is_ours(name)]
    return [file for module in modules if (file := getattr(module, "__file__", None))]


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("batch_inference", "include")


def _has_changed() -> bool:
    return any(state is None or _state(file) != state for file, state in _read.items())


def _state(file: str) -> _State | None:
    """When it was changed in ns, its size, and which it is; None where it can't be asked."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class WarmLocalExecutor(LocalExecutor):
    """Imports in the scheduler, once, what each task would import in a process of its own."""

    def start(self) -> None:
        """Import, and let the workers be forked from that."""
        warm_up()
        super().start()
