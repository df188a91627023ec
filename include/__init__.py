"""The domain: bulk LLM and embedding work for retrieval, in plain Python without Airflow."""

import os
import sys

if sys.platform == "linux":
    # Arrow reads it when it's loaded. Its own choice keeps what was freed, for each thread that freed it:
    # a hundred megabytes in a process that streams with ten.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
