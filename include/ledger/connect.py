"""Connections to the ledger, and its migrations.

A connection is opened by each step and closed at its end: tasks are forked, and a connection
must not cross a fork. Every connection has `search_path = batch_inference`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import psycopg
from psycopg.rows import dict_row

from include.errors import LedgerError

SCHEMA = "batch_inference"
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")
_MIGRATION_LOCK = 0x6C656467  # any fixed number: one migrator at a time

Connection = psycopg.Connection[dict[str, Any]]
"""A ledger connection; rows are dicts."""


@contextmanager
def connect(url: str) -> Iterator[Connection]:
    """Open the ledger in autocommit; use `connection.transaction()` for several statements.

    Raises LedgerError where the server doesn't answer or the schema is of another version.
    """
    with _open(url) as connection:
        _check_version(connection)
        yield connection


@contextmanager
def _open(url: str) -> Iterator[Connection]:
    try:
        connection = psycopg.connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            options=f"-c search_path={SCHEMA} -c timezone=UTC",
            application_name="batch_inference",
        )
    except psycopg.OperationalError as error:
        raise LedgerError(
            f"the ledger doesn't answer ({error}); check [batch_inference] ledger_url"
        ) from error
    with connection:
        yield connection


def migrations() -> list[tuple[int, str, str]]:
    """All migrations as (number, file name, SQL), in order."""
    found = []
    for entry in resources.files("include.ledger").joinpath("migrations").iterdir():
        match = _MIGRATION.match(entry.name)
        if match:
            found.append((int(match.group(1)), entry.name, entry.read_text(encoding="utf-8")))
    return sorted(found)


def migrate(url: str) -> list[str]:
    """Bring the ledger to this version, each migration in a transaction; returns what was applied."""
    applied = []
    with _open(url) as connection:
        connection.execute("select pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        try:
            connection.execute(f"create schema if not exists {SCHEMA}")
            connection.execute(
                "create table if not exists schema_migrations"
                " (number integer primary key, name text not null, applied_at timestamptz not null)"
            )
            done = {row["number"] for row in connection.execute("select number from schema_migrations")}
            for number, name, sql in migrations():
                if number in done:
                    continue
                with connection.transaction():
                    connection.execute(sql)
                    connection.execute(
                        "insert into schema_migrations values (%s, %s, clock_timestamp())", (number, name)
                    )
                applied.append(name)
        finally:
            connection.execute("select pg_advisory_unlock(%s)", (_MIGRATION_LOCK,))
    return applied


def _check_version(connection: Connection) -> None:
    wanted = migrations()[-1][0]
    try:
        row = connection.execute("select max(number) as number from schema_migrations").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        row = None
    there = row["number"] if row and row["number"] is not None else 0
    if there != wanted:
        raise LedgerError(
            f"the ledger is at migration {there} and this code needs {wanted}: "
            "run `python -m include.cli migrate` once"
        )
