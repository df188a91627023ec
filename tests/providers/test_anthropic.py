"""Anthropic's own ways: a body streamed from the shard, and batches that bear nothing of ours."""

from __future__ import annotations

import dataclasses
import io
import json
import tracemalloc
from typing import Any

import httpx
import pytest

from include.contracts import BatchState, Submission
from include.errors import AccountError, ConfigError, ProviderUndecided
from include.providers.anthropic_body import OVERHEAD_BYTES, CreateBody
from include.reference import limits_for
from tests.emulators import Tenant
from tests.providers.contract import Bench, Sent


@pytest.fixture
def bench(emulator: Tenant) -> Bench:
    return Bench("anthropic", emulator)


class TestBody:
    @pytest.mark.parametrize("count", [1, 2, 40_000])
    def test_lines_become_a_list_of_requests_of_the_length_told(self, count: int) -> None:
        rows = [{"custom_id": f"r{n}", "params": {"text": "a\nb\u2028c" * (n % 7)}} for n in range(count)]
        lines = "".join(json.dumps(row, ensure_ascii=n % 2 == 0) + "\n" for n, row in enumerate(rows))
        body = CreateBody(io.BytesIO(lines.encode()))
        pieces = list(body)
        content = b"".join(pieces)
        assert json.loads(content) == {"requests": rows}
        assert len(content) == body.size <= len(lines.encode()) + OVERHEAD_BYTES
        assert max(map(len, pieces)) <= 1 << 20

    def test_a_file_that_grew_shorter_is_not_sent_as_if_whole(self) -> None:
        file = io.BytesIO(b'{"a":1}\n{"b":2}\n')
        body = CreateBody(file)
        file.truncate(8)
        with pytest.raises(ValueError, match="early"):
            list(body)

    def test_the_largest_shard_fits_into_the_largest_body(self) -> None:
        limits = limits_for("anthropic", "/v1/messages", "claude-sonnet-5-5")
        assert limits.bytes_per_batch + OVERHEAD_BYTES <= 256_000_000
        assert limits.requests_per_batch == 100_000

    def test_a_large_one_is_created_within_little_memory(self, bench: Bench) -> None:
        sent = bench.prepare([f"{'word ' * 6000}{number}" for number in range(1500)])
        size = len(sent.content)
        assert size > 40_000_000
        bench.create(bench.prepare(["the SDK's own modules are loaded"]))
        tracemalloc.start()
        status = bench.create(sent)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert status.total == 1500
        # Beside the file itself, which is in memory here.
        assert peak < size / 4

    def test_a_create_without_its_requests_is_refused_before_the_call(self, bench: Bench) -> None:
        with pytest.raises(ConfigError, match="request file"):
            bench.provider.create(bench.prepare(["x"]).submission)
        with pytest.raises(ConfigError, match="no uploaded file"):
            bench.provider.upload(io.BytesIO(b""), 0, bench.prepare(["x"]).submission)
        assert bench.emulator.state()["requests"].get(bench.on("create"), 0) == 0


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (429, "rate_limit_error", "enforced_spend_limit_reached"),
        (400, "invalid_request_error", "organization_on_hold"),
        (400, "billing_error", None),
    ],
)
def test_what_only_a_person_can_mend_is_an_account_error(
    bench: Bench, status: int, kind: str, code: str | None
) -> None:
    error = {"type": kind, "message": "m", "details": {"error_code": code} if code else None}
    bench.fault("create", do="status", status=status, body={"type": "error", "error": error})
    with pytest.raises(AccountError, match=code or kind):
        bench.create(bench.prepare(["x"]))


class TestFind:
    """Batches are told apart by what was noted, by their size, by the ledger, and at last by their ids."""

    TEXTS = ("one", "two", "three")

    def strangers(self, bench: Bench, number: int) -> str:
        return bench.create(bench.prepare([f"{text} of stranger {number}" for text in self.TEXTS])).batch_id

    def mine(self, bench: Bench) -> tuple[Sent, str]:
        sent = bench.prepare(self.TEXTS)
        return sent, bench.create(sent).batch_id

    def found(self, bench: Bench, sent: Sent, *known: str, **noted: Any) -> list[str]:
        submission = dataclasses.replace(sent.submission, **noted)
        return [each.batch_id for each in bench.provider.find(submission, sent.evidence(*known))]

    def test_the_newest_is_noted(self, bench: Bench) -> None:
        assert bench.provider.newest() == ""
        self.strangers(bench, 1)
        newest = self.strangers(bench, 2)
        assert bench.provider.newest() == newest

    def test_it_waits_while_a_stranger_of_the_same_size_runs(self, bench: Bench) -> None:
        sent = bench.prepare(self.TEXTS)
        stranger = self.strangers(bench, 1)
        with pytest.raises(ProviderUndecided, match=stranger):
            self.found(bench, sent)
        bench.emulator.advance(3600)
        assert self.found(bench, sent) == []

    def test_what_the_ledger_knows_or_has_another_size_is_not_waited_for(self, bench: Bench) -> None:
        sent = bench.prepare(self.TEXTS)
        ours = self.strangers(bench, 1)
        bench.create(bench.prepare(["only one"]))
        assert self.found(bench, sent, ours) == []

    def test_older_batches_are_not_looked_at(self, bench: Bench) -> None:
        for number in range(3):
            self.strangers(bench, number)
        sent = bench.prepare(self.TEXTS)
        assert self.found(bench, sent) == []
        with pytest.raises(ProviderUndecided):
            self.found(bench, sent, after_batch_id="msgbatch_that_was_deleted")

    def test_batches_later_than_the_end_of_the_grace_are_not_waited_for(self, bench: Bench) -> None:
        sent, batch_id = self.mine(bench)
        until = bench.provider.newest()
        self.strangers(bench, 1)
        bench.emulator.advance(3600)
        self.strangers(bench, 2)
        assert self.found(bench, sent, until_batch_id=until) == [batch_id]
        later = bench.prepare(self.TEXTS)
        until = bench.provider.newest()
        self.strangers(bench, 3)
        assert self.found(bench, later, until_batch_id=until) == []
        assert self.found(bench, later, until_batch_id="") == []

    def test_one_that_has_ended_is_taken_though_others_run(self, bench: Bench) -> None:
        sent, batch_id = self.mine(bench)
        bench.emulator.advance(3600)
        self.strangers(bench, 1)
        assert self.found(bench, sent) == [batch_id]

    def test_a_repeated_create_is_found_twice(self, bench: Bench) -> None:
        sent, first = self.mine(bench)
        second = bench.create(sent).batch_id
        bench.emulator.advance(3600)
        assert sorted(self.found(bench, sent)) == sorted([first, second])

    def test_a_lost_line_or_a_foreign_one_leaves_it_ours(self, bench: Bench) -> None:
        sent = bench.prepare(self.TEXTS)
        one, two, _ = sent.ids.values()
        bench.emulator.faults(
            {"on": "line", "when": {"custom_id": one}, "do": "line_omit"},
            {"on": "line", "when": {"custom_id": two}, "do": "line_foreign"},
        )
        batch_id = bench.create(sent).batch_id
        bench.emulator.advance(3600)
        assert self.found(bench, sent) == [batch_id]

    @pytest.mark.parametrize(
        "fault",
        [{"do": "status", "status": 404}, {"do": "drop_before"}, {"do": "cut", "bytes": 0}],
    )
    def test_results_that_cannot_be_read_decide_nothing(self, bench: Bench, fault: dict[str, Any]) -> None:
        from include.errors import ProviderUnavailable

        sent, _ = self.mine(bench)
        bench.emulator.advance(3600)
        bench.fault("results", **fault)
        with pytest.raises(ProviderUnavailable):
            self.found(bench, sent)

    def test_what_was_archived_is_past_finding(self, bench: Bench) -> None:
        sent, _ = self.mine(bench)
        bench.emulator.advance(30 * 86_400)
        assert self.found(bench, sent) == []


def test_results_are_read_at_the_clients_own_base_url(bench: Bench) -> None:
    """Where the base URL is a gateway, the URL that the service names leads past it."""
    status = bench.run(["x"])
    shown = httpx.get(
        f"{bench.emulator.anthropic_url}/v1/messages/batches/{status.batch_id}",
        headers={
            "x-api-key": "k",
            "anthropic-version": "2026-10-21",
            "anthropic-workspace-id": bench.emulator.project,
        },
    ).json()
    bench.fault("retrieve", do="status", status=200, body={**shown, "results_url": "http://127.0.0.1:9/x"})
    assert len(bench.answers(bench.provider.status(status.batch_id))) == 1


def test_a_batch_given_up_for_lost_has_no_results(bench: Bench) -> None:
    status = bench.provider.status("msgbatch_gone")
    assert status.state is BatchState.NOT_FOUND
    ended = dataclasses.replace(status, state=BatchState.ENDED)
    assert list(bench.provider.outcomes(ended, bench.space)) == []


def test_a_submission_is_found_without_anything_noted(bench: Bench) -> None:
    sent = bench.prepare(["x"])
    batch_id = bench.create(sent).batch_id
    bench.emulator.advance(3600)
    bare = Submission("id", "ab", 1, "test", "/v1/messages", 1)
    assert [each.batch_id for each in bench.provider.find(bare, sent.evidence())] == [batch_id]
