"""`pack` against its named floor: bare orjson.dumps, BLAKE2b and write of the same lines.

`python -m tests.benchmarks.pack --chunks 50000` prints one JSON object: seconds of both, their ratio
(1.0 is the floor's time), peak memory at this size and at ten times it. The floor has its texts sorted
and ready in memory; `pack` reads rows from storage, divides their keys, sorts, checks every line, and
registers shards in a real ledger. Each part runs in a process of its own; the best of some laps counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import pyarrow as pa

from include.batches import runs
from include.batches.pack import pack
from include.contracts import RUN_ROW_SCHEMA, Limits, RunRef, Space
from include.ledger.connect import connect
from include.providers.openai import OpenAIBatches
from include.requests.keys import item_keys
from include.storage import Storage
from tests.benchmarks.measuring import Stopwatch, apart, ledger_server

RANGES = 16
ROWS_AT_ONCE = 2_000
LIMITS = Limits(requests_per_batch=50_000, bytes_per_batch=200_000_000, inputs_per_batch=50_000)
RUN = RunRef("bench", "initial_ingest", "bench", "runs/bench")


@dataclass(frozen=True)
class Figures:
    """What was measured. `*_mb` are the processes' peak memory."""

    chunks: int
    bytes_a_chunk: int
    floor_seconds: float
    pack_seconds: float
    ratio: float
    lines_per_second: float
    floor_mb: float
    pack_mb: float
    ten_times_seconds: float | None
    ten_times_mb: float | None


def space(lap: str) -> Space:
    """Of each lap another, so that no lap finds the work of the one before."""
    return Space("openai", f"lap {lap}", "/v1/embeddings", "text-embedding-3-small", {"dimensions": 384})


def texts(count: int, size: int) -> Iterator[str]:
    """Windows of Python's help topics, no two alike."""
    from pydoc_data.topics import topics

    whole = "\n".join(text for _, text in sorted(topics.items()))
    for number in range(count):
        start = number * 997 % (len(whole) - size)
        mark = f"{number} "
        yield mark + whole[start : start + size - len(mark)]


def lay_out(storage: Storage, count: int, size: int) -> list[str]:
    """The run's rows, in ranges; returns their paths."""
    source = texts(count, size)
    paths = []
    for number in range(RANGES):
        path = f"{RUN.uri}/rows/range-{number:02d}.parquet"
        paths.append(path)
        left = count // RANGES + (number < count % RANGES)
        with storage.parquet_writer(path, RUN_ROW_SCHEMA) as writer:
            while left > 0:
                part = [text for _, text in zip(range(min(left, ROWS_AT_ONCE)), source, strict=False)]
                writer.write_table(run_table(space("").id, part))
                left -= len(part)
    return paths


def run_table(space_id: str, part: list[str]) -> pa.Table:
    """A row for each text, each a document by itself."""
    keys = item_keys(space_id, part)
    same = [b"0" * 16] * len(part)
    columns: list[Any] = [
        [key.hex() for key in keys],
        keys,
        [key.hex()[:12] for key in keys],
        same,
        same,
        ["all"] * len(part),
        list(range(len(part))),
        part,
        [None] * len(part),
        [len(text) // 4 for text in part],
        ["{}"] * len(part),
    ]
    return pa.table(columns, schema=RUN_ROW_SCHEMA)


def floor(folder: str, paths: list[str], laps: int) -> float:
    """Seconds of dumps, BLAKE2b and write of the lines, in key order."""
    storage = Storage(f"file://{folder}/storage")
    pairs: list[tuple[Any, Any]] = []
    for path in paths:
        with storage.parquet_file(path) as file:
            table = file.read(columns=["key", "text"])
            pairs += zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True)
    pairs.sort()
    times = []
    for _ in range(laps):
        watch = Stopwatch()
        hasher = hashlib.blake2b(digest_size=16)
        with open(f"{folder}/floor.jsonl", "wb") as target:
            for key, text in pairs:
                line = orjson.dumps(
                    {
                        "custom_id": key.hex(),
                        "method": "POST",
                        "url": "/v1/embeddings",
                        "body": {
                            "model": "text-embedding-3-small",
                            "input": text,
                            "dimensions": 384,
                            "encoding_format": "base64",
                        },
                    },
                    option=orjson.OPT_APPEND_NEWLINE,
                )
                hasher.update(line)
                target.write(line)
        times.append(watch.seconds())
    return min(times)


def ours(folder: str, ledger_url: str, paths: list[str], count: int, laps: int) -> float:
    """Seconds of `pack` over the same rows, from nothing to registered shards."""
    storage = Storage(f"file://{folder}/storage")
    provider = OpenAIBatches(None, None, account="bench")
    times = []
    with connect(ledger_url) as connection:
        for lap in range(laps):
            name = f"{count} {lap}"
            run = RunRef(name, RUN.workload, RUN.corpus, f"{RUN.uri}-{lap}")
            runs.create(connection, run)
            watch = Stopwatch()
            report = pack(
                connection,
                storage,
                provider,
                space(name),
                LIMITS,
                run=run,
                rows=paths,
                account="bench",
                deployment="bench",
            )
            times.append(watch.seconds())
            assert report.sent == count
            storage.delete("shards")
    return min(times)


def measure(count: int, size: int, *, laps: int = 3, ten_times: bool = True) -> Figures:
    """Both over the same rows, and `pack` over ten times as many."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        storage = Storage(f"file://{folder}/storage")
        with ledger_server(folder) as url:
            paths = lay_out(storage, count, size)
            floor_seconds, floor_mb = apart(floor, folder, paths, laps)
            seconds, pack_mb = apart(ours, folder, url, paths, count, laps)
            more_seconds: float | None = None
            more_mb: float | None = None
            if ten_times:
                paths = lay_out(storage, 10 * count, size)
                more_seconds, more_mb = apart(ours, folder, url, paths, 10 * count, 1)
    return Figures(
        chunks=count,
        bytes_a_chunk=size,
        floor_seconds=round(floor_seconds, 3),
        pack_seconds=round(seconds, 3),
        ratio=round(seconds / floor_seconds, 2),
        lines_per_second=round(count / seconds),
        floor_mb=round(floor_mb),
        pack_mb=round(pack_mb),
        ten_times_seconds=more_seconds and round(more_seconds, 3),
        ten_times_mb=more_mb and round(more_mb),
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=2_400)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--once", action="store_true", help="not ten times the size as well")
    options = parser.parse_args()
    figures = measure(options.chunks, options.bytes, laps=options.laps, ten_times=not options.once)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
