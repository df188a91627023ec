"""Submissions: one attempt at one shard, and the only writer of the table `submissions`.

    planned → creating → running → ended → landed        void: nothing was, or will be, paid for it

Each transition is a compare-and-swap on the state and leaves an event, so a submission's whole
story can be told. `creating` without a live owner of the lock `shard/{id}` means unknown: a batch
may exist at the provider. Reading them is `submission_rows`, whose names are these too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from include.batches.submission_rows import (
    COLUMNS,
    CREATING,
    ENDED,
    LANDED,
    LIVE,
    OPEN,
    PLANNED,
    RUNNING,
    VOID,
    SubmissionRow,
    at_provider,
    attempts,
    by_id,
    by_name,
    events,
    find,
    from_record,
    get,
    known_batches,
    latest,
    listed_by,
    live,
    named,
    of_run,
)
from include.contracts import JSON, BatchStatus, Shard
from include.errors import LedgerError
from include.ledger.connect import Connection

__all__ = [
    "CREATING",
    "ENDED",
    "LANDED",
    "LIVE",
    "OPEN",
    "PLANNED",
    "RUNNING",
    "VOID",
    "SubmissionRow",
    "at_provider",
    "attempts",
    "by_id",
    "by_name",
    "created",
    "end",
    "events",
    "find",
    "forget_upload",
    "get",
    "known_batches",
    "latest",
    "listed_by",
    "live",
    "mark_landed",
    "missing",
    "named",
    "not_created",
    "note_last",
    "note_newest",
    "nothing_found",
    "of_run",
    "plan",
    "queue",
    "record_upload",
    "rehome",
    "seen",
    "start_creating",
    "told_to_stop",
    "void",
    "waits",
    "was_told_to_stop",
]

_CANCEL = "cancel"


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


def note_newest(connection: Connection, row: SubmissionRow, batch_id: str) -> SubmissionRow:
    """The newest batch that the account has before this submission's is created; "" for none."""
    return _must(
        connection,
        row,
        (PLANNED,),
        "after_batch_id = %(batch_id)s, until_batch_id = null",
        {"batch_id": batch_id},
        "noted",
        f"the newest batch is {batch_id or 'none'}",
    )


def note_last(connection: Connection, row: SubmissionRow, batch_id: str) -> SubmissionRow:
    """The newest batch that the account has when the grace is over: none later is this submission's."""
    return _must(
        connection,
        row,
        (CREATING,),
        "until_batch_id = %(batch_id)s",
        {"batch_id": batch_id},
        "noted",
        f"the newest batch after the grace is {batch_id or 'none'}",
    )


def forget_upload(connection: Connection, row: SubmissionRow, reason: str) -> SubmissionRow:
    """The file isn't at the provider: a planned submission uploads it anew, a void one needs none."""
    return _must(
        connection, row, (PLANNED, VOID), "file_id = null, uploaded_at = null", {}, "upload forgotten", reason
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


def waits(connection: Connection, row: SubmissionRow, reason: str) -> SubmissionRow:
    """Nothing can be done now, for this reason."""
    return _must(
        connection,
        row,
        (PLANNED, CREATING),
        "reason = %(reason)s",
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


def told_to_stop(connection: Connection, row: SubmissionRow) -> SubmissionRow | None:
    """The provider was asked to cancel the batch; it ends by itself."""
    reason = "told to stop; the batch ends by itself"
    return _move(connection, row, (RUNNING,), "reason = %(reason)s", {"reason": reason}, _CANCEL, reason)


def was_told_to_stop(connection: Connection, row: SubmissionRow) -> bool:
    """Whether the provider was asked to cancel the batch before."""
    return any(event == _CANCEL for _, event, _ in events(connection, row.id))


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
            f" returning {COLUMNS}",
            {**values, "id": row.id, "from": list(from_states)},
        ).fetchone()
        if found is None:
            return None
        if event:
            _note(connection, row.id, event, detail)
    return from_record(found)


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
