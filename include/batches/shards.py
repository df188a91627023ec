"""The shards, and which run lists which: registered all at once, and never twice.

The only writer of the tables `shards` and `run_shards`. A shard belongs to nobody; a run's list
survives clears, and any run that lists a shard may advance it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.batches import spaces
from include.contracts import Shard
from include.errors import LedgerError
from include.ledger.connect import Connection

FIRST_ROUND, SECOND_ROUND = 1, 2


@dataclass(frozen=True, slots=True)
class ListedShard:
    """One entry of a run's list. `joined` means that another run had it in flight already."""

    run: str
    round: int
    ordinal: int
    attempt: int
    joined: bool
    shard: Shard


Plan = Callable[[Shard, int], object]
"""Plans the submission of (shard, attempt) in the ledger: `submissions.plan` with the rest bound."""


def register(
    connection: Connection,
    *,
    space_id: str,
    epoch: int,
    run: str,
    round: int,
    new: Sequence[Shard],
    joined: Sequence[tuple[str, int]],
    plan: Plan,
    void: Sequence[ListedShard] = (),
) -> bool:
    """Add shards to a run's list and plan a submission of each new one, in one transaction.

    `joined` are (shard, attempt) in flight elsewhere. `void` are entries of the list that nothing
    was paid for: their items are planned anew, so they go. False, and nothing done, where the space's
    epoch isn't the one seen: somebody registered since, and the caller must subtract again.
    """
    with connection.transaction():
        if not spaces.raise_epoch(connection, space_id, epoch):
            return False
        row = connection.execute(
            "select coalesce(max(ordinal) + 1, 0) as next from run_shards where run = %s and round = %s",
            (run, round),
        ).fetchone()
        assert row is not None
        for entry in void:
            unlist(connection, entry)
        entries: list[tuple[str, int, bool]] = [(shard, attempt, True) for shard, attempt in joined]
        for shard in new:
            attempt = _insert(connection, shard)
            plan(shard, attempt)
            entries.append((shard.id, attempt, False))
        with connection.cursor() as cursor:
            cursor.executemany(
                "insert into run_shards (run, round, ordinal, shard, attempt, joined)"
                " values (%s, %s, %s, %s, %s, %s)",
                [
                    (run, round, ordinal, shard, attempt, is_joined)
                    for ordinal, (shard, attempt, is_joined) in enumerate(sorted(entries), row["next"])
                ],
            )
    return True


def _insert(connection: Connection, shard: Shard) -> int:
    """Record the shard if it is new; returns the number of its next attempt."""
    connection.execute(
        "insert into shards (shard, space, items, lines, bytes, tokens, registered_at)"
        " values (%s, %s, %s, %s, %s, %s, batch_inference.now()) on conflict (shard) do nothing",
        (shard.id, shard.space, shard.items, shard.lines, shard.bytes, shard.tokens),
    )
    row = connection.execute(
        "select coalesce(max(attempt), 0) + 1 as next from submissions where shard = %s", (shard.id,)
    ).fetchone()
    assert row is not None
    return int(row["next"])


def get(connection: Connection, shard_id: str) -> Shard:
    """One shard. Raises LedgerError when the ledger doesn't know it."""
    row = connection.execute("select * from shards where shard = %s", (shard_id,)).fetchone()
    if row is None:
        raise LedgerError(f"shard {shard_id} isn't in the ledger; `pack` registers shards")
    return _shard(row)


def of_run(connection: Connection, run: str, round: int) -> list[ListedShard]:
    """A run's list of one round, in its lasting order."""
    rows = connection.execute(
        "select * from run_shards join shards using (shard) where run = %s and round = %s order by ordinal",
        (run, round),
    )
    return [_listed(row) for row in rows]


def lists(connection: Connection, shard_id: str) -> list[ListedShard]:
    """Every run's entry for this shard, oldest attempt first."""
    rows = connection.execute(
        "select * from run_shards join shards using (shard) where shard = %s order by attempt, run, round",
        (shard_id,),
    )
    return [_listed(row) for row in rows]


def unlist(connection: Connection, entry: ListedShard) -> None:
    """Take one entry off its run's list."""
    connection.execute(
        "delete from run_shards where run = %s and round = %s and shard = %s",
        (entry.run, entry.round, entry.shard.id),
    )


def replace_attempt(connection: Connection, shard_id: str, attempt: int, by: int) -> int:
    """Point every list that waits for one attempt at the one made in its place; returns how many."""
    return connection.execute(
        "update run_shards set attempt = %s where shard = %s and attempt = %s", (by, shard_id, attempt)
    ).rowcount


def _listed(row: Mapping[str, Any]) -> ListedShard:
    return ListedShard(row["run"], row["round"], row["ordinal"], row["attempt"], row["joined"], _shard(row))


def _shard(row: Mapping[str, Any]) -> Shard:
    return Shard(row["shard"], row["space"], row["items"], row["lines"], row["bytes"], row["tokens"])
