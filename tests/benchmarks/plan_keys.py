"""Planning: which of 20,000,000 keys have no answer among 20,000,000 results, 1% of them new.

`python -m tests.benchmarks.plan_keys` prints one JSON object: seconds and peak memory, which are to
stay under 60 s and 4 GB on two cores. The keys' files are laid out first, and not timed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts import KEY_BYTES, RUN_ROW_SCHEMA
from include.requests import results
from include.requests.reuse import Sources, planning
from include.storage import Storage
from tests.benchmarks.measuring import Stopwatch, Times, apart

SPACE = "0" * 32
RANGES = 16
ROWS_AT_ONCE = 100_000
RESULTS_A_FILE = 50_000


@dataclass(frozen=True)
class Figures:
    """What was measured: one plan, from opening the database to the last missing item."""

    keys: int
    results: int
    missing: int
    seconds: float
    peak_mb: float


def _column(keys: npt.NDArray[np.uint64]) -> pa.Array[Any]:
    return results.keys_array(np.ascontiguousarray(keys).tobytes())


def lay_out(storage: Storage, count: int, new: int) -> Sources:
    """Rows with `count` keys, all but `new` of them among as many results, both in random order."""
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**64, (count + new, 2), np.uint64)
    wanted, answered = keys[:count], random.permutation(keys[new:])
    rows, files = [], []
    for number, part in enumerate(np.array_split(wanted, RANGES)):
        rows.append(f"runs/bench/rows/range-{number:02d}.parquet")
        with storage.parquet_writer(rows[-1], RUN_ROW_SCHEMA) as writer:
            for start in range(0, len(part), ROWS_AT_ONCE):
                writer.write_table(_rows(part[start : start + ROWS_AT_ONCE]))
    schema = pa.schema([pa.field("key", pa.binary(KEY_BYTES), nullable=False)])
    for start in range(0, count, RESULTS_A_FILE):
        part = answered[start : start + RESULTS_A_FILE]
        order = results.key_order(part.view(">u8"))
        files.append(results.path(SPACE, f"{start:09d}"))
        table = pa.table([_column(part if order is None else part[order])], schema=schema)
        storage.write_parquet(files[-1], table)
    return Sources(rows=rows, results=files)


def _rows(part: npt.NDArray[np.uint64]) -> pa.Table:
    size, keys = len(part), _column(part)
    same = {
        "content_hash": keys[0],
        "metadata_hash": keys[0],
        "input": None,
        "text": "text",
        "metadata": "{}",
    }
    same |= {"chunk_id": "chunk", "document_id": "document", "partition": "all", "tokens": 600, "position": 0}
    columns = [
        keys if field.name == "key" else pa.repeat(pa.scalar(_plain(same[field.name]), field.type), size)
        for field in RUN_ROW_SCHEMA
    ]
    return pa.table(columns, schema=RUN_ROW_SCHEMA)


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def plan(folder: str, sources: Sources) -> tuple[Times, int]:
    """The times, and how many keys are missing."""
    watch = Stopwatch()
    with planning(Storage(f"file://{folder}"), sources) as planned:
        streamed = sum(len(keys) for keys, _, _ in planned.missing_items())
        assert streamed == planned.plan.missing
    return watch.times(), streamed


def measure(count: int) -> Figures:
    """One plan in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        sources = lay_out(Storage(f"file://{folder}"), count, count // 100)
        times, missing = apart(plan, folder, sources)
    assert missing == count // 100
    return Figures(count, count, missing, round(times.seconds, 1), round(times.peak_mb))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000_000)
    print(json.dumps(asdict(measure(parser.parse_args().keys))))


if __name__ == "__main__":
    main()
