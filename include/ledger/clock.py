"""The clock that decides by time: the database's, shifted by a test together with the emulator's."""

from __future__ import annotations

import pendulum

from include.ledger.connect import Connection


def now(connection: Connection) -> pendulum.DateTime:
    """The ledger's time, UTC."""
    row = connection.execute("select batch_inference.now() as now").fetchone()
    assert row is not None
    return pendulum.instance(row["now"])


def advance(connection: Connection, seconds: float) -> None:
    """Shift the clock forward. For tests."""
    connection.execute("update clock set offset_seconds = offset_seconds + %s", (seconds,))
