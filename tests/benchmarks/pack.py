"""`pack` against its named floor: bare orjson.dumps, BLAKE2b and write of the same lines.

`python -m tests.benchmarks.pack --chunks 50000` prints one JSON object: seconds of both, their ratio
(1.0 is the floor's time), the same of processor time, peak memory at this size and at ten times it.
The floor has its texts sorted and ready in memory; `pack` reads rows from storage, divides their keys,
sorts, checks every line, and registers shards in a real ledger. Both take turns, each time in a
process of its own, and the best of some laps counts.
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
from include.ledger.connect import Connection, connect
from include.providers.openai import OpenAIBatches
from include.requests.keys import item_keys
from include.storage import Storage
from tests.benchmarks.measuring import Stopwatch, Times, apart, in_turns, ledger_server

RANGES = 16
ROWS_AT_ONCE = 2_000
WARM = "runs/warm/rows/range-00.parquet"
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
    floor_cpu_seconds: float
    pack_cpu_seconds: float
    cpu_ratio: float
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
    storage.write_parquet(WARM, run_table(space("").id, list(texts(100, size))))
    source = texts(count, size)
    paths = []
    for number in range(RANGES):
        path = f"{RUN.uri}/rows/range-{number:02d}.parquet"
        paths.append(path)
        left = count // RANGES + (number < count % RANGES)
        with storage.parquet_writer(path, RUN_ROW_SCHEMA, passing=True) as writer:
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


def floor(folder: str, paths: list[str]) -> Times:
    """Dumps, BLAKE2b and write of the lines, in key order."""
    storage = Storage(f"file://{folder}/storage")
    pairs: list[tuple[Any, Any]] = []
    for path in paths:
        with storage.parquet_file(path) as file:
            table = file.read(columns=["key", "text"])
            pairs += zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True)
    pairs.sort()
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
    return watch.times()


def ours(folder: str, ledger_url: str, paths: list[str], count: int, lap: int) -> Times:
    """`pack` over the same rows, from nothing to registered shards."""
    storage = Storage(f"file://{folder}/storage")
    with connect(ledger_url) as connection:
        # The first use of a library is seconds of its import, and no part of the rate.
        _pack(connection, storage, [WARM], f"warm {count} {lap}")
        watch = Stopwatch()
        sent = _pack(connection, storage, paths, f"{count} {lap}")
        times = watch.times()
    assert sent == count
    storage.delete("shards")
    return times


def _pack(connection: Connection, storage: Storage, paths: list[str], name: str) -> int:
    run = RunRef(name, RUN.workload, RUN.corpus, f"runs/{name}")
    runs.create(connection, run)
    report = pack(
        connection,
        storage,
        OpenAIBatches(None, None, account="bench"),
        space(name),
        LIMITS,
        run=run,
        rows=paths,
        account="bench",
        deployment="bench",
    )
    return report.sent


def measure(count: int, size: int, *, laps: int = 5, ten_times: bool = True) -> Figures:
    """Both over the same rows, and `pack` over ten times as many."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        storage = Storage(f"file://{folder}/storage")
        with ledger_server(folder) as url:
            paths = lay_out(storage, count, size)
            bare, packed = in_turns(
                laps,
                lambda lap: apart(floor, folder, paths),
                lambda lap: apart(ours, folder, url, paths, count, lap),
            )
            more: Times | None = None
            if ten_times:
                paths = lay_out(storage, 10 * count, size)
                more = apart(ours, folder, url, paths, 10 * count, 0)
    return Figures(
        chunks=count,
        bytes_a_chunk=size,
        floor_seconds=round(bare.seconds, 3),
        pack_seconds=round(packed.seconds, 3),
        ratio=round(packed.seconds / bare.seconds, 2),
        floor_cpu_seconds=round(bare.cpu_seconds, 3),
        pack_cpu_seconds=round(packed.cpu_seconds, 3),
        cpu_ratio=round(packed.cpu_seconds / bare.cpu_seconds, 2),
        lines_per_second=round(count / packed.seconds),
        floor_mb=round(bare.peak_mb),
        pack_mb=round(packed.peak_mb),
        ten_times_seconds=round(more.seconds, 3) if more else None,
        ten_times_mb=round(more.peak_mb) if more else None,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=2_400)
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--once", action="store_true", help="not ten times the size as well")
    options = parser.parse_args()
    figures = measure(options.chunks, options.bytes, laps=options.laps, ten_times=not options.once)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
