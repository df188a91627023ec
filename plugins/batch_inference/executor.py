"""Airflow's LocalExecutor with workers that have imported what tasks import."""

from __future__ import annotations

import importlib

import pyarrow as pa
from airflow.executors.local_executor import LocalExecutor

MODULES = (
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
"""Packages alone: our own code is read anew by each task, so that a change of it counts at once. LanceDB
isn't among them: its import starts a thread, which a fork would lose."""


class WarmLocalExecutor(LocalExecutor):
    """Imports in the scheduler, once, what each task would import for seconds in a process of its own."""

    def start(self) -> None:
        """Import, and let the workers be forked from that."""
        for name in MODULES:
            importlib.import_module(name)
        pa.array([])  # the first array imports pandas, where that is installed
        super().start()
