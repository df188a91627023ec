"""What the local stack forks tasks from: all that they import, nothing that a fork breaks or keeps old."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.emulators import ROOT

SCRIPT = """
import json, os, sys, threading
from batch_inference.executor import warm_up
warm_up()
import pyarrow as pa

def forked(depth, act=lambda: None):
    "What the function says in a process that is forked from one that is forked, and so on."
    if depth == 0:
        return act()
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(forked(depth - 1, act)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        return json.loads(pipe.read())

def as_imported():
    from include.workloads.plan import EXTRACTION
    return EXTRACTION

def ours():
    return "include.workloads.steps" in sys.modules

def changed_in_the_middle():
    with open(sys.modules["include.workloads.plan"].__file__, "a") as file:
        file.write("\\nEXTRACTION = 'changed'\\n")
    return forked(1, ours)

print(json.dumps({
    "threads": len(threading.enumerate()),
    "allocator": pa.default_memory_pool().backend_name,
    "packages": [name for name in ("openai", "anthropic", "duckdb", "lancedb") if name in sys.modules],
    "has ours": [forked(1, ours), forked(2, ours)],
}), flush=True)
print(json.dumps({
    "a task's own has ours": forked(2, changed_in_the_middle),
    "a worker": forked(1, as_imported),
    "its task": forked(2, as_imported),
    "begun before": as_imported(),
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a copy of our code says of itself, before one of its files is changed and after."""
    copy = tmp_path_factory.mktemp("copy")
    for part in ("include", "plugins"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    # Whoever imported our package has chosen already, for its children too.
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    paths = [str(copy), str(copy / "plugins")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=copy,
        env={**environment, "PYTHONPATH": os.pathsep.join(paths), "AIRFLOW_HOME": str(Path(copy) / "home")},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


def test_they_have_packages_and_our_modules_our_allocator_and_no_thread(told: list[dict[str, Any]]) -> None:
    assert told[0] == {
        "threads": 1,
        "allocator": "jemalloc",
        "packages": ["openai", "anthropic", "duckdb"],
        "has ours": [True, True],
    }


def test_a_task_that_begins_after_a_change_reads_it(told: list[dict[str, Any]]) -> None:
    assert told[1]["a worker"] == told[1]["its task"] == "changed"


def test_one_that_began_before_keeps_what_it_has_and_so_do_its_children(told: list[dict[str, Any]]) -> None:
    assert told[1]["begun before"] == "metadata_extraction"
    assert told[1]["a task's own has ours"]
