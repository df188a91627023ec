"""Land: every line of an ended batch is judged by itself, and what was paid for is stored.

The order of writing makes a landing safe to kill and to repeat: results first, then failures, then
the ledger's compare-and-swap. The results file is named after the submission, so a landing that
runs again overwrites it; one that finds the submission landed does nothing.

Complete means that every key sent is accounted for, whatever the download, the batch's status or
its counts say: a key without an answer is a retryable failure.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from include.batches import claims, failures, submissions
from include.batches.judge import Judge, Verdict
from include.batches.sending import check_account
from include.batches.shard_files import keys_path
from include.batches.submissions import SubmissionRow
from include.contracts import (
    BatchProvider,
    BatchState,
    BatchStatus,
    Outcome,
    OutcomeClass,
    Price,
    Space,
    Usage,
)
from include.errors import LedgerError, ProviderUnavailable
from include.ledger import clock
from include.ledger.connect import Connection
from include.ledger.locks import held
from include.providers.codes import classify
from include.requests import results
from include.storage import Storage

log = logging.getLogger(__name__)

_LOG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LandReport:
    """What became of a submission's items, by class; they add up to `items`.

    `duplicates` are answers to a line that had one, `foreign` ones to no line of ours; both are
    set aside. `cost_usd` is None where no price is known. `landed_before` says that another
    landing did the work, and these are its figures.
    """

    submission: str
    items: int
    succeeded: int
    invalid: int
    retryable: int
    permanent: int
    account: int
    duplicates: int
    foreign: int
    usage: Usage
    cost_usd: float | None
    models: tuple[str, ...]
    landed_before: bool = False


def land(
    connection: Connection,
    storage: Storage,
    provider: BatchProvider,
    space: Space,
    price: Price | None,
    shard_id: str,
    attempt: int,
    *,
    dimensions: int | None,
    accept: Callable[[Outcome], Outcome] | None = None,
) -> LandReport:
    """Store what an ended submission brought, mark it landed, and delete the file it was sent from.

    `dimensions` is the vectors' length, None for text. `accept` is the workload's judgement of an
    answer, applied before the checks that hold for all. Raises LedgerError where the submission
    hasn't ended, ProviderUnavailable where its files can't be read now.
    """
    row = submissions.get(connection, shard_id, attempt)
    if row is None:
        raise LedgerError(f"attempt {attempt} at shard {shard_id} isn't in the ledger")
    # Several runs may list the shard: one downloads, the others find its work done.
    with held(connection, f"land/{row.id}"):
        row = submissions.by_id(connection, row.id)
        if row.state == submissions.LANDED:
            return _report(row, landed_before=True)
        if row.state != submissions.ENDED:
            raise LedgerError(
                f"submission {row.id} is {row.state}, so it can't be landed; watch it until it ends"
            )
        judge, status = _judge_all(connection, storage, provider, space, row, dimensions, accept)
        usage = judge.usage
        if usage == Usage() and status.usage is not None:
            usage = status.usage
        failures.write(storage, failures.of_attempt(shard_id, attempt), judge.failures())
        submissions.mark_landed(
            connection,
            row.id,
            counts=judge.counts(),
            usage=asdict(usage),
            cost_usd=None if price is None else price.cost(usage, batch=True),
        )
        report = _report(submissions.by_id(connection, row.id))
        claims.delete_file(provider, row)
    log.info("Landed submission %s: %s", row.id, report)
    return report


def _judge_all(
    connection: Connection,
    storage: Storage,
    provider: BatchProvider,
    space: Space,
    row: SubmissionRow,
    dimensions: int | None,
    accept: Callable[[Outcome], Outcome] | None,
) -> tuple[Judge, BatchStatus]:
    """Read every outcome, write the results, and account for each key."""
    status = _status(provider, row)
    with storage.parquet_file(keys_path(row.shard)) as file:
        table = file.read()
    path = results.path(space.id, row.id)
    with results.writing(storage, path, dimensions, clock.now(connection)) as writer:
        judge = Judge(table, writer, dimensions)
        started = logged = time.monotonic()
        for number, outcome in enumerate(provider.outcomes(status, space), 1):
            judge.take(outcome if accept is None else accept(outcome))
            if number % 1024 == 0 and time.monotonic() - logged >= _LOG_SECONDS:
                logged = time.monotonic()
                log.info("Read %d of %d lines, %.0f/s", number, row.lines, number / (logged - started))
        judge.flush()
    for line, (code, message) in status.failed_lines.items():
        judge.fail_line(line - 1, (OutcomeClass.PERMANENT, code, message))
    judge.fail_unanswered(_why_unanswered(status))
    return judge, status


def _status(provider: BatchProvider, row: SubmissionRow) -> BatchStatus:
    """The ended batch. Raises ProviderUnavailable where the provider says otherwise, for now."""
    if row.batch_id is None:
        raise LedgerError(f"submission {row.id} has ended without a batch; there is nothing to land")
    check_account(row, provider)
    status = provider.status(row.batch_id)
    if status.state is BatchState.ENDED:
        return status
    files = row.output_file_id is not None or row.error_file_id is not None
    if status.state is BatchState.NOT_FOUND and (files or row.provider_status == status.provider_status):
        # Its files may outlive the batch; and one that was given up for lost has none.
        return replace(
            status,
            state=BatchState.ENDED,
            output_file_id=row.output_file_id,
            error_file_id=row.error_file_id,
        )
    raise ProviderUnavailable(
        f"batch {row.batch_id} of submission {row.id} has ended, but the provider says"
        f" {status.provider_status or status.state.value}; try again later"
    )


def _why_unanswered(status: BatchStatus) -> Verdict:
    """What it means that a key sent has no answer in any file."""
    if status.error is None and status.failed_lines:
        named = ", ".join(sorted({code for code, _ in status.failed_lines.values()}))
        message = (
            f"batch {status.batch_id} was refused whole for {len(status.failed_lines)} other lines: {named}"
        )
        return OutcomeClass.RETRYABLE, "file_refused", message
    if status.error is None:
        return (
            OutcomeClass.RETRYABLE,
            "missing",
            f"batch {status.batch_id} is {status.provider_status} and its files hold no answer to this",
        )
    code, message = status.error
    account = classify(code) is OutcomeClass.ACCOUNT
    return (OutcomeClass.ACCOUNT if account else OutcomeClass.RETRYABLE, code, message)


def _report(row: SubmissionRow, *, landed_before: bool = False) -> LandReport:
    """The report from what the ledger holds, so that whoever lands second reads the same figures."""
    counts: Mapping[str, Any] = row.counts
    by_class = Counter({cls.value: int(counts[cls.value]) for cls in OutcomeClass})
    usage: Mapping[str, Any] = row.usage
    return LandReport(
        submission=row.id,
        items=by_class.total(),
        **by_class,
        duplicates=int(counts["duplicates"]),
        foreign=int(counts["foreign"]),
        usage=Usage(**usage),
        cost_usd=row.cost_usd,
        models=tuple(counts["models"]),
        landed_before=landed_before,
    )
