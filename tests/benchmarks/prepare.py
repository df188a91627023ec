"""`prepare` against its named floor: the splitter and the tokenizer alone on the same text.

`python -m tests.benchmarks.prepare --megabytes 5` prints one JSON object: seconds of both, their ratio
(1.0 is the floor's time), peak memory at this size and at ten times it. The floor cuts each document
and counts each piece; `prepare` also reads and checks records, compares the document table, hashes, and
writes rows and chunks. It counts only a part of the pieces and estimates the rest, so it can be faster.
Both take turns, each time in a process of its own, and the best of some laps counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from include.contracts import RunRef
from include.corpora import tokens
from include.corpora.config import CorpusConfig
from include.corpora.prepare import prepare
from include.ledger.connect import connect
from include.storage import Storage
from tests.benchmarks.measuring import Stopwatch, Times, apart, in_turns, ledger_server


@dataclass(frozen=True)
class Figures:
    """What was measured. `*_mb` are the processes' peak memory."""

    megabytes: float
    documents: int
    chunks: int
    floor_seconds: float
    prepare_seconds: float
    ratio: float
    cpu_ratio: float
    megabytes_per_second: float
    floor_mb: float
    prepare_mb: float
    ten_times_seconds: float | None
    ten_times_mb: float | None


def texts(size: int) -> Iterator[tuple[str, str]]:
    """Documents of Python's help topics, no two alike, of about `size` characters in all."""
    from pydoc_data.topics import topics

    for lap in itertools.count():
        for topic, text in sorted(topics.items()):
            yield f"{topic}/{lap}", f"Edition {lap}. {text}"
            size -= len(text)
            if size <= 0:
                return


def lay_out(path: str, size: int) -> None:
    """One JSONL file of such documents."""
    with open(path, "wb") as file:
        for id, text in texts(size):
            file.write(orjson.dumps({"id": id, "text": text}) + b"\n")


def config_of(path: str) -> CorpusConfig:
    """A corpus of that file, all else as it is by default."""
    return CorpusConfig.model_validate(
        {
            "corpus": "bench",
            "source": {"kind": "jsonl", "url": path},
            "embedding": {"model": "text-embedding-3-small"},
        }
    )


def floor(path: str) -> Times:
    """The splitter over each document, and the tokenizer over what it cuts."""
    from semantic_text_splitter import TextSplitter

    config = config_of(path)
    chunking = config.chunking
    splitter = TextSplitter.from_tiktoken_model(
        config.embedding.model, chunking.tokens, chunking.overlap, False
    )
    tokens.encoding()
    # What is read isn't measured: whoever cuts text has it.
    with open(path, "rb") as file:
        documents = [str(orjson.loads(line)["text"]) for line in file]
    watch = Stopwatch()
    for text in documents:
        tokens.count([piece for _, piece in splitter.chunk_indices(text)])
    return watch.times()


def ours(folder: str, ledger_url: str, path: str, lap: int) -> tuple[Times, int, int]:
    """`prepare` of the same file, in a corpus of its own; with its documents and chunks."""
    config = config_of(path).model_copy(update={"corpus": f"bench{lap}"})
    tokens.encoding()
    with connect(ledger_url) as connection:
        watch = Stopwatch()
        report = prepare(
            connection,
            Storage(f"file://{folder}/storage"),
            config,
            run=RunRef(f"bench{lap}", "initial_ingest", config.corpus, f"runs/bench{lap}"),
            space_id=config.space("bench").id,
        )
        return watch.times(), report.read, report.chunks


def measure(megabytes: float, *, laps: int = 3, ten_times: bool = True) -> Figures:
    """Both over the same text, and `prepare` over ten times as much."""
    documents = chunks = 0
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "source.jsonl")
        with ledger_server(folder) as url:
            lay_out(path, int(megabytes * 1e6))

            def prepared(lap: int) -> Times:
                nonlocal documents, chunks
                times, documents, chunks = apart(ours, folder, url, path, lap)
                return times

            bare, prepared_times = in_turns(laps, lambda lap: apart(floor, path), prepared)
            more: Times | None = None
            if ten_times:
                lay_out(path, int(10 * megabytes * 1e6))
                more, _, _ = apart(ours, folder, url, path, laps)
    return Figures(
        megabytes=megabytes,
        documents=documents,
        chunks=chunks,
        floor_seconds=round(bare.seconds, 3),
        prepare_seconds=round(prepared_times.seconds, 3),
        ratio=round(prepared_times.seconds / bare.seconds, 2),
        cpu_ratio=round(prepared_times.cpu_seconds / bare.cpu_seconds, 2),
        megabytes_per_second=round(megabytes / prepared_times.seconds, 2),
        floor_mb=round(bare.peak_mb),
        prepare_mb=round(prepared_times.peak_mb),
        ten_times_seconds=round(more.seconds, 3) if more else None,
        ten_times_mb=round(more.peak_mb) if more else None,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--laps", type=int, default=2)
    parser.add_argument("--once", action="store_true", help="not ten times the size as well")
    options = parser.parse_args()
    print(json.dumps(asdict(measure(options.megabytes, laps=options.laps, ten_times=not options.once))))


if __name__ == "__main__":
    main()
