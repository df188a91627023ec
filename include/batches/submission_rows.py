"""Submissions as the ledger holds them: the row, and every way to look one up. Writes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from include.contracts import JSON, Submission
from include.errors import LedgerError
from include.ledger.connect import Connection

PLANNED, CREATING, RUNNING, ENDED, LANDED, VOID = (
    "planned",
    "creating",
    "running",
    "ended",
    "landed",
    "void",
)
LIVE = (PLANNED, CREATING, RUNNING, ENDED)
"""States whose keys are in flight: they aren't packed again."""
OPEN = (CREATING, RUNNING)
"""States that hold a place at the provider."""


@dataclass(frozen=True, slots=True)
class SubmissionRow:
    """A row of `submissions`, field for column. Times are UTC; `id` is a uuid in text."""

    id: str
    shard: str
    attempt: int
    run: str
    provider: str
    account: str
    model: str
    endpoint: str
    deployment: str
    state: str
    reason: str
    lines: int
    reserved_tokens: int
    reserved_requests: int
    reserved_usd: float
    file_id: str | None
    batch_id: str | None
    after_batch_id: str | None
    until_batch_id: str | None
    provider_status: str | None
    output_file_id: str | None
    error_file_id: str | None
    look_ups: int
    first_look_up_at: datetime | None
    missing_since: datetime | None
    counts: dict[str, JSON]
    usage: dict[str, JSON]
    cost_usd: float | None
    planned_at: datetime
    uploaded_at: datetime | None
    creating_at: datetime | None
    created_at: datetime | None
    ended_at: datetime | None
    landed_at: datetime | None
    not_before: datetime | None
    queued_at: datetime | None
    queue_seen_at: datetime | None

    def as_submission(self) -> Submission:
        """What a provider needs to see."""
        return Submission(
            id=self.id,
            shard=self.shard,
            attempt=self.attempt,
            deployment=self.deployment,
            endpoint=self.endpoint,
            lines=self.lines,
            file_id=self.file_id,
            batch_id=self.batch_id,
            after_batch_id=self.after_batch_id,
            until_batch_id=self.until_batch_id,
        )


COLUMNS = ", ".join(f"s.{field.name}" for field in dataclasses.fields(SubmissionRow))
"""The columns of `submissions s`, in the dataclass's order."""
_SELECT = f"select {COLUMNS} from submissions s"


def from_record(found: Mapping[str, Any]) -> SubmissionRow:
    """The row of a record selected with `COLUMNS`."""
    return SubmissionRow(**{**found, "id": str(found["id"])})


def _one(connection: Connection, where: str, *params: Any) -> SubmissionRow | None:
    found = connection.execute(f"{_SELECT} {where}", params).fetchone()
    return from_record(found) if found else None


def _many(connection: Connection, where: str, *params: Any) -> list[SubmissionRow]:
    return [from_record(found) for found in connection.execute(f"{_SELECT} {where}", params)]


def by_id(connection: Connection, id: str) -> SubmissionRow:
    """One submission. Raises LedgerError when there is none of this id."""
    row = _one(connection, "where s.id = %s", id)
    if row is None:
        raise LedgerError(f"no submission {id} in the ledger")
    return row


def find(connection: Connection, id: str) -> SubmissionRow | None:
    """One submission, or None where the ledger has none of this id."""
    return _one(connection, "where s.id::text = %s", id)


def at_provider(connection: Connection, provider: str, account: str) -> list[SubmissionRow]:
    """The submissions that have a batch there which hasn't landed yet."""
    return _many(
        connection,
        "where s.provider = %s and s.account = %s and s.state = any(%s) and s.batch_id is not null"
        " order by s.planned_at, s.id",
        provider,
        account,
        [RUNNING, ENDED],
    )


def named(
    connection: Connection, provider: str, account: str, batch_ids: Sequence[str], ids: Sequence[str]
) -> list[SubmissionRow]:
    """The submissions that have one of these batches, or one of these ids."""
    return _many(
        connection,
        "where s.provider = %s and s.account = %s and (s.batch_id = any(%s) or s.id::text = any(%s))",
        provider,
        account,
        list(batch_ids),
        list(ids),
    )


def get(connection: Connection, shard_id: str, attempt: int) -> SubmissionRow | None:
    """The submission of one attempt at a shard."""
    return _one(connection, "where s.shard = %s and s.attempt = %s", shard_id, attempt)


def latest(connection: Connection, shard_id: str) -> SubmissionRow | None:
    """The newest attempt at a shard, whatever its state."""
    return _one(connection, "where s.shard = %s order by s.attempt desc limit 1", shard_id)


def by_name(connection: Connection, name: str) -> SubmissionRow | None:
    """A submission by its id, its batch's id at the provider, or its shard (the newest attempt)."""
    return _one(
        connection,
        "where s.id::text = %s or s.batch_id = %s or s.shard = %s order by s.attempt desc limit 1",
        name,
        name,
        name,
    )


def attempts(connection: Connection, shard_id: str) -> list[SubmissionRow]:
    """All attempts at a shard, oldest first."""
    return _many(connection, "where s.shard = %s order by s.attempt", shard_id)


def live(connection: Connection, space: str) -> list[SubmissionRow]:
    """The submissions of a space whose keys are in flight, oldest first."""
    return _many(
        connection,
        "join shards using (shard) where shards.space = %s and s.state = any(%s) order by s.planned_at, s.id",
        space,
        list(LIVE),
    )


def of_run(connection: Connection, run: str) -> list[SubmissionRow]:
    """The submissions that this run pays for, in the order they were planned."""
    return _many(connection, "where s.run = %s order by s.planned_at, s.shard, s.attempt", run)


def listed_by(connection: Connection, run: str) -> list[SubmissionRow]:
    """The present attempts of all shards that this run lists, its own and joined ones."""
    return _many(
        connection,
        "join run_shards l on l.shard = s.shard and l.attempt = s.attempt where l.run = %s"
        " order by l.round, l.ordinal",
        run,
    )


def known_batches(connection: Connection, row: SubmissionRow, batch_ids: Sequence[str]) -> set[str]:
    """Those of `batch_ids` that the ledger knows as another submission's."""
    found = connection.execute(
        "select batch_id from submissions"
        " where provider = %s and account = %s and batch_id = any(%s) and id <> %s",
        (row.provider, row.account, list(batch_ids), row.id),
    )
    return {entry["batch_id"] for entry in found}


def events(connection: Connection, id: str) -> list[tuple[datetime, str, str]]:
    """What happened to a submission: (time, event, detail), oldest first."""
    found = connection.execute(
        "select at, event, detail from submission_events where submission = %s order by number", (id,)
    )
    return [(entry["at"], entry["event"], entry["detail"]) for entry in found]
