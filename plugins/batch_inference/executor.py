"""Airflow's LocalExecutor with workers that have imported what tasks import.

A task is a process of its own, forked from a worker. Without this it spends most of its time on imports:
of packages, for seconds, and of our own modules, for half a second. Those may change while Airflow runs; a
task that finds one changed on disk imports all of ours anew, as any task of Airflow's does.
"""

from __future__ import annotations

import importlib
import os
import sys

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

_read: dict[str, int] = {}
"""When the file of each of our modules was changed before it was imported, in ns."""
_generation = 0


def warm_up() -> None:
    """Import what tasks import, and have each task look whether that is still what is on disk."""
    for name in (*PACKAGES, *OURS):
        importlib.import_module(name)
    import pyarrow as pa

    pa.array([])  # the first array imports pandas, where that is installed
    _read.update((file, _changed(file)) for file in _files())
    os.register_at_fork(after_in_child=_forget_what_changed)


def _forget_what_changed() -> None:
    global _generation
    _generation += 1
    if _generation <= _GENERATIONS and any(_changed(file) != when for file, when in _read.items()):
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]


def _files() -> list[str]:
    modules = [module for name, module in sys.modules.items() if _is_ours(name)]
    return [file for module in modules if (file := getattr(module, "__file__", None))]


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("batch_inference", "include")


def _changed(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except FileNotFoundError:
        return 0


class WarmLocalExecutor(LocalExecutor):
    """Imports in the scheduler, once, what each task would import in a process of its own."""

    def start(self) -> None:
        """Import, and let the workers be forked from that."""
        warm_up()
        super().start()
