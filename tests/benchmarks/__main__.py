"""`make bench`: every hot loop against its named floor, in one run; a table to read and a JSON file.

`python -m tests.benchmarks [name…] [--json PATH]`. Each benchmark is a module of this folder that
prints one JSON object and can be run by itself. What a floor is, its module says.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from include.contracts import PROJECT_ROOT


@dataclass(frozen=True)
class Benchmark:
    """How a module is called, and where its figures stand.

    `floor` says what `ratio` compares with; `most` and `least` bound the field `ratio` (or `value`,
    where there is no floor); `memory` names the fields with peak memory, in MB.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    what: str
    floor: str
    value: str
    memory: tuple[str, ...]
    most: float | None = None
    least: float | None = None
    most_mb: float = 400


BENCHMARKS = (
    Benchmark(
        "prepare",
        "prepare",
        (),
        "{documents} documents, {chunks} chunks in {prepare_seconds} s",
        "splitter and tokenizer alone",
        "ratio",
        ("prepare_mb",),
        most=1.5,
    ),
    Benchmark(
        "pack",
        "pack",
        (),
        "{chunks} chunks of {bytes_a_chunk} B in {pack_seconds} s",
        "orjson.dumps + BLAKE2b + write",
        "ratio",
        ("pack_mb", "ten_times_mb"),
        most=1.6,
    ),
    Benchmark(
        "land base64",
        "land",
        ("--kind", "base64", "--ten-times"),
        "{lines} lines x {dimensions} in {land_seconds} s",
        "orjson + pybase64 + frombuffer, same Parquet",
        "ratio",
        ("land_mb", "ten_times_mb"),
        most=1.6,
    ),
    Benchmark(
        "land lists",
        "land",
        ("--kind", "list"),
        "{lines} lines x {dimensions} in {land_seconds} s",
        "simdjson's buffer, same Parquet",
        "ratio",
        ("land_mb",),
        most=1.6,
    ),
    Benchmark(
        "land chat",
        "land",
        ("--kind", "chat"),
        "{lines} structured answers in {land_seconds} s",
        "lines a second; three times LLMBatchOperator's 12,100",
        "lines_per_second",
        ("land_mb",),
        least=36_300,
    ),
    Benchmark(
        "plan",
        "plan_keys",
        (),
        "{keys} keys against {results} results, {missing} missing",
        "seconds",
        "seconds",
        ("peak_mb",),
        most=60,
        most_mb=4_000,
    ),
    Benchmark(
        "upsert",
        "upsert",
        (),
        "{rows} rows x {dimensions} at {upsert_per_second}/s",
        "merge_insert of the same rows; 1 is its rate",
        "ratio",
        ("upsert_mb",),
        least=0.85,
        most_mb=1_000,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """One benchmark's figures, and whether they keep within their bounds."""

    benchmark: Benchmark
    figures: dict[str, Any]

    @property
    def value(self) -> float:
        """The figure that is bounded."""
        return float(self.figures[self.benchmark.value])

    @property
    def peak_mb(self) -> float:
        """The largest of the peaks."""
        return max(float(self.figures.get(field) or 0) for field in self.benchmark.memory)

    @property
    def bound(self) -> str:
        """The bound, for people."""
        most, least = self.benchmark.most, self.benchmark.least
        return f"≤ {most:,g}" if most is not None else f"≥ {least:,g}"

    @property
    def kept(self) -> bool:
        """Whether the value and the memory are within their bounds."""
        most, least = self.benchmark.most, self.benchmark.least
        fits = (most is None or self.value <= most) and (least is None or self.value >= least)
        return fits and self.peak_mb <= self.benchmark.most_mb


def run(benchmark: Benchmark) -> Outcome:
    """Run one benchmark in a process of its own."""
    command = [sys.executable, "-m", f"tests.benchmarks.{benchmark.module}", *benchmark.arguments]
    done = subprocess.run(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, check=True)
    return Outcome(benchmark, json.loads(done.stdout[done.stdout.index(b"{") :]))


def show(outcomes: list[Outcome], console: Console) -> None:
    """Print the table."""
    table = Table("", "measured", "against", "figure", "bound", "peak MB", "")
    for outcome in outcomes:
        figures = {
            name: f"{value:,}" if isinstance(value, int) else value for name, value in outcome.figures.items()
        }
        table.add_row(
            outcome.benchmark.name,
            outcome.benchmark.what.format(**figures),
            outcome.benchmark.floor,
            f"{outcome.value:,.2f}",
            outcome.bound,
            f"{outcome.peak_mb:,.0f}",
            "kept" if outcome.kept else "missed",
        )
    console.print(table)


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
    console = Console(width=140)
    outcomes = []
    for benchmark in BENCHMARKS:
        if not options.names or benchmark.name in options.names:
            console.print(f"{benchmark.name} …")
            outcomes.append(run(benchmark))
    show(outcomes, console)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    summary = {
        outcome.benchmark.name: {**outcome.figures, "bound": outcome.bound, "kept": outcome.kept}
        for outcome in outcomes
    }
    options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {options.json}")
    return 0 if all(outcome.kept for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
