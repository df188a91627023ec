"""`make bench`: every hot loop against its named floor, in one run; a table to read and a JSON file.

`python -m tests.benchmarks [name…] [--json PATH]`. Each benchmark is a module of this folder that
prints one JSON object and can be run by itself. What a floor is, its module says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from include.contracts import PROJECT_ROOT


@dataclass(frozen=True)
class Bound:
    """A field of a benchmark's figures, what it is compared with, and what it is to keep within, if
    anything."""

    field: str
    what: str
    most: float | None = None
    least: float | None = None

    @property
    def told(self) -> str:
        """The bound, for people."""
        if self.most is not None:
            return f"≤ {self.most:,g}"
        return "" if self.least is None else f"≥ {self.least:,g}"

    def kept(self, figures: dict[str, Any]) -> bool:
        """Whether the field is within the bound; one that wasn't measured is."""
        value = figures.get(self.field)
        if value is None:
            return True
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


@dataclass(frozen=True)
class Benchmark:
    """How a module is called, and what its figures are to keep within.

    `memory` names the fields with peak memory in MB, those of ten times the size last.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    measured: str
    bounds: tuple[Bound, ...]
    memory: tuple[str, ...]
    ten_times_memory: tuple[str, ...] = ()
    most_mb: float = 400


def _land(kind: str, against: Bound) -> Benchmark:
    what = "{lines} structured answers" if kind == "chat" else "{lines} lines x {dimensions}"
    return Benchmark(
        f"land {kind}",
        "land",
        ("--kind", kind, "--ten-times"),
        what + ", {lines_per_second}/s",
        (against,),
        ("land_mb",),
        ("ten_times_mb",),
    )


BENCHMARKS = (
    Benchmark(
        "prepare",
        "prepare",
        (),
        "{megabytes} MB, {chunks} chunks in {prepare_seconds} s",
        (Bound("ratio", "time of splitter and tokenizer alone", most=1.5),),
        ("prepare_mb",),
        ("ten_times_mb",),
    ),
    Benchmark(
        "pack",
        "pack",
        (),
        "{chunks} chunks of {bytes_a_chunk} B, {lines_per_second}/s",
        (Bound("ratio", "time of orjson.dumps + BLAKE2b + write", most=1.6),),
        ("pack_mb",),
        ("ten_times_mb",),
    ),
    _land("base64", Bound("ratio", "time of orjson + pybase64 + frombuffer, same Parquet", most=1.6)),
    _land("list", Bound("ratio", "time of simdjson's buffer, same Parquet", most=1.6)),
    _land("chat", Bound("lines_per_second", "lines a second; 3 x LLMBatchOperator's 12,100", least=36_300)),
    Benchmark(
        "upsert",
        "upsert",
        (),
        "{rows} rows x {dimensions}, {upsert_per_second}/s new, {changed_per_second}/s changed, "
        "{unchanged_per_second}/s unchanged",
        (
            Bound("ratio", "rate of LanceDB's append of ready batches", least=0.85),
            Bound("ratio_changed", "rate of its merge_insert of ready batches", least=0.85),
            Bound("ratio_to_stream", "rate of its append of one ready stream"),
        ),
        ("upsert_mb", "changed_mb", "unchanged_mb"),
        ("ten_times_mb", "ten_times_changed_mb", "ten_times_unchanged_mb"),
    ),
    Benchmark(
        "plan",
        "plan_keys",
        (),
        "{keys} keys against {results} results, {missing} missing",
        (Bound("seconds", "seconds", most=60),),
        ("peak_mb",),
        most_mb=4_000,
    ),
    Benchmark(
        "one file",
        "one_file",
        (),
        "{megabytes} MB of JSONL in {prepare_seconds} s and {pack_seconds} s",
        (Bound("ratio", "peak memory of a tenth of the file", most=1.1),),
        ("tenth_prepare_mb", "tenth_pack_mb"),
        ("prepare_mb", "pack_mb"),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """One benchmark's figures, and how long it took in all."""

    benchmark: Benchmark
    figures: dict[str, Any]
    seconds: float

    def peak(self, fields: tuple[str, ...]) -> float | None:
        """The largest of these peaks, in MB."""
        there = [float(self.figures[field]) for field in fields if self.figures.get(field) is not None]
        return max(there, default=None)

    @property
    def memory_kept(self) -> bool:
        """Whether no peak is above the bound."""
        fields = self.benchmark.memory + self.benchmark.ten_times_memory
        return (self.peak(fields) or 0) <= self.benchmark.most_mb

    @property
    def kept(self) -> bool:
        """Whether everything is within its bound."""
        return self.memory_kept and all(bound.kept(self.figures) for bound in self.benchmark.bounds)

    def as_json(self) -> dict[str, Any]:
        """The figures, with the bounds and whether they were kept."""
        bounds = {bound.field: bound.told for bound in self.benchmark.bounds}
        return {
            **self.figures,
            "bounds": {**bounds, "peak_mb": f"≤ {self.benchmark.most_mb:,g}"},
            "kept": self.kept,
            "seconds_in_all": round(self.seconds, 1),
        }


def run(benchmark: Benchmark) -> Outcome:
    """Run one benchmark in a process of its own."""
    command = [sys.executable, "-m", f"tests.benchmarks.{benchmark.module}", *benchmark.arguments]
    began = time.monotonic()
    done = subprocess.run(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, check=True)
    figures = json.loads(done.stdout[done.stdout.index(b"{") :])
    return Outcome(benchmark, figures, time.monotonic() - began)


def show(outcomes: list[Outcome], console: Console) -> None:
    """Print the table."""
    table = Table("", "measured", "against", "figure", "bound", "MB", "MB at 10x", "")
    for outcome in outcomes:
        benchmark = outcome.benchmark
        figures = {
            name: f"{value:,}" if isinstance(value, int) else value for name, value in outcome.figures.items()
        }
        for place, bound in enumerate(benchmark.bounds):
            first = place == 0
            within = bound.kept(outcome.figures) and (outcome.memory_kept or not first)
            table.add_row(
                benchmark.name if first else "",
                benchmark.measured.format(**figures) if first else "",
                bound.what,
                f"{outcome.figures[bound.field]:,.2f}".removesuffix(".00"),
                bound.told,
                _megabytes(outcome.peak(benchmark.memory)) if first else "",
                _megabytes(outcome.peak(benchmark.ten_times_memory)) if first else "",
                ("kept" if within else "missed") if bound.told else "",
            )
    console.print(table)


def _megabytes(peak: float | None) -> str:
    return "" if peak is None else f"{peak:,.0f}"


def main() -> int:
    """The command line; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("names", nargs="*", help=f"which of: {', '.join(names)}; all by default")
    parser.add_argument("--json", type=Path, default=PROJECT_ROOT / ".local" / "bench.json")
    options = parser.parse_args()
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    console = Console(width=150)
    outcomes = []
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} processors, load {load:.1f} before the first of them")
    for benchmark in BENCHMARKS:
        if not options.names or benchmark.name in options.names:
            console.print(f"{benchmark.name} …")
            outcomes.append(run(benchmark))
    show(outcomes, console)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"processors": os.cpu_count(), "load_before": round(load, 1)}
    summary |= {outcome.benchmark.name: outcome.as_json() for outcome in outcomes}
    options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {options.json}")
    return 0 if all(outcome.kept for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
