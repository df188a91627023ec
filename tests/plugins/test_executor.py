"""What the local stack's workers are forked from: packages, and nothing that a fork breaks or keeps old."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.emulators import ROOT

SCRIPT = """
import json, sys, threading
from batch_inference.executor import warm_up
warm_up()
import pyarrow as pa
print(json.dumps({
    "threads": len(threading.enumerate()),
    "allocator": pa.default_memory_pool().backend_name,
    "ours": [name for name in sys.modules if name.startswith("include.")],
    "packages": [name for name in ("openai", "anthropic", "duckdb", "lancedb") if name in sys.modules],
}))
"""


def test_it_has_the_packages_our_allocator_no_thread_and_no_code_of_ours() -> None:
    # Whoever imported our package has chosen already, for its children too.
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")])},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "threads": 1,
        "allocator": "jemalloc",
        "ours": [],
        "packages": ["openai", "anthropic", "duckdb"],
    }
