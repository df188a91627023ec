"""Watch batches until they end, and write what was seen. No error of a poll ends a wait.

A batch that failed because the account's queue was full didn't run: its attempt is void, a new one
follows later, and no retry is used up. Any other end is ENDED, whatever its status: what it is
worth is judged line by line when it is landed.
"""

from __future__ import annotations

import logging
from enum import Enum

import pendulum

from include.batches import admission, shards, submissions
from include.batches.sending import check_account
from include.batches.submissions import ENDED, LANDED, RUNNING, VOID, SubmissionRow
from include.batches.submit import renew
from include.contracts import BatchProvider, BatchState, BatchStatus
from include.errors import ProviderError
from include.ledger import clock
from include.ledger.connect import Connection
from include.providers.codes import is_queue_limit
from include.settings import Settings

log = logging.getLogger(__name__)

_MOST_DOUBLINGS = 5


class Seen(Enum):
    """What a look at a batch came to. True where the batch has ended and can be landed."""

    RUNNING = "running"
    ENDED = "ended"
    AGAIN = "again"
    """Its attempt is void and a new one is planned: submit the shard again."""

    def __bool__(self) -> bool:
        return self is Seen.ENDED


def look(connection: Connection, provider: BatchProvider, row: SubmissionRow, *, settings: Settings) -> Seen:
    """Ask for one batch now and record the answer; a failed poll is only a failed poll.

    Raises AccountError where the connection points to another account than the batch's.
    """
    if row.state != RUNNING or row.batch_id is None:
        return _settled(row)
    check_account(row, provider)
    try:
        status = provider.status(row.batch_id)
    except ProviderError as error:
        log.warning("Batch %s couldn't be asked for, which says nothing about it: %s", row.batch_id, error)
        return Seen.RUNNING
    return record(connection, row, status, settings=settings)


def record(connection: Connection, row: SubmissionRow, status: BatchStatus, *, settings: Settings) -> Seen:
    """Write what the provider says of a batch; ENDED once there is something to land.

    A 404 is unknown for `batch_deadline_hours`, counted from the first in a row; only then is the batch
    taken for gone, and its lines for missing.
    """
    row = submissions.by_id(connection, row.id)
    if row.state != RUNNING:
        return _settled(row)
    if status.state is BatchState.NOT_FOUND:
        return _missing(connection, row, status, settings)
    if status.state is BatchState.RUNNING:
        submissions.seen(connection, row, status.provider_status)
        return Seen.RUNNING
    if status.error is not None and is_queue_limit(*status.error) and status.completed == 0:
        return _again(connection, row, status.error[1], settings)
    reason = f"{status.error[0]}: {status.error[1]}" if status.error else ""
    submissions.end(connection, row, status, reason)
    log.info(
        "Batch %s is %s: %d of %d done, %d failed %s",
        status.batch_id,
        status.provider_status,
        status.completed,
        status.total,
        status.failed,
        reason,
    )
    return Seen.ENDED


def is_overdue(connection: Connection, row: SubmissionRow, settings: Settings) -> bool:
    """Whether a batch has run for longer than any should, and wasn't told to stop yet: cancel it and
    land what there is."""
    if row.created_at is None or row.state != RUNNING or submissions.was_told_to_stop(connection, row):
        return False
    return _hours_since(connection, pendulum.instance(row.created_at)) >= settings.batch_deadline_hours


def _missing(connection: Connection, row: SubmissionRow, status: BatchStatus, settings: Settings) -> Seen:
    marked = submissions.missing(connection, row)
    if marked is None:
        return _settled(submissions.by_id(connection, row.id))
    assert marked.missing_since is not None
    hours = _hours_since(connection, pendulum.instance(marked.missing_since))
    if hours < settings.batch_deadline_hours:
        log.warning("Batch %s isn't found for %.1f hours now; it may come back", row.batch_id, hours)
        return Seen.RUNNING
    reason = f"the provider hasn't known this batch for {hours:.0f} hours"
    log.error("Batch %s: %s; its requests count as missing", row.batch_id, reason)
    submissions.end(connection, marked, status, reason)
    return Seen.ENDED


def _again(connection: Connection, row: SubmissionRow, message: str, settings: Settings) -> Seen:
    """The queue was full all the same: less at a time for some hours, and this shard later."""
    wait = settings.queue_full_seconds * 2 ** min(row.attempt, _MOST_DOUBLINGS)
    with connection.transaction():
        void = submissions.void(connection, row, message, from_states=(RUNNING,))
        if void is not None:
            renew(
                connection,
                void,
                shards.get(connection, row.shard),
                run=row.run,
                reason=message,
                not_before=clock.now(connection).add(seconds=int(wait)),
            )
    if void is None:
        return _settled(submissions.by_id(connection, row.id))
    admission.halve(connection, row.account, row.model, message, cool_down_seconds=settings.cool_down_seconds)
    return Seen.AGAIN


def _settled(row: SubmissionRow) -> Seen:
    if row.state in (ENDED, LANDED):
        return Seen.ENDED
    return Seen.AGAIN if row.state == VOID else Seen.RUNNING


def _hours_since(connection: Connection, moment: pendulum.DateTime) -> float:
    return (clock.now(connection) - moment).total_seconds() / 3600.0
