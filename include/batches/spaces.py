"""The spaces that this installation has asked in, and the epoch that guards their registrations.

The only writer of the table `spaces`.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
import pendulum

from include.contracts import Space
from include.errors import LedgerError
from include.ledger.connect import Connection


@dataclass(frozen=True, slots=True)
class Proof:
    """The last probe of a space that succeeded. `dimensions` is None for text."""

    proven_at: pendulum.DateTime
    dimensions: int | None
    model_named: str


def ensure(connection: Connection, space: Space) -> None:
    """Record the space, if it is new."""
    connection.execute(
        "insert into spaces (space, description) values (%s, %s) on conflict (space) do nothing",
        (space.id, orjson.dumps(space.describe()).decode()),
    )


def epoch(connection: Connection, space_id: str) -> int:
    """How often shards were registered in this space. Raises LedgerError for an unknown space."""
    row = connection.execute("select epoch from spaces where space = %s", (space_id,)).fetchone()
    if row is None:
        raise LedgerError(f"space {space_id} isn't in the ledger; `ensure` it before anything is packed")
    return int(row["epoch"])


def raise_epoch(connection: Connection, space_id: str, seen: int) -> bool:
    """Raise the epoch if it is still the one seen; False means that somebody else registered."""
    cursor = connection.execute(
        "update spaces set epoch = epoch + 1 where space = %s and epoch = %s", (space_id, seen)
    )
    return cursor.rowcount == 1


def mark_proven(connection: Connection, space_id: str, *, dimensions: int | None, model_named: str) -> None:
    """Record a probe that succeeded."""
    connection.execute(
        "update spaces set proven_at = batch_inference.now(), dimensions = %s, model_named = %s"
        " where space = %s",
        (dimensions, model_named, space_id),
    )


def proof(connection: Connection, space_id: str) -> Proof | None:
    """The last probe that succeeded, or None."""
    row = connection.execute(
        "select proven_at, dimensions, model_named from spaces where space = %s", (space_id,)
    ).fetchone()
    if row is None or row["proven_at"] is None:
        return None
    return Proof(pendulum.instance(row["proven_at"]), row["dimensions"], row["model_named"] or "")
