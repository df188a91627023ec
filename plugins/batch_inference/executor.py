"""Airflow's LocalExecutor with workers that have imported what tasks import."""

from __future__ import annotations

import importlib

from airflow.executors.local_executor import LocalExecutor

MODULES = (
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
"""Our own modules aren't among them: each task reads them anew, so that a change of them counts at once. Nor
is LanceDB: its import starts a thread, which a fork would lose."""


def warm_up() -> None:
    """Import what tasks import."""
    for name in MODULES:
        importlib.import_module(name)
    import pyarrow as pa

    pa.array([])  # the first array imports pandas, where that is installed


class WarmLocalExecutor(LocalExecutor):
    """Imports in the scheduler, once, what each task would import for seconds in a process of its own."""

    def start(self) -> None:
        """Import, and let the workers be forked from that."""
        warm_up()
        super().start()
