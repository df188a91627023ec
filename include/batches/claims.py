"""Claims: whose shards are whose, and letting go of those that were never sent.

A planned submission claims its items: other runs join it instead of asking again. A shard belongs
to nobody, so a claim is released only when no other running run lists it.
"""

from __future__ import annotations

import logging

from include.batches import shards, submissions
from include.batches.shards import ListedShard
from include.batches.submissions import PLANNED, VOID, SubmissionRow
from include.contracts import BatchProvider
from include.errors import ProviderError
from include.ledger.connect import Connection

log = logging.getLogger(__name__)


def wanted_by_others(connection: Connection, row: SubmissionRow, run: str) -> bool:
    """Whether another run that still works lists this very attempt."""
    found = connection.execute(
        "select 1 from run_shards l join runs r using (run)"
        " where l.shard = %s and l.attempt = %s and l.run <> %s and r.state = 'running' limit 1",
        (row.shard, row.attempt, run),
    ).fetchone()
    return found is not None


def release(connection: Connection, provider: BatchProvider | None, run: str, reason: str) -> int:
    """Make void what this run lists and nobody sent, unless another run wants it; returns how many.

    Without a `provider` uploads that wait for their batch are left there. A step of the run that is
    cleared later claims its items again while they are free.
    """
    released = 0
    for claim in submissions.listed_by(connection, run):
        if claim.state != PLANNED or wanted_by_others(connection, claim, run):
            continue
        if submissions.void(connection, claim, reason, from_states=(PLANNED,)) is not None:
            released += 1
            if provider is not None:
                delete_file(provider, claim)
    return released


def drop(connection: Connection, entry: ListedShard, reason: str) -> bool:
    """Take off a run's list what it doesn't want and nobody sent, void where no other run wants it.

    False, and nothing done, where it was sent meanwhile: it stays listed, to be landed.
    """
    with connection.transaction():
        row = submissions.get(connection, entry.shard.id, entry.attempt)
        if row is None:
            return False
        wanted = wanted_by_others(connection, row, entry.run)
        if not wanted and submissions.void(connection, row, reason, from_states=(PLANNED,)) is None:
            return False
        shards.unlist(connection, entry)
    log.info("Shard %s is off the list of run %s: %s", entry.shard.id, entry.run, reason)
    return True


def sweep(connection: Connection, provider: BatchProvider, run: str) -> int:
    """Delete what was uploaded for attempts of this run that are void; returns how many files went."""
    swept = 0
    for row in abandoned_uploads(connection, run):
        if row.account == provider.account and delete_file(provider, row):
            submissions.forget_upload(connection, row, "deleted: the attempt is void")
            swept += 1
    return swept


def abandoned_uploads(connection: Connection, run: str) -> list[SubmissionRow]:
    """The attempts of this run that are void and have a file at the provider, as far as is known."""
    return [row for row in submissions.of_run(connection, run) if row.state == VOID and row.file_id]


def delete_file(provider: BatchProvider, row: SubmissionRow) -> bool:
    """Delete an upload that nothing uses: it costs nothing, but fills the project's storage."""
    if row.file_id is None or row.account != provider.account:
        return False
    try:
        provider.delete_file(row.file_id)
    except ProviderError as error:
        log.warning("File %s couldn't be deleted, which does no harm: %s", row.file_id, error)
        return False
    return True
