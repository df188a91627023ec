"""Cancel a run, and everything of it at the provider: what is planned is void, what runs is told to stop.

A shard that another working run lists goes on for that run. A cancelled batch still ends by itself,
and what it finished until then is paid for and landed like any other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from include.batches import claims, dead_letters, runs, submissions
from include.batches.look_up import find
from include.batches.sending import check_account
from include.batches.submissions import CREATING, PLANNED, RUNNING, SubmissionRow
from include.batches.submit import is_elsewhere
from include.contracts import BatchProvider
from include.errors import ProviderError
from include.ledger.connect import Connection
from include.ledger.locks import held
from include.storage import Storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a run's submissions, by id.

    `cancelled` were told to stop, `voided` were never sent, `kept` are wanted by another run or are
    another run's at another account, `unknown` couldn't be decided (the create was not answered, or
    the provider not reached): cancel again later. What had ended before is in none of them.
    """

    cancelled: tuple[str, ...] = ()
    voided: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def cancel_run(connection: Connection, storage: Storage, provider: BatchProvider, run: str) -> Cancelled:
    """Stop all that this run lists and nobody else wants; running it again does what was left over.

    The run is cancelled first, so that no task of it that still works sends anything after this. One
    that had succeeded, or was dry, has nothing to stop and stays what it is.
    Waits for a submit that is under way. Raises AccountError where the connection points to
    another account than a batch's.
    """
    done: dict[str, list[str]] = {"cancelled": [], "voided": [], "kept": [], "unknown": []}
    if runs.get(connection, run).state in ("running", "failed"):
        runs.finish(connection, run, "cancelled")
        dead_letters.put_back(connection, run)
    for listed in submissions.listed_by(connection, run):
        if listed.state not in (PLANNED, CREATING, RUNNING):
            continue
        with held(connection, f"shard/{listed.shard}"):
            row = submissions.by_id(connection, listed.id)
            kept = claims.wanted_by_others(connection, row, run) or is_elsewhere(row, provider, run)
            fate = "kept" if kept else _cancel(connection, storage, provider, row)
        if fate:
            done[fate].append(row.id)
    result = Cancelled(**{fate: tuple(ids) for fate, ids in done.items()})
    log.info(
        "Run %s: %d batches told to stop, %d never sent, %d go on for other runs, %d unknown",
        run,
        len(result.cancelled),
        len(result.voided),
        len(result.kept),
        len(result.unknown),
    )
    return result


def cancel_batch(provider: BatchProvider, row: SubmissionRow) -> bool:
    """Tell one running batch to stop; False where the provider couldn't be reached."""
    check_account(row, provider)
    assert row.batch_id is not None, "a running submission has a batch"
    try:
        provider.cancel(row.batch_id)
    except ProviderError as error:
        log.warning("Batch %s couldn't be told to stop, try again: %s", row.batch_id, error)
        return False
    return True


def _cancel(connection: Connection, storage: Storage, provider: BatchProvider, row: SubmissionRow) -> str:
    if row.state == CREATING:
        check_account(row, provider)
        try:
            found = find(connection, storage, provider, row)
        except ProviderError as error:
            log.warning("Submission %s: the look-up failed and decides nothing: %s", row.id, error)
            return "unknown"
        if not found:
            # It may turn up yet: only the grace of `submit` decides that it never will.
            return "unknown"
        row = submissions.created(connection, row, found[0], adopted=True)
    if row.state == PLANNED:
        if submissions.void(connection, row, "its run was cancelled", from_states=(PLANNED,)) is None:
            return "unknown"
        claims.delete_file(provider, row)
        return "voided"
    if row.state != RUNNING:
        return ""
    if not cancel_batch(provider, row):
        return "unknown"
    submissions.told_to_stop(connection, row)
    return "cancelled"
