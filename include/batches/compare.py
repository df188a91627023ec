"""Compare the ledger with what the provider holds: batches that either doesn't know, and files in vain.

Looks only at what is ours: it bears this installation's `deployment`, or the ledger knows it. Where a
provider keeps nothing of ours with a batch, only those that the ledger knows can be told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from include.batches import submissions
from include.batches.submissions import CREATING, ENDED, LANDED, PLANNED, RUNNING, VOID, SubmissionRow
from include.contracts import BatchProvider, BatchState, HeldBatch, HeldFile, iter_batches
from include.errors import ProviderError
from include.ledger.connect import Connection
from include.ledger.locks import try_held

log = logging.getLogger(__name__)

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that ledger and provider say differently, and what to do, in words.

    `name` is the batch or file at the provider; `submission` is ours, "" where none is known; `ledger` and
    `provider` are the states.
    """

    name: str
    submission: str
    ledger: str
    provider: str
    advice: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What of ours the provider holds (`batches`, `files`), and where the two differ.

    `unknown` batches are none of the ledger's, `lost` ones are live in the ledger only, `differing` are
    in another state there, `orphans` are files that no batch uses; those with a submission can be cleaned.
    """

    batches: int
    files: int
    unknown: tuple[Difference, ...]
    lost: tuple[Difference, ...]
    differing: tuple[Difference, ...]
    orphans: tuple[Difference, ...]


def compare(connection: Connection, provider: BatchProvider, deployment: str) -> Comparison:
    """Read all that the provider lists, page by page. Raises ProviderError where it can't be read."""
    live = submissions.at_provider(connection, provider.name, provider.account)
    unknown: list[Difference] = []
    differing: list[Difference] = []
    seen: set[str] = set()
    in_use: set[str] = set()
    count = 0
    for held, row in _ours(connection, provider, deployment):
        count += 1
        seen.add(held.status.batch_id)
        if held.file_id and held.status.state is BatchState.RUNNING:
            in_use.add(held.file_id)
        if row is not None and row.batch_id == held.status.batch_id:
            differing += _differing(held, row)
        elif row is not None and row.state == CREATING:
            differing.append(_told(held, row, "its create wasn't answered: the task `submit` takes it over"))
        else:
            unknown.append(_told(held, row, "no run lands it: cancel it at the provider if it still runs"))
    lost = [
        Difference(
            row.batch_id or "",
            row.id,
            row.state,
            "not listed",
            "the task `wait_for_batch` decides, after a while",
        )
        for row in live
        if row.batch_id not in seen
    ]
    files, orphans = 0, []
    for file, row in _our_files(connection, provider, deployment):
        files += 1
        if file.id not in in_use and not _is_needed(file, row):
            orphans.append(_orphan(file, row))
    return Comparison(count, files, tuple(unknown), tuple(lost), tuple(differing), tuple(orphans))


def clean(connection: Connection, provider: BatchProvider, comparison: Comparison) -> list[str]:
    """Delete the orphaned files whose submission the ledger knows; returns their ids.

    Each is looked at again under its shard's lock, which is held while anybody uploads or creates.
    """
    deleted = []
    for orphan in comparison.orphans:
        row = submissions.find(connection, orphan.submission) if orphan.submission else None
        if row is None:
            continue
        with try_held(connection, f"shard/{row.shard}") as got:
            row = submissions.by_id(connection, row.id)
            if not got or _is_needed(HeldFile(orphan.name, 0, "", row.id), row):
                continue
            try:
                provider.delete_file(orphan.name)
            except ProviderError as error:
                log.warning("File %s couldn't be deleted: %s", orphan.name, error)
                continue
            if row.state in (PLANNED, VOID) and row.file_id == orphan.name:
                submissions.forget_upload(connection, row, "deleted: no batch uses it")
        deleted.append(orphan.name)
    return deleted


def _ours(
    connection: Connection, provider: BatchProvider, deployment: str
) -> Iterator[tuple[HeldBatch, SubmissionRow | None]]:
    """Each batch that is ours, with its submission: the one that has the batch, else the one it bears."""
    for some in iter_batches(provider.list_batches(), _AT_ONCE):
        rows = submissions.named(
            connection,
            provider.name,
            provider.account,
            [held.status.batch_id for held in some],
            [held.submission for held in some],
        )
        by_batch = {row.batch_id: row for row in rows}
        by_id = {row.id: row for row in rows}
        for held in some:
            row = by_batch.get(held.status.batch_id) or by_id.get(held.submission)
            if row is not None or held.deployment == deployment:
                yield held, row


def _our_files(
    connection: Connection, provider: BatchProvider, deployment: str
) -> Iterator[tuple[HeldFile, SubmissionRow | None]]:
    for some in iter_batches(provider.list_files(), _AT_ONCE):
        names = [file.submission for file in some]
        rows = submissions.named(connection, provider.name, provider.account, [], names)
        by_id = {row.id: row for row in rows}
        for file in some:
            row = by_id.get(file.submission)
            if row is not None or file.deployment == deployment:
                yield file, row


def _differing(held: HeldBatch, row: SubmissionRow) -> list[Difference]:
    running = held.status.state is BatchState.RUNNING
    if row.state == RUNNING and not running:
        return [_told(held, row, "it has ended: the task `wait_for_batch` sees it next")]
    if row.state in (ENDED, LANDED, VOID) and running:
        return [_told(held, row, "the ledger took it for over: cancel it at the provider")]
    return []


def _told(held: HeldBatch, row: SubmissionRow | None, advice: str) -> Difference:
    ledger = "unknown" if row is None else row.state
    submission = held.submission if row is None else row.id
    return Difference(held.status.batch_id, submission, ledger, held.status.provider_status, advice)


def _orphan(file: HeldFile, row: SubmissionRow | None) -> Difference:
    if row is None:
        advice = "the ledger doesn't know it: delete it by hand, if no other installation bears this name"
        return Difference(file.id, "", "unknown", f"{file.bytes:,} bytes", advice)
    return Difference(file.id, row.id, row.state, f"{file.bytes:,} bytes", "`compare --clean` deletes it")


def _is_needed(file: HeldFile, row: SubmissionRow | None) -> bool:
    """Whether a batch uses the file, or is to be made of it."""
    return row is not None and row.state in (PLANNED, CREATING, RUNNING, ENDED) and row.file_id == file.id
