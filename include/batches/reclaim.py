"""Reclaim: a shard whose attempt is void may be sent again only while its items are still free.

From the moment an attempt is void, others may pack its items, and have them in flight or answered.
So what `pack` does for new shards is done here for one that comes back: the epoch is read, then
what is in flight, then the results, and the new attempt is registered by compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Callable

import pendulum

from include.batches import spaces, submissions
from include.batches.shard_files import keys_path
from include.batches.submissions import SubmissionRow
from include.contracts import Shard
from include.errors import ItemsTaken, LedgerError
from include.ledger.connect import Connection
from include.requests import results
from include.requests.key_sets import opened
from include.storage import Storage

_TRIES = 20


def reclaim(
    connection: Connection,
    storage: Storage,
    row: SubmissionRow,
    shard: Shard,
    renew: Callable[[], SubmissionRow],
) -> SubmissionRow:
    """Have `renew` plan the next attempt of a void one, and return it.

    Raises ItemsTaken where others have sent some of its items meanwhile: `pack` must divide the
    run's items anew.
    """
    for _ in range(_TRIES):
        epoch = spaces.epoch(connection, shard.space)
        following = submissions.get(connection, row.shard, row.attempt + 1)
        if following is not None:
            # Somebody renewed it before; what is planned holds its items.
            return renew()
        taken = _taken(connection, storage, row, shard)
        if taken:
            raise ItemsTaken(
                f"attempt {row.attempt} at shard {row.shard} was never paid for ({row.reason}), and"
                f" {taken:,} of its {shard.items:,} items were sent by others since; clear the task"
                " `pack` of this run, which leaves those out"
            )
        with connection.transaction():
            if spaces.raise_epoch(connection, shard.space, epoch):
                return renew()
    raise LedgerError(
        f"attempt {row.attempt} at shard {row.shard}: others registered shards in space {shard.space}"
        f" during each of {_TRIES} tries; try again"
    )


def _taken(connection: Connection, storage: Storage, row: SubmissionRow, shard: Shard) -> int:
    """How many of the shard's items are in flight elsewhere, or were answered since it was planned."""
    others = [
        keys_path(other.shard)
        for other in submissions.live(connection, shard.space)
        if other.shard != shard.id
    ]
    answered = results.files(storage, shard.space)
    with opened(storage) as sets:
        sets.files("mine", [keys_path(shard.id)], "key")
        before = left = sets.table("free", "select key from mine")
        if others:
            sets.files("others", others, "key")
            _, left = sets.subtract("free", "others", left)
        if answered:
            sets.files("answered", answered, "key", pendulum.instance(row.planned_at))
            _, left = sets.subtract("free", "answered", left)
    return before - left
