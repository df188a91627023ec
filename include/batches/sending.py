"""What the parts of a submit share: what it works with, what it comes to, and how that is written down."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from include.batches import submissions
from include.batches.admission import Want
from include.batches.submissions import SubmissionRow
from include.contracts import BatchProvider, BatchStatus, Limits, Shard
from include.errors import AccountError
from include.ledger.connect import Connection
from include.settings import Settings
from include.storage import Storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The shard's batch exists (or is over): wait for it, then land it. `attempt` may have moved on."""

    id: str
    shard: str
    attempt: int
    state: str
    batch_id: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be done now: try again in `seconds`. `reason` is for people."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """What one call of `submit` works with."""

    connection: Connection
    storage: Storage
    provider: BatchProvider
    limits: Limits
    shard: Shard
    run: str
    settings: Settings
    want: Want


def check_account(row: SubmissionRow, provider: BatchProvider) -> None:
    """Raise AccountError where the connection now points to another account than the batch's."""
    if row.account != provider.account:
        raise AccountError(
            f"submission {row.id} (batch {row.batch_id or 'unknown'}) belongs to account {row.account},"
            f" and the connection now points to account {provider.account}, which can't see it. Point"
            " the connection back to that account's organisation and project (any key of them will do)"
        )


def created(task: Task, row: SubmissionRow, status: BatchStatus, *, adopted: bool) -> SubmissionRow:
    """The batch exists: the provider answered, or a look-up found it."""
    log.info(
        "Shard %s: batch %s %s (%d lines, %d tokens)",
        row.shard,
        status.batch_id,
        "adopted" if adopted else "created",
        task.shard.lines,
        task.shard.tokens,
    )
    return submissions.created(task.connection, row, status, adopted=adopted)


def waits(task: Task, row: SubmissionRow, waiting: Waiting) -> Waiting:
    """Say in the ledger too why nothing is done now."""
    submissions.waits(task.connection, row, waiting.reason)
    return waiting
