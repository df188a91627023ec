"""A submission's whole story, for people: what it is, what happened to it when, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from include.batches import shards, submissions
from include.batches.submissions import CREATING, PLANNED, RUNNING, SubmissionRow
from include.contracts import Shard
from include.errors import LedgerError
from include.ledger.connect import Connection


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, by the ledger's clock, UTC."""

    at: datetime
    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class Story:
    """A submission, its shard, who lists it, the attempts beside it, and its events, oldest first."""

    row: SubmissionRow
    shard: Shard
    listed_by: tuple[str, ...]
    attempts: tuple[SubmissionRow, ...]
    events: tuple[Event, ...]

    def lines(self) -> list[str]:
        """The story in text, a line each."""
        row, shard = self.row, self.shard
        told = [
            f"submission {row.id}: attempt {row.attempt} at shard {shard.id}, {row.state}"
            + (f" ({row.reason})" if row.reason else ""),
            f"  {shard.lines:,} lines, {shard.items:,} items, {shard.tokens:,} tokens, {shard.bytes:,} bytes"
            f" for {row.endpoint} with {row.model}",
            f"  {row.provider} account {row.account}, file {row.file_id or 'none'},"
            f" batch {row.batch_id or 'none'}, status {row.provider_status or 'none'}",
            f"  paid by run {row.run}; listed by {', '.join(self.listed_by) or 'no run'}",
        ]
        if row.counts:
            told.append("  outcomes: " + ", ".join(f"{name} {count}" for name, count in row.counts.items()))
        if row.cost_usd is not None:
            told.append(f"  cost ${row.cost_usd:.6f}")
        elif row.reserved_usd:
            told.append(f"  reserved ${row.reserved_usd:.6f}")
        for other in self.attempts:
            if other.id != row.id:
                told.append(f"  attempt {other.attempt}: {other.id}, {other.state} ({other.reason})")
        told.extend(f"  {e.at:%Y-%m-%d %H:%M:%S}  {e.what}: {e.detail}" for e in self.events)
        return told


def waits(connection: Connection, runs: Sequence[str]) -> dict[str, str]:
    """What each of these runs waits for most, in words; those that wait for nothing are left out."""
    rows = connection.execute(
        "select distinct on (run) run, reason, count from ("
        " select l.run, s.reason, count(*) as count from run_shards l"
        " join submissions s using (shard, attempt) join runs r on r.run = l.run"
        " where l.run = any(%s) and r.state = 'running' and s.state = any(%s) and s.reason <> ''"
        " group by l.run, s.reason) each order by run, count desc, reason",
        (list(runs), [PLANNED, CREATING, RUNNING]),
    )
    return {
        row["run"]: f"{row['count']:,} shard{'s' if row['count'] > 1 else ''}: {row['reason']}"
        for row in rows
    }


def story(connection: Connection, name: str) -> Story:
    """The story of a submission by its id, its batch's id at the provider, or its shard (newest attempt).

    Raises LedgerError where the ledger knows none of that name.
    """
    row = submissions.by_name(connection, name)
    if row is None:
        raise LedgerError(
            f"the ledger knows no submission, batch or shard {name!r}; `submissions RUN` lists them"
        )
    return Story(
        row=row,
        shard=shards.get(connection, row.shard),
        listed_by=tuple(
            entry.run for entry in shards.lists(connection, row.shard) if entry.attempt == row.attempt
        ),
        attempts=tuple(submissions.attempts(connection, row.shard)),
        events=tuple(Event(at, what, detail) for at, what, detail in submissions.events(connection, row.id)),
    )
