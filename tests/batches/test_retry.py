"""The second attempt: what may yet succeed is asked once more, and nothing else."""

from __future__ import annotations

import pytest

from include.batches import submissions
from include.contracts import Limits
from include.ledger.connect import Connection
from include.requests.keys import item_key
from include.storage import Storage
from tests.batches.packing import SMALL, Bench
from tests.batches.submitting import SPACE, openai_provider
from tests.emulators import Emulator

TEXTS = [f"retried text {number}" for number in range(10)]
PACKED = Limits(50_000, 200_000_000, inputs_per_request=2048)


def line_error(text: str, status: int, code: str, **when: object) -> dict[str, object]:
    custom_id = item_key(SPACE.id, text).hex()
    return {
        "on": "line",
        "when": {"custom_id": custom_id, **when},
        "do": "line_error",
        "status": status,
        "code": code,
    }


@pytest.fixture
def bench(ledger: Connection, storage: Storage, calm_emulator: Emulator) -> Bench:
    return Bench(ledger, storage, openai_provider(calm_emulator.openai_url), TEXTS)


class TestTheSecondAttempt:
    def test_failures_of_all_shards_are_packed_together(self, bench: Bench, calm_emulator: Emulator) -> None:
        calm_emulator.faults(*(line_error(text, 500, "server_error", nth=1) for text in TEXTS[:7]))
        assert len(bench.pack(SMALL).shards) == 3
        bench.process(calm_emulator)
        report = bench.pack_retry()
        assert (report.items, report.sent, len(report.shards)) == (7, 7, 1)
        assert sorted(bench.sent_texts(round=2)) == sorted(TEXTS[:7])
        assert [landed.succeeded for landed in bench.process(calm_emulator, round=2)] == [7]
        assert bench.bury().total == 0
        accounts = bench.reconcile()
        assert (accounts.items, accounts.succeeded, accounts.dead_lettered) == (10, 10, 0)

    def test_a_shard_that_failed_as_a_whole_is_a_new_attempt_at_the_same_shard(
        self, bench: Bench, calm_emulator: Emulator
    ) -> None:
        calm_emulator.faults({"on": "batch", "when": {"nth": 1}, "do": "expire_at", "fraction": 0.0})
        first = bench.pack()
        bench.process(calm_emulator)
        second = bench.pack_retry()
        assert second.shards == first.shards
        assert [entry.attempt for entry in bench.listed(2)] == [2]
        assert [row.attempt for row in submissions.attempts(bench.ledger, first.shards[0])] == [1, 2]
        bench.process(calm_emulator, round=2)
        assert bench.reconcile().succeeded == 10

    def test_packing_it_again_changes_nothing(self, bench: Bench, calm_emulator: Emulator) -> None:
        calm_emulator.faults(line_error(TEXTS[0], 500, "server_error"))
        bench.pack()
        bench.process(calm_emulator)
        report = bench.pack_retry()
        assert bench.pack_retry() == report
        bench.process(calm_emulator, round=2)
        bench.bury()
        assert bench.pack_retry() == report

    def test_what_is_permanent_is_not_asked_again(self, bench: Bench, calm_emulator: Emulator) -> None:
        calm_emulator.faults(line_error(TEXTS[0], 400, "invalid_request"))
        bench.pack()
        bench.process(calm_emulator)
        assert bench.pack_retry().items == 0

    def test_a_packed_line_that_failed_is_taken_apart(self, bench: Bench, calm_emulator: Emulator) -> None:
        # Whatever asks for the culprit fails, so its companions only succeed without it.
        calm_emulator.faults(
            {
                "on": "line",
                "when": {"match": f"{TEXTS[3]}\\b"},
                "do": "line_error",
                "status": 400,
                "code": "invalid_request",
            }
        )
        bench.pack(PACKED, inputs_per_line=5)
        (landed,) = bench.process(calm_emulator)
        assert (landed.succeeded, landed.permanent) == (5, 5)
        report = bench.pack_retry(PACKED)
        assert (report.items, report.lines) == (5, 5)
        bench.process(calm_emulator, round=2)
        assert bench.bury().opened == {"permanent": 1}
        accounts = bench.reconcile()
        assert (accounts.succeeded, accounts.dead_lettered) == (9, 1)

    def test_a_shard_that_has_not_landed_is_left_alone(self, bench: Bench) -> None:
        bench.pack()
        assert bench.pack_retry().items == 0

    def test_what_another_run_answered_meanwhile_is_not_asked_again(
        self, bench: Bench, calm_emulator: Emulator, ledger: Connection, storage: Storage
    ) -> None:
        calm_emulator.faults(line_error(TEXTS[0], 500, "server_error", nth=1))
        bench.pack()
        bench.process(calm_emulator)
        other = Bench(ledger, storage, bench.provider, TEXTS[:1], run="other")
        assert other.pack().sent == 1
        other.process(calm_emulator)
        report = bench.pack_retry()
        assert (report.items, report.sent, report.reused) == (1, 0, 1)
        accounts = bench.reconcile()
        assert (accounts.succeeded, accounts.reused) == (9, 1)

    def test_two_runs_that_share_a_failed_shard_ask_once_more_together(
        self, bench: Bench, calm_emulator: Emulator, ledger: Connection, storage: Storage
    ) -> None:
        calm_emulator.faults(line_error(TEXTS[0], 500, "server_error", nth=1))
        bench.pack()
        other = Bench(ledger, storage, bench.provider, TEXTS[:5], run="other")
        assert other.pack().joined == 5
        bench.process(calm_emulator)
        assert [landed.landed_before for landed in other.process(calm_emulator)] == [True]
        assert bench.pack_retry().sent == 1
        assert other.pack_retry().joined == 1
        bench.process(calm_emulator, round=2)
        other.process(calm_emulator, round=2)
        assert bench.reconcile().succeeded == 10
        accounts = other.reconcile()
        assert (accounts.items, accounts.reused, accounts.succeeded) == (5, 5, 0)


def test_each_paid_answer_was_charged_once(
    ledger: Connection, storage: Storage, calm_emulator: Emulator
) -> None:
    texts = [f"charged text {number}" for number in range(6)]
    bench = Bench(ledger, storage, openai_provider(calm_emulator.openai_url), texts)
    calm_emulator.faults(line_error(texts[0], 500, "server_error", nth=1))
    bench.pack()
    bench.process(calm_emulator)
    bench.pack_retry()
    bench.process(calm_emulator, round=2)
    charges = calm_emulator.state()["charges"]
    assert [charges[item_key(SPACE.id, text).hex()] for text in texts] == [1] * 6
