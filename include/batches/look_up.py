"""Look up a submission whose create nobody heard the answer of, at the provider.

OpenAI's batches bear our submission's id. Where a provider keeps nothing of ours, what we noted
narrows the search: batches newer than the newest one before the call, not newer than the newest one
once the grace was over, of as many lines, and unknown to the ledger. Of those the custom_ids decide.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pendulum

from include.batches import submissions
from include.batches.shard_files import keys_path
from include.batches.submissions import SubmissionRow
from include.contracts import BatchProvider, BatchStatus, Evidence
from include.ledger import clock
from include.ledger.connect import Connection
from include.storage import Storage


def note_newest(connection: Connection, provider: BatchProvider, row: SubmissionRow) -> SubmissionRow:
    """Note the newest batch before a create, where the provider needs it. Raises ProviderError."""
    newest = provider.newest()
    return row if newest is None else submissions.note_newest(connection, row, newest)


def find(
    connection: Connection,
    storage: Storage,
    provider: BatchProvider,
    row: SubmissionRow,
    *,
    grace_seconds: float = math.inf,
) -> list[BatchStatus]:
    """The batches at the provider that are this submission's, and no other submission's of ours.

    What was created over `grace_seconds` after the create was announced isn't.
    Raises ProviderUndecided where one may be and only its end can tell, any other ProviderError where
    the look-up failed: neither decides anything.
    """
    row = _bounded(connection, provider, row, grace_seconds)
    evidence = Evidence(
        known=partial(submissions.known_batches, connection, row),
        custom_ids=partial(_custom_ids, storage, row.shard),
    )
    candidates = provider.find(row.as_submission(), evidence)
    known = evidence.known([status.batch_id for status in candidates])
    return [status for status in candidates if status.batch_id not in known]


def _bounded(
    connection: Connection, provider: BatchProvider, row: SubmissionRow, grace_seconds: float
) -> SubmissionRow:
    """Note the newest batch once the grace is over: a later one is somebody else's, and there may always
    be one more of those to wait for."""
    if row.after_batch_id is None or row.until_batch_id is not None or row.creating_at is None:
        return row
    since = (clock.now(connection) - pendulum.instance(row.creating_at)).total_seconds()
    newest = provider.newest() if since > grace_seconds else None
    return row if newest is None else submissions.note_last(connection, row, newest)


def _custom_ids(storage: Storage, shard_id: str) -> frozenset[str]:
    with storage.parquet_file(keys_path(shard_id)) as file:
        ids: list[Any] = file.read(columns=["custom_id"])["custom_id"].to_pylist()
    return frozenset(ids)
