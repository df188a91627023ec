"""Every error a user can meet. Each says what happened, to what, and what to do.

BatchInferenceError
├── ConfigError             a setting or corpus YAML is wrong; mend it
├── TooMuchBadInput         more of a source is unusable than its setting allows; nothing was sent
├── StorageError            a file that must be there isn't, or isn't whole
│   ├── PlanMissing         the run has no plan: its `prepare` never finished
│   └── DiskFull            there is no room for a file; what was written of it doesn't count
├── LedgerError             the ledger can't be reached or is of another version
│   └── ItemsTaken          a shard's items went elsewhere; `pack` divides them anew
├── RunCancelled            the run was cancelled; nothing more of it is sent
├── RunStopped              the run stopped sending by itself; mend the cause, then go on
├── BudgetExceeded          the estimate passes the budget; nothing was sent
├── IndexMismatch           an index has another dimension or metric than it must
├── IndexMissing            an index isn't there; running its ingest again refills it
├── ReadBackFailed          a store doesn't give back what it was just given
├── ReconcileError          requests aren't accounted for; names them
├── PublishRefused          the new index isn't complete or good enough; the old one stays
└── ProviderError
    ├── ProviderRefused     the provider said no; nothing exists, nothing was paid
    │   ├── AccountError    billing or credentials: stop, mend, resume
    │   └── QueueFull       an account limit: wait, then try again
    ├── ProviderUnknown     no answer we can trust: the work may have been done
    └── ProviderUnavailable a read failed; nothing changed, try again
        └── ProviderUndecided   nothing failed, and only time can tell
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class BatchInferenceError(Exception):
    """The root of all errors of this project."""


class ConfigError(BatchInferenceError):
    """A setting or a corpus's YAML is wrong. The message names the file and the field."""


class StorageError(BatchInferenceError):
    """A file that must be there isn't, or isn't whole."""


class DiskFull(StorageError):
    """There is no room for a file. Make some, then run the task again: what was written doesn't count."""


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Around writing a file: raises DiskFull where the system has no room for it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise DiskFull(
            f"{what} can't be written: {error.strerror}. What was written of it doesn't count: make room,"
            " then clear the task"
        ) from error


class PlanMissing(StorageError):
    """A run has no plan, because its `prepare` never finished. Clear that task."""


class TooMuchBadInput(BatchInferenceError):
    """More of a source is unusable than `source.max_bad_share` allows. Nothing was sent."""


class LedgerError(BatchInferenceError):
    """The ledger can't be reached, or its schema is of another version."""


class ItemsTaken(LedgerError):
    """A shard that was never paid for can't be sent: others sent its items. Clear the task `pack`."""


class RunStopped(BatchInferenceError):
    """The run sends nothing more: the account refuses, or too much fails. It can be taken up again."""


class RunCancelled(BatchInferenceError):
    """A person cancelled the run. Nothing more of it is sent until its `prepare` is cleared."""


class BudgetExceeded(BatchInferenceError):
    """What is to be spent passes the budget. Nothing was sent."""


class IndexMismatch(BatchInferenceError):
    """An index has another dimension or metric than it must have."""


class IndexMissing(BatchInferenceError):
    """An index isn't there. Running its ingest again refills it from results that are paid for."""


class ReadBackFailed(BatchInferenceError):
    """A vector store doesn't give back what it was just given. Nothing was deleted; run again."""


class ReconcileError(BatchInferenceError):
    """A run can't account for each of its requests."""


class PublishRefused(BatchInferenceError):
    """The new index isn't complete or good enough. What readers read is unchanged."""


class ProviderError(BatchInferenceError):
    """Something between us and the provider. `code` is the provider's, where it gave one."""

    def __init__(self, message: str, *, code: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class ProviderRefused(ProviderError):
    """The provider said no before doing anything. Nothing exists and nothing was paid."""


class AccountError(ProviderRefused):
    """Billing or credentials: nothing of this run will work until a person mends it."""


class QueueFull(ProviderRefused):
    """A limit of the account is reached. Waiting helps; `retry_after` is in seconds if known."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, status=status)
        self.retry_after = retry_after


class ProviderUnknown(ProviderError):
    """No answer that can be trusted: time-out, dropped response, 5xx, 409. The work may be done."""


class ProviderUnavailable(ProviderError):
    """A read failed. Nothing changed by it; trying again is safe."""


class ProviderUndecided(ProviderUnavailable):
    """What was read leaves it open whether a batch is ours: ask again once it has ended."""
