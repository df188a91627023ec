"""Runs and spaces in the ledger: recorded once, and what they knew stays."""

from __future__ import annotations

import pytest

from include.batches import runs, shards, spaces
from include.contracts import RunRef, Shard, Space
from include.errors import LedgerError
from include.ledger.connect import Connection
from tests.batches.submitting import SPACE

RUN = RunRef("run", "initial_ingest", "docs", "runs/initial_ingest/docs/run")


class TestRuns:
    def test_a_cleared_run_keeps_its_start_and_what_its_steps_reported(self, ledger: Connection) -> None:
        runs.create(ledger, RUN, plan_uri="plan.json", space="space", budget_usd=1.5, priority=2)
        runs.record(ledger, "run", "prepare", {"documents": 3})
        runs.record_estimate(ledger, "run", 0.25)
        runs.finish(ledger, "run", "failed")
        before = runs.get(ledger, "run")
        runs.create(ledger, RUN)
        after = runs.get(ledger, "run")
        assert (before.state, after.state) == ("failed", "running")
        assert after.started_at == before.started_at
        assert after.finished_at is None
        assert (after.counts, after.plan_uri, after.space) == (
            {"prepare": {"documents": 3}},
            "plan.json",
            "space",
        )

    def test_a_step_that_runs_again_overwrites_its_own_counts_only(self, ledger: Connection) -> None:
        runs.create(ledger, RUN)
        runs.record(ledger, "run", "pack", {"sent": 1})
        runs.record(ledger, "run", "prepare", {"documents": 3})
        runs.record(ledger, "run", "pack", {"sent": 2})
        assert runs.get(ledger, "run").counts == {"pack": {"sent": 2}, "prepare": {"documents": 3}}

    def test_the_newest_runs_come_first(self, ledger: Connection) -> None:
        for number in range(3):
            runs.create(ledger, RunRef(f"run-{number}", "initial_ingest", f"docs-{number % 2}", "uri"))
        assert [row.run for row in runs.recent(ledger)] == ["run-2", "run-1", "run-0"]
        assert [row.run for row in runs.recent(ledger, corpus="docs-0")] == ["run-2", "run-0"]
        assert [row.run for row in runs.recent(ledger, limit=1)] == ["run-2"]

    def test_an_unknown_run_is_named(self, ledger: Connection) -> None:
        for attempt in (
            lambda: runs.get(ledger, "nope"),
            lambda: runs.record(ledger, "nope", "pack", {}),
            lambda: runs.finish(ledger, "nope", "failed"),
            lambda: runs.record_estimate(ledger, "nope", 1.0),
        ):
            with pytest.raises(LedgerError, match="'nope'"):
                attempt()


class TestSpaces:
    def test_the_epoch_is_raised_by_whoever_saw_the_last(self, ledger: Connection) -> None:
        spaces.ensure(ledger, SPACE)
        spaces.ensure(ledger, SPACE)
        assert spaces.epoch(ledger, SPACE.id) == 0
        assert spaces.raise_epoch(ledger, SPACE.id, 0)
        assert not spaces.raise_epoch(ledger, SPACE.id, 0)
        assert spaces.epoch(ledger, SPACE.id) == 1

    def test_a_probe_is_remembered(self, ledger: Connection) -> None:
        spaces.ensure(ledger, SPACE)
        assert spaces.proof(ledger, SPACE.id) is None
        spaces.mark_proven(ledger, SPACE.id, dimensions=8, model_named="text-embedding-3-small")
        proof = spaces.proof(ledger, SPACE.id)
        assert proof is not None
        assert (proof.dimensions, proof.model_named) == (8, "text-embedding-3-small")

    def test_an_unknown_space_is_named(self, ledger: Connection) -> None:
        space = Space("openai", "elsewhere", "/v1/embeddings", "m")
        assert spaces.proof(ledger, space.id) is None
        with pytest.raises(LedgerError, match=space.id):
            spaces.epoch(ledger, space.id)


class TestShards:
    def test_a_replaced_attempt_moves_every_list_that_waits_for_it(self, ledger: Connection) -> None:
        spaces.ensure(ledger, SPACE)
        shard = Shard("ab" * 16, SPACE.id, 1, 1, 10, 1)
        for number, name in enumerate(("one", "two", "three")):
            runs.create(ledger, RunRef(name, "initial_ingest", "docs", "uri"))
            shards.register(
                ledger,
                space_id=SPACE.id,
                epoch=number,
                run=name,
                round=1,
                new=[shard] if number == 0 else [],
                joined=[] if number == 0 else [(shard.id, 1)],
                plan=lambda shard, attempt: None,
            )
        assert shards.replace_attempt(ledger, shard.id, 1, 2) == 3
        assert [(entry.run, entry.attempt, entry.joined) for entry in shards.lists(ledger, shard.id)] == [
            ("one", 2, False),
            ("three", 2, True),
            ("two", 2, True),
        ]
        assert shards.get(ledger, shard.id) == shard

    def test_an_unknown_shard_is_named(self, ledger: Connection) -> None:
        with pytest.raises(LedgerError, match="nope"):
            shards.get(ledger, "nope")
