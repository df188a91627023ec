"""Advisory locks: who owns a thing now. They vanish with their connection, so a killed process lets go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from include.ledger.connect import Connection


def lock_number(name: str) -> int:
    """A signed 64-bit number for a name, as pg_advisory_lock wants it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


@contextmanager
def held(connection: Connection, name: str) -> Iterator[None]:
    """Hold the lock `name` through the block; waits for its present owner."""
    number = lock_number(name)
    connection.execute("select pg_advisory_lock(%s)", (number,))
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("select pg_advisory_unlock(%s)", (number,))


@contextmanager
def try_held(connection: Connection, name: str) -> Iterator[bool]:
    """Hold the lock `name` if nobody does; yields whether we got it."""
    number = lock_number(name)
    row = connection.execute("select pg_try_advisory_lock(%s) as got", (number,)).fetchone()
    got = bool(row and row["got"])
    try:
        yield got
    finally:
        if got and not connection.closed:
            connection.execute("select pg_advisory_unlock(%s)", (number,))
