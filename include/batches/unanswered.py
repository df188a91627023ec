"""A create whose outcome nobody knows: only what the provider holds decides.

A batch that is found is adopted. Look-ups that were completed and found nothing, over a grace period,
make the attempt void; one that failed decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pendulum

from include.batches import submissions
from include.batches.look_up import find
from include.batches.sending import Task, Waiting, check_account, created, waits
from include.batches.submissions import CREATING, SubmissionRow
from include.contracts import BatchState, BatchStatus
from include.errors import AccountError, ProviderError, ProviderUndecided
from include.ledger import clock

log = logging.getLogger(__name__)

_LOOK_UPS = 2


def resolve(task: Task, row: SubmissionRow) -> SubmissionRow | Waiting:
    """A create whose outcome nobody knows: adopt, wait, or, after the grace, make the attempt void."""
    check_account(row, task.provider)
    connection = task.connection
    try:
        found = _find(task, row)
        if found:
            return _adopt(task, row, found)
        row = submissions.nothing_found(connection, row)
        left = _grace_left(task, row)
        if left > 0 or row.look_ups < _LOOK_UPS:
            seconds = min(max(left, 1.0), task.settings.poll_seconds)
            return Waiting(
                f"create of submission {row.id} wasn't answered and no batch of it is found", seconds
            )
        # Without its input a batch that is still on its way somewhere can't run any more.
        if row.file_id is not None:
            task.provider.delete_file(row.file_id)
        found = _find(task, row)
        if found:
            return _adopt(task, row, found)
    except AccountError:
        raise
    except ProviderUndecided as error:
        return waits(task, row, Waiting(str(error), task.settings.poll_seconds))
    except ProviderError as error:
        log.warning("Shard %s: the look-up failed and decides nothing: %s", row.shard, error)
        waiting = Waiting(f"can't tell yet whether a batch exists: {error}", task.settings.poll_seconds)
        return waits(task, row, waiting)
    void = submissions.void(
        connection,
        row,
        f"create wasn't answered; {row.look_ups} look-ups over the grace period found no batch",
        from_states=(CREATING,),
    )
    return void if void is not None else submissions.by_id(connection, row.id)


def _find(task: Task, row: SubmissionRow) -> list[BatchStatus]:
    grace = task.settings.unknown_grace_seconds
    return find(task.connection, task.storage, task.provider, row, grace_seconds=grace)


def _adopt(task: Task, row: SubmissionRow, found: Sequence[BatchStatus]) -> SubmissionRow:
    """Take the batch that is furthest; where something between us made two of one call, cancel the rest."""
    best = max(found, key=lambda status: (status.error is None, status.completed, status.batch_id))
    adopted = created(task, row, best, adopted=True)
    for other in found:
        if other.batch_id != best.batch_id and other.state is BatchState.RUNNING:
            log.warning(
                "Submission %s has a second batch %s at the provider: cancelling it", row.id, other.batch_id
            )
            try:
                task.provider.cancel(other.batch_id)
            except ProviderError as error:
                log.error("Batch %s couldn't be cancelled, cancel it by hand: %s", other.batch_id, error)
    return adopted


def _grace_left(task: Task, row: SubmissionRow) -> float:
    """Seconds of the ledger's clock until look-ups that find nothing may decide."""
    assert row.first_look_up_at is not None
    since = (clock.now(task.connection) - pendulum.instance(row.first_look_up_at)).total_seconds()
    return task.settings.unknown_grace_seconds - since
