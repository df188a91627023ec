"""What a run that was prepared anew doesn't want any more is neither sent nor left claimed."""

from __future__ import annotations

import pytest

from include.batches import submissions
from include.ledger.connect import Connection
from include.storage import Storage
from tests.batches.packing import SMALL, Bench
from tests.batches.submitting import batches, openai_provider
from tests.emulators import Tenant

TEXTS = [f"text number {number}" for number in range(8)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage, emulator: Tenant) -> Bench:
    bench = Bench(ledger, storage, openai_provider(emulator.openai_url, emulator.project), TEXTS)
    bench.pack(SMALL)
    return bench


def states(bench: Bench) -> list[str]:
    return sorted(row.state for row in submissions.of_run(bench.ledger, bench.run.run))


def test_planned_shards_of_a_source_that_changed_are_not_paid_for(bench: Bench, emulator: Tenant) -> None:
    bench.write_rows(["the only right text"])
    report = bench.pack(SMALL)
    assert (report.sent, report.lines, len(report.shards)) == (1, 1, 1)
    assert bench.pack(SMALL) == report
    assert states(bench) == ["planned", "void", "void"]
    bench.process(emulator)
    assert [batch["request_counts"]["total"] for batch in batches(emulator)] == [1]
    assert bench.reconcile().succeeded == 1


def test_a_shard_that_was_sent_stays_listed_to_be_landed(bench: Bench) -> None:
    sent, planned = bench.listed()
    bench.submit(sent)
    bench.write_rows(["the only right text"])
    bench.pack(SMALL)
    assert sent in bench.listed() and planned not in bench.listed()
    assert states(bench) == ["planned", "running", "void"]


def test_a_shard_with_one_wanted_item_stays(bench: Bench) -> None:
    before = bench.listed()
    bench.write_rows([bench.sent_texts()[0], "another text"])
    bench.pack(SMALL)
    first, second, new = before[0], before[1], bench.listed()[-1]
    assert bench.listed() == [first, new] and second != new


def test_what_another_run_wants_leaves_only_this_list(
    bench: Bench, ledger: Connection, storage: Storage
) -> None:
    other = Bench(ledger, storage, bench.provider, bench.sent_texts()[:1], run="other")
    other.pack()
    bench.write_rows(["the only right text"])
    bench.pack(SMALL)
    (kept,) = other.listed()
    row = submissions.get(ledger, kept.shard.id, kept.attempt)
    assert row is not None and row.state == "planned"
    assert kept.shard not in [entry.shard for entry in bench.listed()]
