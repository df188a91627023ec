"""`land` against its named floor: the bare parser of the answers, with the same Parquet write.

`python -m tests.benchmarks.land --kind base64` prints one JSON object: seconds of both, their ratio
(1.0 is the floor's time), peak memory at this size and, with `--ten-times`, at ten times it. Kinds:
`base64` against orjson + pybase64 + `frombuffer`, `list` against simdjson's buffer, and `chat`
(structured answers as text) against orjson. Both read a file on this disk: the download isn't
measured. Both take turns, each time in a process of its own, and the best of some laps counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import pendulum
import pybase64

from include.batches import runs, shards
from include.batches.land import land
from include.batches.pack import pack
from include.contracts import BatchState, BatchStatus, Limits, Outcome, Price, RunRef, Space
from include.ledger.connect import connect
from include.providers.downloads import lines
from include.providers.openai import OpenAIBatches
from include.providers.openai_lines import LineReader
from include.requests import results
from include.requests.keys import item_keys
from include.storage import Storage
from tests.benchmarks.measuring import Stopwatch, Times, apart, in_turns, ledger_server
from tests.benchmarks.pack import run_table

Kind = Literal["base64", "list", "chat"]
RUN = RunRef("bench", "initial_ingest", "bench", "runs/bench")
LIMITS = Limits(requests_per_batch=1_000_000, bytes_per_batch=1 << 40)
ANSWER = {"entities": ["Python", "list", "tuple"], "summary": "What a paragraph says, in a sentence. " * 5}


@dataclass(frozen=True)
class Figures:
    """What was measured. `*_mb` are the processes' peak memory; `megabytes` is the answers' file."""

    kind: str
    lines: int
    dimensions: int | None
    megabytes: float
    floor_seconds: float
    land_seconds: float
    ratio: float
    cpu_ratio: float
    lines_per_second: float
    floor_mb: float
    land_mb: float
    ten_times_seconds: float | None
    ten_times_mb: float | None


class FromDisk(OpenAIBatches):
    """The provider, with a batch that has ended and answers that are downloaded already."""

    def __init__(self, answers: str) -> None:
        super().__init__(None, None, account="bench")
        self._answers = answers

    def status(self, batch_id: str) -> BatchStatus:
        return BatchStatus(batch_id, BatchState.ENDED, "completed", output_file_id="answers")

    def outcomes(self, status: BatchStatus, space: Space) -> Iterator[Outcome]:
        reader = LineReader(space)
        with open(self._answers, "rb") as file:
            for line in lines(file):
                yield reader.read(line)


def space_of(kind: Kind, dimensions: int) -> Space:
    """Where the answers belong."""
    if kind == "chat":
        return Space("openai", "bench", "/v1/chat/completions", "gpt-4o-mini")
    return Space("openai", "bench", "/v1/embeddings", "text-embedding-3-small", {"dimensions": dimensions})


def lay_out(folder: str, ledger_url: str, kind: Kind, count: int, dimensions: int) -> str:
    """A packed shard whose batch has ended, and the file of its answers; returns the file's path."""
    storage, space = Storage(f"file://{folder}/storage"), space_of(kind, dimensions)
    inputs = [f"text {number}" if kind != "chat" else f'{{"messages":[{number}]}}' for number in range(count)]
    path = f"{RUN.uri}/rows/range-00.parquet"
    storage.write_parquet(path, run_table(space.id, inputs))
    with connect(ledger_url) as connection:
        runs.create(connection, RUN)
        pack(
            connection,
            storage,
            OpenAIBatches(None, None, account="bench"),
            space,
            LIMITS,
            run=RUN,
            rows=[path],
            account="bench",
            deployment="bench",
            structured=kind == "chat",
        )
        connection.execute("update submissions set batch_id = 'batch'")
    answers = f"{folder}/answers.jsonl"
    random = np.random.default_rng(0)
    with open(answers, "wb") as file:
        for key in sorted(item_keys(space.id, inputs)):
            file.write(_answer(kind, key.hex(), random.normal(size=dimensions).astype("<f4")))
    return answers


def _answer(kind: Kind, custom_id: str, vector: Any) -> bytes:
    usage: dict[str, Any] = {"prompt_tokens": 600, "total_tokens": 600}
    if kind == "chat":
        message = {"role": "assistant", "content": json.dumps(ANSWER), "refusal": None}
        body: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "model": "gpt-4o-mini",
            "usage": {**usage, "completion_tokens": 80},
        }
    else:
        value = vector.astype(np.float64).tolist() if kind == "list" else pybase64.b64encode_as_string(vector)
        body = {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": value}],
            "model": "text-embedding-3-small",
            "usage": usage,
        }
    response = {"status_code": 200, "request_id": "req_1", "body": body}
    return orjson.dumps(
        {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None},
        option=orjson.OPT_APPEND_NEWLINE,
    )


def floor(folder: str, answers: str, kind: Kind, dimensions: int) -> Times:
    """Reading, parsing and decoding the lines, and of the same Parquet write."""
    storage = Storage(f"file://{folder}/floor")
    width = None if kind == "chat" else dimensions
    parse = {"base64": _parse_base64, "list": _list_parser(), "chat": _parse_chat}[kind]
    watch = Stopwatch()
    with results.writing(storage, "floor.parquet", width, pendulum.now("UTC")) as writer:
        keys: list[bytes] = []
        values: list[Any] = []

        def flush(keys: list[bytes], values: list[Any], writer: results.ResultsWriter = writer) -> None:
            size = len(keys)
            block = values if kind == "chat" else np.array(values, np.float32)
            writer.write(b"".join(keys), block, [600] * size, [0] * size, ["model"] * size)

        with open(answers, "rb") as file:
            for line in file:
                custom_id, value = parse(line)
                keys.append(bytes.fromhex(custom_id))
                values.append(value)
                if len(keys) == results.group_rows(width):
                    flush(keys, values)
                    keys, values = [], []
        flush(keys, values)
    return watch.times()


def _parse_base64(line: bytes) -> tuple[str, Any]:
    record = orjson.loads(line)
    text = record["response"]["body"]["data"][0]["embedding"]
    return record["custom_id"], np.frombuffer(pybase64.b64decode(text, validate=True), "<f4")


def _parse_chat(line: bytes) -> tuple[str, Any]:
    record = orjson.loads(line)
    return record["custom_id"], record["response"]["body"]["choices"][0]["message"]["content"]


def _list_parser() -> Callable[[bytes], tuple[str, Any]]:
    import simdjson

    parser = simdjson.Parser()

    def parse(line: bytes) -> tuple[str, Any]:
        record: Any = parser.parse(line)
        vector = record["response"]["body"]["data"][0]["embedding"]
        value = np.frombuffer(vector.as_buffer(of_type="d"), np.float64).astype(np.float32)
        return record["custom_id"], value

    return parse


def ours(folder: str, ledger_url: str, answers: str, kind: Kind, dimensions: int) -> Times:
    """`land` of the same answers."""
    storage, space = Storage(f"file://{folder}/storage"), space_of(kind, dimensions)
    # The first use of a library is seconds of its import, and no part of the rate.
    LineReader(space)
    with connect(ledger_url) as connection:
        (entry,) = shards.of_run(connection, RUN.run, 1)
        connection.execute("update submissions set state = 'ended'")
        watch = Stopwatch()
        report = land(
            connection,
            storage,
            FromDisk(answers),
            space,
            Price(input=0.02),
            entry.shard.id,
            entry.attempt,
            dimensions=None if kind == "chat" else dimensions,
        )
        times = watch.times()
    assert report.succeeded == report.items == entry.shard.items, report
    return times


def measure(kind: Kind, count: int, dimensions: int, *, laps: int = 3, ten_times: bool = False) -> Figures:
    """Both over the same answers, and `land` over ten times as many."""
    with _laid_out(kind, count, dimensions) as (folder, url, answers):
        bare, landed = in_turns(
            laps,
            lambda lap: apart(floor, folder, answers, kind, dimensions),
            lambda lap: apart(ours, folder, url, answers, kind, dimensions),
        )
        size = Path(answers).stat().st_size
    more: Times | None = None
    if ten_times:
        with _laid_out(kind, 10 * count, dimensions) as (folder, url, answers):
            more = apart(ours, folder, url, answers, kind, dimensions)
    return Figures(
        kind=kind,
        lines=count,
        dimensions=None if kind == "chat" else dimensions,
        megabytes=round(size / 1e6, 1),
        floor_seconds=round(bare.seconds, 3),
        land_seconds=round(landed.seconds, 3),
        ratio=round(landed.seconds / bare.seconds, 2),
        cpu_ratio=round(landed.cpu_seconds / bare.cpu_seconds, 2),
        lines_per_second=round(count / landed.seconds),
        floor_mb=round(bare.peak_mb),
        land_mb=round(landed.peak_mb),
        ten_times_seconds=round(more.seconds, 3) if more else None,
        ten_times_mb=round(more.peak_mb) if more else None,
    )


@contextmanager
def _laid_out(kind: Kind, count: int, dimensions: int) -> Iterator[tuple[str, str, str]]:
    """(folder, ledger's URL, file of answers) for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        with ledger_server(folder) as url:
            yield folder, url, lay_out(folder, url, kind, count, dimensions)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["base64", "list", "chat"], default="base64")
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--dimensions", type=int, default=1_536)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--ten-times", action="store_true", help="ten times the size as well")
    options = parser.parse_args()
    figures = measure(
        options.kind, options.lines, options.dimensions, laps=options.laps, ten_times=options.ten_times
    )
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
