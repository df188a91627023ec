"""The runs: what was started, in which state it is, and what each step reported.

The only writer of the table `runs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import orjson
import pendulum

from include.contracts import JSON, RunRef
from include.errors import LedgerError, RunCancelled, RunStopped
from include.ledger.connect import Connection

RunState = Literal["running", "succeeded", "failed", "dry_run", "cancelled"]
EndState = Literal["succeeded", "failed", "dry_run", "cancelled"]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. `counts` holds what each step reported, by the step's name; `stopped` is why it sends
    nothing more, "" where it does."""

    run: str
    workload: str
    corpus: str
    state: RunState
    plan_uri: str | None
    space: str | None
    priority: int
    budget_usd: float | None
    estimated_usd: float | None
    counts: Mapping[str, dict[str, JSON]]
    stopped: str
    started_at: pendulum.DateTime
    working_since: pendulum.DateTime
    finished_at: pendulum.DateTime | None


def create(
    connection: Connection,
    ref: RunRef,
    *,
    plan_uri: str | None = None,
    space: str | None = None,
    priority: int = 0,
    budget_usd: float | None = None,
) -> None:
    """Record that the run works, or works again: a cleared run keeps its start, list and counts."""
    connection.execute(
        "insert into runs (run, workload, corpus, state, plan_uri, space, priority, budget_usd, started_at)"
        " values (%s, %s, %s, 'running', %s, %s, %s, %s, batch_inference.now())"
        " on conflict (run) do update set state = 'running', finished_at = null, stopped = '',"
        " working_since = case when runs.state = 'running' then runs.working_since"
        " else batch_inference.now() end,"
        " plan_uri = coalesce(excluded.plan_uri, runs.plan_uri),"
        " space = coalesce(excluded.space, runs.space),"
        " priority = excluded.priority, budget_usd = excluded.budget_usd",
        (ref.run, ref.workload, ref.corpus, plan_uri, space, priority, budget_usd),
    )


def record(connection: Connection, run: str, step: str, counts: Mapping[str, JSON]) -> None:
    """Keep what a step reported; a step that runs again overwrites its own."""
    _one(
        connection.execute(
            "update runs set counts = counts || jsonb_build_object(%s::text, %s::jsonb) where run = %s",
            (step, orjson.dumps(dict(counts)).decode(), run),
        ).rowcount,
        run,
    )


def record_estimate(connection: Connection, run: str, usd: float) -> None:
    """Keep what the run was expected to cost, in dollars."""
    _one(
        connection.execute("update runs set estimated_usd = %s where run = %s", (usd, run)).rowcount,
        run,
    )


def reopen(connection: Connection, run: str) -> None:
    """A run that had ended works again; one that was cancelled stays so until `prepare` is cleared.

    Who takes it up again has mended what had stopped it.
    """
    connection.execute(
        "update runs set state = 'running', finished_at = null, stopped = '',"
        " working_since = batch_inference.now()"
        " where run = %s and state in ('succeeded', 'failed')",
        (run,),
    )


def stop(connection: Connection, run: str, reason: str) -> None:
    """The run sends nothing more, for this reason; what was sent before is followed and landed."""
    _one(
        connection.execute(
            "update runs set stopped = case when stopped = '' then %s else stopped end where run = %s",
            (reason, run),
        ).rowcount,
        run,
    )


def resume(connection: Connection, run: str) -> None:
    """The run may send again: what stopped it is mended. Raises RunCancelled where a person ended it."""
    refuse_cancelled(connection, run)
    _one(connection.execute("update runs set stopped = '' where run = %s", (run,)).rowcount, run)


def refuse_cancelled(connection: Connection, run: str) -> None:
    """Raise RunCancelled where a person cancelled the run."""
    if get(connection, run).state == "cancelled":
        raise RunCancelled(
            f"run {run!r} was cancelled, and sends nothing more; clear its task `prepare` to take it up again"
        )


def refuse_idle(connection: Connection, run: str) -> None:
    """Raise RunCancelled or RunStopped where the run sends nothing more."""
    refuse_cancelled(connection, run)
    reason = get(connection, run).stopped
    if reason:
        raise RunStopped(
            f"run {run!r} stopped sending: {reason}. Once that is mended, clear the run's failed tasks with"
            f" all downstream; while it still works, `resume {run}` first. What was sent isn't sent again"
        )


def finish(connection: Connection, run: str, state: EndState) -> None:
    """Record how the run ended."""
    _one(
        connection.execute(
            "update runs set state = %s, finished_at = batch_inference.now() where run = %s", (state, run)
        ).rowcount,
        run,
    )


def get(connection: Connection, run: str) -> RunRow:
    """One run. Raises LedgerError when the ledger doesn't know it."""
    row = find(connection, run)
    if row is None:
        raise _unknown(run)
    return row


def find(connection: Connection, run: str) -> RunRow | None:
    """One run, or None where the ledger doesn't know it."""
    row = connection.execute("select * from runs where run = %s", (run,)).fetchone()
    return None if row is None else _row(row)


def recent(connection: Connection, *, corpus: str | None = None, limit: int = 50) -> list[RunRow]:
    """The newest runs first, of one corpus or of all."""
    rows = connection.execute(
        "select * from runs where %(corpus)s::text is null or corpus = %(corpus)s"
        " order by started_at desc, run limit %(limit)s",
        {"corpus": corpus, "limit": limit},
    )
    return [_row(row) for row in rows]


def _row(row: Mapping[str, object]) -> RunRow:
    values = dict(row)
    for name in ("started_at", "working_since", "finished_at"):
        moment = values[name]
        values[name] = None if moment is None else pendulum.instance(moment)  # type: ignore[call-overload]
    return RunRow(**values)  # type: ignore[arg-type]


def _one(changed: int, run: str) -> None:
    if changed != 1:
        raise _unknown(run)


def _unknown(run: str) -> LedgerError:
    return LedgerError(f"run {run!r} isn't in the ledger; its first step `prepare` records it")
