"""One JSONL file of a gigabyte through `prepare` and `pack`: memory is that of a tenth of it.

`python -m tests.benchmarks.one_file` prints one JSON object: peak memory of both steps at 100 MB and at
1,000 MB, and their ratio, which is to stay at 1. A record has 400 bytes of text and 3.6 kB of a field that
is kept as metadata: all of the file goes through both the reader and the rows, and cutting text, which
takes ten times as long as all else, doesn't fill the time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from include.batches import runs
from include.batches.pack import pack
from include.contracts import Limits, RunRef
from include.corpora.config import CorpusConfig
from include.corpora.prepare import prepare
from include.corpora.rows import range_path
from include.ledger.connect import connect
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.benchmarks.measuring import Stopwatch, Times, apart, ledger_server
from tests.benchmarks.pack import texts

TEXT_BYTES = 400
KEPT_BYTES = 3_600
RANGES = 16
LIMITS = Limits(requests_per_batch=50_000, bytes_per_batch=200_000_000, inputs_per_batch=50_000)


@dataclass(frozen=True)
class Figures:
    """What was measured. `*_mb` are the steps' peak memory, `ratio` the larger file's to the smaller's."""

    megabytes: int
    records: int
    prepare_seconds: float
    pack_seconds: float
    tenth_prepare_mb: float
    tenth_pack_mb: float
    prepare_mb: float
    pack_mb: float
    ratio: float


def lay_out(path: str, megabytes: int) -> int:
    """The file; returns how many records it has."""
    count = megabytes * 1_000_000 // (TEXT_BYTES + KEPT_BYTES)
    kept = texts(count, KEPT_BYTES)
    with open(path, "wb", buffering=1 << 20) as file:
        for number, text in enumerate(texts(count, TEXT_BYTES)):
            record = {"id": f"record-{number}", "text": text, "notes": next(kept)}
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
    return count


def prepared(folder: str, ledger_url: str, path: str) -> tuple[Times, int]:
    """`prepare` of the file, with the chunks it made."""
    config = _config(path)
    with connect(ledger_url) as connection:
        runs.create(connection, _run())
        watch = Stopwatch()
        report = prepare(
            connection,
            Storage(f"file://{folder}/storage"),
            config,
            run=_run(),
            space_id=config.space("bench").id,
            ranges=RANGES,
        )
        return watch.times(), report.chunks


def packed(folder: str, ledger_url: str, path: str) -> tuple[Times, int]:
    """`pack` of its rows, with the items it sent."""
    run = _run()
    with connect(ledger_url) as connection:
        watch = Stopwatch()
        report = pack(
            connection,
            Storage(f"file://{folder}/storage"),
            OpenAIBatches(None, None, account="bench"),
            _config(path).space("bench"),
            LIMITS,
            run=run,
            rows=[range_path(run, number) for number in range(RANGES)],
            account="bench",
            deployment="bench",
        )
        return watch.times(), report.sent


def _run() -> RunRef:
    return RunRef("bench", "initial_ingest", "bench", "runs/bench")


def _config(path: str) -> CorpusConfig:
    return CorpusConfig.model_validate(
        {
            "corpus": "bench",
            "source": {"kind": "jsonl", "url": path, "metadata": ["notes"]},
            "embedding": {"model": "text-embedding-3-small"},
        }
    )


def through(megabytes: int) -> tuple[int, Times, Times]:
    """Records, and the times of both steps, over a file of this size."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "source.jsonl")
        records = lay_out(path, megabytes)
        with ledger_server(folder) as url:
            first, chunks = apart(prepared, folder, url, path)
            second, sent = apart(packed, folder, url, path)
    assert chunks >= sent == records, (chunks, sent, records)
    return records, first, second


def measure(megabytes: int) -> Figures:
    """A tenth of the size, and the size."""
    _, tenth_prepare, tenth_pack = through(megabytes // 10)
    records, whole_prepare, whole_pack = through(megabytes)
    return Figures(
        megabytes=megabytes,
        records=records,
        prepare_seconds=round(whole_prepare.seconds, 1),
        pack_seconds=round(whole_pack.seconds, 1),
        tenth_prepare_mb=round(tenth_prepare.peak_mb),
        tenth_pack_mb=round(tenth_pack.peak_mb),
        prepare_mb=round(whole_prepare.peak_mb),
        pack_mb=round(whole_pack.peak_mb),
        ratio=round(
            max(whole_prepare.peak_mb, whole_pack.peak_mb) / max(tenth_prepare.peak_mb, tenth_pack.peak_mb), 2
        ),
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_000)
    print(json.dumps(asdict(measure(parser.parse_args().megabytes))))


if __name__ == "__main__":
    main()
