"""Reconcile: every item of a run's rows is reused, succeeded or dead-lettered, or the run fails.

Counted by key and never by totals, so that an answer too many can't hide one that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from include.batches import dead_letters, runs, submissions
from include.batches.pack import answers
from include.contracts import RunRef, Space
from include.errors import ReconcileError
from include.ledger.connect import Connection
from include.requests.key_sets import Resources
from include.requests.results import submission_of
from include.requests.reuse import Reuse, Sources, planning
from include.storage import Storage

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Accounts:
    """A run's distinct items: `items = reused + succeeded + dead_lettered`.

    `succeeded` were answered by submissions that this run paid for, `reused` by any other.
    """

    items: int
    reused: int
    succeeded: int
    dead_lettered: int


def reconcile(
    connection: Connection,
    storage: Storage,
    space: Space,
    *,
    run: RunRef,
    rows: Sequence[str],
    only: pa.Array[Any] | None = None,
    reuse: Reuse | None = None,
    resources: Resources | None = None,
) -> Accounts:
    """The accounts of a run whose shards have landed and whose dead letters are buried.

    `rows` are Parquet files of `RUN_ROW_SCHEMA`, relative to the storage root; `only` restricts them to
    these keys. Raises ReconcileError that counts the items nobody can account for, and names the first.
    """
    reuse = reuse or Reuse()
    given = answers(connection, storage, space.id, run, reuse)
    paid = {row.id for row in submissions.of_run(connection, run.run)}
    sources = Sources(
        rows=rows,
        own=[path for path in given if submission_of(path) in paid],
        results=[path for path in given if submission_of(path) not in paid],
        blocked=dead_letters.accounted_keys(connection, run, space.id),
        only=only,
        since=reuse.since(runs.get(connection, run.run).started_at),
    )
    with planning(storage, sources, resources) as planned:
        plan = planned.plan
        if plan.missing:
            named = "; ".join(
                f"{key} of document {document!r}" for key, document in planned.missing_documents(_NAMED)
            )
            raise ReconcileError(
                f"run {run.run!r}: {plan.missing:,} of {plan.items:,} items are neither reused, nor"
                f" succeeded, nor dead-lettered; first: {named}. Clear the first failed task of this"
                " run with everything downstream, or `pack_retry` where none failed; what is paid for is"
                " not sent again"
            )
    return Accounts(plan.items, plan.reused, plan.own, plan.blocked)
