"""Submissions: one attempt at one shard, and the only writer of the table `submissions`.

    planned → creating → running → ended → landed        void: nothing was, or will be, paid for it

Each transition is a compare-and-swap on the state and leaves an event, so a submission's whole
story can be told. `creating` without a live owner of the lock `shard/{id}` means unknown: a batch
may exist at the provider.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from include.contracts import JSON, BatchStatus, Shard, Submission
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
    marker: str | None
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
        )


_COLUMNS = ", ".join(f"s.{field.name}" for field in dataclasses.fields(SubmissionRow))
_SELECT = f"select {_COLUMNS} from submissions s"


def _row(found: Mapping[str, Any]) -> SubmissionRow:
    return SubmissionRow(**{**found, "id": str(found["id"])})


def _one(connection: Connection, where: str, *params: Any) -> SubmissionRow | None:
    found = connection.execute(f"{_SELECT} {where}", params).fetchone()
    return _row(found) if found else None


def _many(connection: Connection, where: str, *params: Any) -> list[SubmissionRow]:
    return [_row(found) for found in connection.execute(f"{_SELECT} {where}", params)]


# --------------------------------------------------------------------------- reading


def by_id(connection: Connection, id: str) -> SubmissionRow:
    """One submission. Raises LedgerError when there is none of this id."""
    row = _one(connection, "where s.id = %s", id)
    if row is None:
        raise LedgerError(f"no submission {id} in the ledger")
    return row


def get(connection: Connection, shard_id: str, attempt: int) -> SubmissionRow | None:
    """The submission of one attempt at a shard."""
    return _one(connection, "where s.shard = %s and s.attempt = %s", shard_id, attempt)


def latest(connection: Connection, shard_id: str) -> SubmissionRow | None:
    """The newest attempt at a shard, whatever its state."""
    return _one(connection, "where s.shard = %s order by s.attempt desc limit 1", shard_id)


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


def by_account(connection: Connection, provider: str, account: str) -> list[SubmissionRow]:
    """Every submission on a provider's account, newest first."""
    return _many(
        connection,
        "where s.provider = %s and s.account = %s order by s.planned_at desc",
        provider,
        account,
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


# --------------------------------------------------------------------------- planning


def plan(
    connection: Connection,
    *,
    shard: Shard,
    attempt: int,
    run: str,
    provider: str,
    account: str,
    model: str,
    endpoint: str,
    deployment: str,
    not_before: datetime | None = None,
    reason: str = "",
) -> str:
    """Register an attempt at a shard in state `planned`; returns its id. Planning twice is planning once."""
    with connection.transaction():
        made = connection.execute(
            "insert into submissions (id, shard, attempt, run, provider, account, model, endpoint,"
            " deployment, state, reason, lines, not_before, planned_at) values"
            " (%s, %s, %s, %s, %s, %s, %s, %s, %s, 'planned', %s, %s, %s, batch_inference.now())"
            " on conflict (shard, attempt) do nothing returning id",
            (
                str(uuid.uuid4()),
                shard.id,
                attempt,
                run,
                provider,
                account,
                model,
                endpoint,
                deployment,
                reason,
                shard.lines,
                not_before,
            ),
        ).fetchone()
        if made is not None:
            _note(connection, str(made["id"]), PLANNED, f"attempt {attempt} for run {run}")
            return str(made["id"])
    row = get(connection, shard.id, attempt)
    assert row is not None, "a conflicting row can't vanish: submissions are never deleted"
    return row.id


# --------------------------------------------------------------------------- transitions


def record_upload(connection: Connection, row: SubmissionRow, file_id: str) -> SubmissionRow:
    """The request file is at the provider."""
    return _must(
        connection,
        row,
        (PLANNED,),
        "file_id = %(file_id)s, uploaded_at = batch_inference.now()",
        {"file_id": file_id},
        "uploaded",
        f"file {file_id}",
    )


def forget_upload(connection: Connection, row: SubmissionRow, reason: str) -> SubmissionRow:
    """The provider doesn't know the file (any more); it is uploaded anew."""
    return _must(
        connection, row, (PLANNED,), "file_id = null, uploaded_at = null", {}, "upload forgotten", reason
    )


def rehome(connection: Connection, row: SubmissionRow, account: str) -> SubmissionRow:
    """Nothing was sent yet, and the connection now points to another account: send it there."""
    return _must(
        connection,
        row,
        (PLANNED,),
        "account = %(account)s, file_id = null, uploaded_at = null, queued_at = null",
        {"account": account},
        "moved",
        f"from account {row.account} to {account}",
    )


def queue(connection: Connection, row: SubmissionRow, reason: str) -> SubmissionRow:
    """There is no room at the account: stand in line, and say so every time."""
    return _must(
        connection,
        row,
        (PLANNED,),
        "reason = %(reason)s, queued_at = coalesce(queued_at, batch_inference.now()),"
        " queue_seen_at = batch_inference.now()",
        {"reason": reason},
        "" if row.reason == reason else "waits",
        reason,
    )


def start_creating(
    connection: Connection, row: SubmissionRow, *, run: str, tokens: int, requests: int, usd: float
) -> SubmissionRow | None:
    """Reserve, and announce the create; None when the submission is no longer planned.

    `run` is the run that submits it, and so pays for it.
    """
    return _move(
        connection,
        row,
        (PLANNED,),
        "state = 'creating', reason = '', run = %(run)s, reserved_tokens = %(tokens)s,"
        " reserved_requests = %(requests)s, reserved_usd = %(usd)s, creating_at = batch_inference.now(),"
        " look_ups = 0, first_look_up_at = null, not_before = null, queued_at = null, queue_seen_at = null",
        {"run": run, "tokens": tokens, "requests": requests, "usd": usd},
        CREATING,
        f"reserved {tokens:,} tokens, {requests:,} requests, ${usd:.4f} for run {run}",
    )


def not_created(
    connection: Connection, row: SubmissionRow, reason: str, *, wait_seconds: float = 0.0
) -> SubmissionRow:
    """The provider said no, or was never reached: nothing exists, and the reservation is released."""
    return _must(
        connection,
        row,
        (CREATING,),
        "state = 'planned', reason = %(reason)s, reserved_tokens = 0, reserved_requests = 0,"
        " reserved_usd = 0, not_before = batch_inference.now() + make_interval(secs => %(wait)s)",
        {"reason": reason, "wait": wait_seconds},
        "not created",
        reason,
    )


def created(
    connection: Connection, row: SubmissionRow, status: BatchStatus, *, adopted: bool = False
) -> SubmissionRow:
    """The batch exists: the provider answered, or a look-up found it."""
    return _must(
        connection,
        row,
        (CREATING,),
        "state = 'running', reason = '', batch_id = %(batch_id)s, provider_status = %(status)s,"
        " created_at = batch_inference.now()",
        {"batch_id": status.batch_id, "status": status.provider_status},
        "adopted" if adopted else RUNNING,
        f"batch {status.batch_id}",
    )


def nothing_found(connection: Connection, row: SubmissionRow) -> SubmissionRow:
    """A completed look-up of all that the provider holds didn't find this submission."""
    return _must(
        connection,
        row,
        (CREATING,),
        "look_ups = look_ups + 1, first_look_up_at = coalesce(first_look_up_at, batch_inference.now()),"
        " reason = 'create was not answered, and no batch of it is found so far'",
        {},
        "looked up",
        "the provider holds no batch of this submission",
    )


def void(
    connection: Connection, row: SubmissionRow, reason: str, *, from_states: Sequence[str]
) -> SubmissionRow | None:
    """Nothing is or will be paid for this attempt: its keys are free. None when its state is another."""
    return _move(
        connection,
        row,
        from_states,
        "state = 'void', reason = %(reason)s, reserved_tokens = 0, reserved_requests = 0, reserved_usd = 0",
        {"reason": reason},
        VOID,
        reason,
    )


def seen(connection: Connection, row: SubmissionRow, provider_status: str) -> SubmissionRow | None:
    """The provider knows the batch, in a status that isn't its last."""
    if row.provider_status == provider_status and row.missing_since is None:
        return row
    return _move(
        connection,
        row,
        (RUNNING,),
        "provider_status = %(status)s, missing_since = null, reason = ''",
        {"status": provider_status},
        "status",
        provider_status,
    )


def missing(connection: Connection, row: SubmissionRow) -> SubmissionRow | None:
    """The provider answers 404: unknown, not gone. Remembers the first in a row."""
    return _move(
        connection,
        row,
        (RUNNING,),
        "missing_since = coalesce(missing_since, batch_inference.now()),"
        " reason = 'the provider answers 404 for this batch; it may come back'",
        {},
        "" if row.missing_since else "missing",
        "404",
    )


def end(
    connection: Connection, row: SubmissionRow, status: BatchStatus, reason: str = ""
) -> SubmissionRow | None:
    """The batch is over; its place at the account is free. None when somebody recorded that before."""
    return _move(
        connection,
        row,
        (RUNNING,),
        "state = 'ended', reason = %(reason)s, provider_status = %(status)s, output_file_id = %(output)s,"
        " error_file_id = %(error)s, ended_at = batch_inference.now(), missing_since = null,"
        " reserved_tokens = 0, reserved_requests = 0",
        {
            "reason": reason,
            "status": status.provider_status,
            "output": status.output_file_id,
            "error": status.error_file_id,
        },
        ENDED,
        f"{status.provider_status}: {status.completed:,} of {status.total:,} done, {status.failed:,} failed"
        + (f"; {reason}" if reason else ""),
    )


def mark_landed(
    connection: Connection,
    id: str,
    *,
    counts: Mapping[str, JSON],
    usage: Mapping[str, JSON],
    cost_usd: float | None,
) -> bool:
    """Every line is judged and stored. False when it was landed before; its figures then stay."""
    row = by_id(connection, id)
    cost = "unknown" if cost_usd is None else f"${cost_usd:.4f}"
    moved = _move(
        connection,
        row,
        (ENDED,),
        "state = 'landed', landed_at = batch_inference.now(), counts = %(counts)s, usage = %(usage)s,"
        " cost_usd = %(cost)s, reserved_usd = case when %(cost)s::float8 is null then reserved_usd"
        " else 0 end",
        {"counts": Jsonb(dict(counts)), "usage": Jsonb(dict(usage)), "cost": cost_usd},
        LANDED,
        f"{', '.join(f'{name} {count}' for name, count in counts.items())}; cost {cost}",
    )
    if moved is None and row.state != LANDED:
        raise LedgerError(f"submission {id} is {row.state}, so it can't be landed; watch it until it ends")
    return moved is not None


def _move(
    connection: Connection,
    row: SubmissionRow,
    from_states: Sequence[str],
    assignments: str,
    values: Mapping[str, Any],
    event: str,
    detail: str,
) -> SubmissionRow | None:
    """Compare-and-swap on the state; None when the state was another. An empty `event` leaves none."""
    with connection.transaction():
        found = connection.execute(
            f"update submissions s set {assignments} where id = %(id)s and state = any(%(from)s)"
            f" returning {_COLUMNS}",
            {**values, "id": row.id, "from": list(from_states)},
        ).fetchone()
        if found is None:
            return None
        if event:
            _note(connection, row.id, event, detail)
    return _row(found)


def _must(
    connection: Connection,
    row: SubmissionRow,
    from_states: Sequence[str],
    assignments: str,
    values: Mapping[str, Any],
    event: str,
    detail: str,
) -> SubmissionRow:
    moved = _move(connection, row, from_states, assignments, values, event, detail)
    if moved is None:
        raise LedgerError(
            f"submission {row.id} is no longer {' or '.join(from_states)}: another process advanced it;"
            " run the step again"
        )
    return moved


def _note(connection: Connection, id: str, event: str, detail: str) -> None:
    connection.execute(
        "insert into submission_events (submission, at, event, detail)"
        " values (%s, batch_inference.now(), %s, %s)",
        (id, event, detail),
    )
