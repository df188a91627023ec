"""A run's deadline: what isn't done by then is cancelled, and either sent once more or buried.

It counts from when the run began to work (or was taken up again). Where the rest is sent again, the
second attempt has the same time anew. What another working run waits for too goes on for that run, and
this one waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pendulum

from include.batches import claims, failures, runs, shards, submissions
from include.batches.failures import Failure
from include.batches.shard_files import keys_path
from include.batches.shards import ListedShard
from include.batches.submissions import PLANNED, VOID
from include.contracts import BatchProvider, OutcomeClass
from include.ledger import clock
from include.ledger.connect import Connection
from include.ledger.locks import held
from include.requests.results import key_list
from include.storage import Storage

log = logging.getLogger(__name__)

CODE = "deadline"


@dataclass(frozen=True, slots=True)
class Deadline:
    """`hours` that a run's batches may take, None for no end, and what `then` becomes of the rest."""

    hours: float | None
    then: Literal["send_again", "dead_letter"]


def seconds_left(connection: Connection, run: str, deadline: Deadline, round: int) -> float | None:
    """Seconds until the round's deadline, negative after it; None where there is none."""
    if deadline.hours is None:
        return None
    began = runs.get(connection, run).working_since
    if round == shards.SECOND_ROUND and deadline.then == "send_again":
        planned = connection.execute(
            "select min(planned_at) as planned from submissions join run_shards l using (shard, attempt)"
            " where l.run = %s and l.round = %s",
            (run, round),
        ).fetchone()
        if planned and planned["planned"] is not None:
            began = max(began, pendulum.instance(planned["planned"]))
    return deadline.hours * 3600 - float((clock.now(connection) - began).total_seconds())


def gives_up(connection: Connection, run: str, deadline: Deadline) -> bool:
    """Whether what failed in the first round is buried now and not sent again."""
    left = seconds_left(connection, run, deadline, shards.FIRST_ROUND)
    return deadline.then == "dead_letter" and left is not None and left <= 0


def end_unsent(connection: Connection, storage: Storage, provider: BatchProvider, entry: ListedShard) -> bool:
    """Take a shard that was never sent for failed, each of its items; False where it was sent, or
    another working run wants it."""
    with held(connection, f"shard/{entry.shard.id}"):
        row = submissions.get(connection, entry.shard.id, entry.attempt)
        if row is None or row.state not in (PLANNED, VOID):
            return False
        if row.state == PLANNED and claims.wanted_by_others(connection, row, entry.run):
            return False
        # Before the attempt is void: who lists it must find what became of its items.
        failures.write(storage, failures.of_attempt(row.shard, row.attempt), _late(storage, entry))
        if row.state == PLANNED:
            submissions.void(connection, row, "the run's deadline passed", from_states=(PLANNED,))
            claims.delete_file(provider, row)
    log.warning("Shard %s wasn't sent before the deadline of run %s", entry.shard.id, entry.run)
    return True


def _late(storage: Storage, entry: ListedShard) -> Iterator[Failure]:
    with storage.parquet_file(keys_path(entry.shard.id)) as file:
        for key in key_list(file.read(columns=["key"])["key"]):
            yield Failure(key, OutcomeClass.RETRYABLE, CODE, "it wasn't sent before the run's deadline")
