"""Submit a shard once: each step is written to the ledger before the call that it announces.

    planned ─ upload (free) ─ reserve ─▶ creating ─ create (the only paid call) ─▶ running

Where a provider takes the requests with the create there is no upload, and the newest batch is noted.

Rules that must not be relaxed:
- All of it happens under the lock `shard/{id}`, held through the create. Who finds a submission in
  `creating` with the lock in hand knows that its owner is gone and that a batch may exist.
- From there only the provider's answer decides: a batch found is adopted; only look-ups that were
  completed and found nothing, over a grace period, make the attempt void. A look-up that failed
  decides nothing.
- An attempt that is void is never sent: its shard gets a new attempt, with a file of its own.
- What another run planned for another account is that run's to send, watch and land: who joined it
  waits for its answers.
A refusal of the whole create is a fault of the set-up, not of an item: it raises, the attempt is
void, and its items are free for the next pack.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import IO

import pendulum

from include.batches import admission, claims, runs, shards, submissions
from include.batches.look_up import note_newest
from include.batches.reclaim import reclaim
from include.batches.sending import Submitted, Task, Waiting, created, waits
from include.batches.shard_files import requests_path
from include.batches.submissions import CREATING, LANDED, PLANNED, VOID, SubmissionRow
from include.batches.unanswered import resolve
from include.contracts import BatchProvider, Limits, Price, Shard
from include.errors import (
    AccountError,
    BudgetExceeded,
    ItemsTaken,
    LedgerError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnknown,
    QueueFull,
)
from include.ledger import clock
from include.ledger.connect import Connection
from include.ledger.locks import held
from include.settings import Settings
from include.storage import Storage

log = logging.getLogger(__name__)

INPUT_FILE_MISSING = "input_file_missing"
"""The code of a create that was refused because its file isn't there (yet), as providers name it."""
_FILE_TRIES = 5
"""Creates over one uploaded file that isn't found, before it is uploaded anew."""
_UPLOADS = 2


def submit(
    connection: Connection,
    storage: Storage,
    provider: BatchProvider,
    limits: Limits,
    shard_id: str,
    attempt: int,
    *,
    run: str,
    settings: Settings,
    price: Price | None = None,
    output_tokens_per_line: int = 0,
) -> Submitted | Waiting:
    """Bring a shard's attempt to the provider, once; whatever was begun before is finished first.

    Idempotent, and safe to kill at any point. `run` is the run that asks, and pays if it submits.
    An attempt that is void is followed to the next one, or to a new one while its items are free
    (ItemsTaken where they aren't: `pack` again). What another run has at another account is waited
    for until it landed. Raises AccountError (mend, then run the step again), ProviderRefused (a fault
    of the set-up), BudgetExceeded (its claims are released), RunCancelled or RunStopped (what was sent
    before is still followed).
    """
    shard = shards.get(connection, shard_id)
    want = admission.want_of(shard, price, output_tokens_per_line, provider.account)
    task = Task(connection, storage, provider, limits, shard, run, settings, want)
    with held(connection, f"shard/{shard_id}"):
        row = submissions.get(connection, shard_id, attempt)
        if row is None:
            raise LedgerError(f"attempt {attempt} at shard {shard_id} was never planned; run `pack` first")
        while True:
            if row.state != LANDED and is_elsewhere(row, provider, run):
                found = _elsewhere(task, row)
                if isinstance(found, Waiting):
                    return found
                row = found
            elif row.state == VOID:
                runs.refuse_idle(connection, run)
                # A new attempt that could only be refused would be one more void row.
                admission.check_budget(connection, row, want, run)
                next_one = partial(renew, connection, row, shard, run=run, reason=row.reason)
                row = reclaim(connection, storage, row, shard, next_one)
            elif row.state == PLANNED:
                runs.refuse_idle(connection, run)
                step = _send(task, _at_home(task, row))
                if isinstance(step, Waiting):
                    return step
                row = step
            elif row.state == CREATING:
                step = resolve(task, row)
                if isinstance(step, Waiting):
                    return step
                row = step
            else:
                return Submitted(row.id, row.shard, row.attempt, row.state, row.batch_id)


def renew(
    connection: Connection,
    row: SubmissionRow,
    shard: Shard,
    *,
    run: str,
    reason: str,
    not_before: datetime | None = None,
) -> SubmissionRow:
    """The next attempt at a void one's shard; every run that lists the void one now lists this."""
    with connection.transaction():
        id = submissions.plan(
            connection,
            shard=shard,
            attempt=row.attempt + 1,
            run=run,
            provider=row.provider,
            account=row.account,
            model=row.model,
            endpoint=row.endpoint,
            deployment=row.deployment,
            not_before=not_before,
            reason=reason,
        )
        shards.replace_attempt(connection, row.shard, row.attempt, row.attempt + 1)
    log.info(
        "Shard %s: attempt %d is void (%s), attempt %d follows",
        row.shard,
        row.attempt,
        reason,
        row.attempt + 1,
    )
    return submissions.by_id(connection, id)


def is_elsewhere(row: SubmissionRow, provider: BatchProvider, run: str) -> bool:
    """Whether a submission is another run's, at an account that this connection can't see."""
    return row.run != run and row.account != provider.account


def _elsewhere(task: Task, row: SubmissionRow) -> SubmissionRow | Waiting:
    """Another run's submission at another account: its next attempt where it is void, else wait.

    Raises ItemsTaken where nobody will send it any more: its items are free, for `pack` to divide.
    """
    following = submissions.get(task.connection, row.shard, row.attempt + 1)
    if row.state == VOID and following is not None:
        return following
    owner = runs.get(task.connection, row.run)
    if row.state == PLANNED and owner.state != "running":
        reason = f"run {row.run} is {owner.state}, and its account {row.account} isn't this connection's"
        row = submissions.void(task.connection, row, reason, from_states=(PLANNED,)) or submissions.by_id(
            task.connection, row.id
        )
    if row.state == VOID:
        raise ItemsTaken(
            f"attempt {row.attempt} at shard {row.shard} was joined from run {row.run} at account"
            f" {row.account}, and will never be sent there ({row.reason}); clear the task `pack` of this"
            " run, which sends what it needs from its own account"
        )
    then = (
        "" if owner.state == "running" else f", which is {owner.state}: clear its failed tasks to land them"
    )
    return Waiting(
        f"its items are in flight at account {row.account} for run {row.run}{then}",
        task.settings.admission_seconds,
    )


# --------------------------------------------------------------------------- from planned


def _at_home(task: Task, row: SubmissionRow) -> SubmissionRow:
    """Nothing of a planned submission exists but perhaps a file: it follows its run's connection."""
    if row.account == task.provider.account:
        return row
    return submissions.rehome(task.connection, row, task.provider.account)


def _send(task: Task, row: SubmissionRow) -> SubmissionRow | Waiting:
    """One way from planned to creating and on; the row's next state decides what follows."""
    connection = task.connection
    if row.not_before is not None:
        seconds = (pendulum.instance(row.not_before) - clock.now(connection)).total_seconds()
        if seconds > 0:
            return Waiting(row.reason or "backing off", seconds)
    try:
        admission.check_budget(connection, row, task.want, task.run)
        reason = admission.ask(connection, row, task.want, task.limits, task.run)
        if reason:
            return Waiting(reason, task.settings.admission_seconds)
        if row.file_id is None and task.provider.uploads:
            uploaded = _upload(task, row)
            if isinstance(uploaded, Waiting):
                return uploaded
            row = uploaded
        row = note_newest(connection, task.provider, row)
        reserved = admission.reserve(connection, row, task.want, task.limits, task.run)
    except BudgetExceeded:
        claims.release(connection, task.provider, task.run, f"over the budget of run {task.run}")
        raise
    except (QueueFull, ProviderUnavailable) as error:
        # Of what was noted before the create: nothing is announced yet.
        return waits(task, row, Waiting(str(error), task.settings.admission_seconds))
    if isinstance(reserved, str):
        return Waiting(reserved, task.settings.admission_seconds)
    return _create(task, reserved)


def _upload(task: Task, row: SubmissionRow) -> SubmissionRow | Waiting:
    path = requests_path(row.shard)
    started = time.monotonic()
    try:
        with task.storage.open_read(path) as file:
            file_id = task.provider.upload(file, task.storage.size(path), row.as_submission())
    except QueueFull as error:
        return waits(task, row, _back_off(task, error))
    except ProviderUnavailable as error:
        return waits(task, row, Waiting(str(error), task.settings.admission_seconds))
    except AccountError:
        raise
    except ProviderRefused as error:
        submissions.void(task.connection, row, str(error), from_states=(PLANNED,))
        raise
    log.info(
        "Shard %s: %d bytes uploaded as %s in %.1f s",
        row.shard,
        task.shard.bytes,
        file_id,
        time.monotonic() - started,
    )
    return submissions.record_upload(task.connection, row, file_id)


def _create(task: Task, row: SubmissionRow) -> SubmissionRow | Waiting:
    """Create, over a file that the provider may not find at once. `row` is in state creating."""
    for upload in range(1, _UPLOADS + 1):
        for attempt in range(_FILE_TRIES):
            answer = _create_once(task, row)
            if not isinstance(answer, ProviderRefused):
                return answer
            row = submissions.not_created(task.connection, row, str(answer))
            if attempt + 1 == _FILE_TRIES:
                if upload == _UPLOADS:
                    submissions.void(task.connection, row, str(answer), from_states=(PLANNED,))
                    raise answer
                # It may turn up yet, and is used by nothing then.
                claims.delete_file(task.provider, row)
                uploaded = _upload(task, submissions.forget_upload(task.connection, row, str(answer)))
                if isinstance(uploaded, Waiting):
                    return uploaded
                row = uploaded
            else:
                wait = task.settings.file_wait_seconds * 2**attempt
                log.info("Shard %s: file %s isn't found yet; again in %.2f s", row.shard, row.file_id, wait)
                time.sleep(wait)
            reserved = admission.reserve(task.connection, row, task.want, task.limits, task.run)
            if isinstance(reserved, str):
                return Waiting(reserved, task.settings.admission_seconds)
            row = reserved
    raise AssertionError("the last refusal is raised")


def _create_once(task: Task, row: SubmissionRow) -> SubmissionRow | Waiting | ProviderRefused:
    """One paid call. Returns the refusal only where the input file isn't found; raises any other.

    The row returned is running, or still creating where nobody knows: the caller asks the provider.
    """
    connection = task.connection
    try:
        with _requests(task) as requests:
            status = task.provider.create(row.as_submission(), requests)
    except ProviderUnknown as error:
        log.warning("Shard %s: %s; asking the provider whether the batch exists", row.shard, error)
        return row
    except QueueFull as error:
        waiting = _back_off(task, error)
        submissions.not_created(connection, row, waiting.reason, wait_seconds=waiting.seconds)
        admission.halve(
            connection,
            row.account,
            row.model,
            str(error),
            cool_down_seconds=task.settings.cool_down_seconds,
        )
        return waiting
    except ProviderUnavailable as error:
        submissions.not_created(connection, row, str(error))
        return Waiting(str(error), task.settings.admission_seconds)
    except AccountError as error:
        submissions.not_created(connection, row, str(error))
        raise
    except ProviderRefused as error:
        if error.code == INPUT_FILE_MISSING:
            return error
        planned = submissions.not_created(connection, row, str(error))
        submissions.void(connection, planned, str(error), from_states=(PLANNED,))
        raise
    return created(task, row, status, adopted=False)


@contextmanager
def _requests(task: Task) -> Iterator[IO[bytes] | None]:
    """The shard's request file, where it goes with the create."""
    if task.provider.uploads:
        yield None
        return
    with task.storage.open_read(requests_path(task.shard.id)) as file:
        yield file


def _back_off(task: Task, error: QueueFull) -> Waiting:
    seconds = task.settings.queue_full_seconds if error.retry_after is None else error.retry_after
    return Waiting(str(error), max(seconds, 1.0))
