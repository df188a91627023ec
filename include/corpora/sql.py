"""Rows of a SQL query, streamed over a connection that the caller opens.

The window reaches the query as bound parameters, never as text: `:start` is the first moment of the
partitions asked for, `:end` the first after them; where all are asked for, they hold all of time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from typing import Any

from include.corpora.records import Fault, Found
from include.corpora.source_config import WINDOW, SourceConfig
from include.errors import BatchInferenceError, ConfigError, StorageError

Connect = Callable[[str], AbstractContextManager[Any]]
"""Opens a DB-API connection by its name, and closes it at the end of the block."""

_ROWS = 500
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
# What every database can hold: MySQL begins with the year 1000.
_BEGINNING = datetime(1000, 1, 2, tzinfo=UTC)
_END = datetime(9999, 12, 30, tzinfo=UTC)


def read_sql(
    config: SourceConfig, connect: Connect | None, partitions: Sequence[str] | None
) -> Iterator[Found | Fault]:
    """A record a row of the answer, by the names of its columns; `line` is the row's number.

    Raises ConfigError where a column is missing that every record needs, StorageError where the
    database refuses.
    """
    if connect is None:
        raise ConfigError("a source of kind: sql is read by the DAGs, with an Airflow connection")
    row = 0
    try:
        with connect(str(config.connection)) as connection:
            text, values = bound(str(config.query), _paramstyle(connection), window(partitions))
            with closing(_cursor(connection)) as cursor:
                cursor.arraysize = _ROWS
                cursor.execute(text, values) if values else cursor.execute(text)
                # A server-side cursor knows its columns once it has fetched.
                rows = cursor.fetchmany(_ROWS)
                names = [str(column[0]) for column in cursor.description or ()]
                _check(names, config)
                while rows:
                    for found in rows:
                        row += 1
                        whole = isinstance(found, Mapping)
                        yield Found(row, dict(found) if whole else dict(zip(names, found, strict=True)))
                    rows = cursor.fetchmany(_ROWS)
    except BatchInferenceError:
        raise
    except Exception as error:
        # Each driver has exceptions of its own; none of ours are raised inside this block.
        after = f" after row {row:,}" if row else ""
        raise StorageError(f"source.query on {config.connection} failed{after}: {error}") from error


def window(partitions: Sequence[str] | None) -> tuple[datetime, datetime]:
    """From the first moment of these days to the first after them; all of time where one is no day."""
    if partitions is None or not partitions or not all(_DAY.fullmatch(name) for name in partitions):
        return _BEGINNING, _END
    try:
        days = [datetime.fromisoformat(name).replace(tzinfo=UTC) for name in partitions]
    except ValueError:
        return _BEGINNING, _END
    return min(days), max(days) + timedelta(days=1)


def bound(query: str, paramstyle: str, times: tuple[datetime, datetime]) -> tuple[str, Any]:
    """The query as its driver wants it, and its parameters; () where it has none."""
    named = dict(zip(("start", "end"), times, strict=True))
    used = [match.group(1) for match in WINDOW.finditer(query)]
    if not used:
        return query, ()
    if paramstyle == "named":
        return query, {name: named[name] for name in used}
    count = iter(range(1, len(used) + 1))
    marks: dict[str, Callable[[str], str]] = {
        "pyformat": lambda name: f"%({name})s",
        "format": lambda name: "%s",
        "qmark": lambda name: "?",
        "numeric": lambda name: f":{next(count)}",
    }
    if "format" in paramstyle:
        query = query.replace("%", "%%")
    text = WINDOW.sub(lambda match: marks[paramstyle](match.group(1)), query)
    if paramstyle == "pyformat":
        return text, {name: named[name] for name in used}
    return text, tuple(named[name] for name in used)


def _paramstyle(connection: Any) -> str:
    """How the connection's driver writes parameters: each says it in the package it comes from."""
    name = type(connection).__module__
    while name:
        style = getattr(sys.modules.get(name), "paramstyle", None)
        if isinstance(style, str):
            return style
        name = name.rpartition(".")[0]
    return "pyformat"


def _cursor(connection: Any) -> Any:
    """A cursor that fetches as it's read: PostgreSQL's drivers hold the whole answer unless it's named."""
    driver = type(connection).__module__.partition(".")[0]
    if driver in ("psycopg", "psycopg2"):
        return connection.cursor(name="documents")
    return connection.cursor()


def _check(names: list[str], config: SourceConfig) -> None:
    fields = config.fields
    for setting in ("id", "text", "tenant", "partition"):
        name = getattr(fields, setting)
        if name is not None and name not in names:
            raise ConfigError(
                f"source.query gives no column {name}, which source.fields.{setting} names; it gives "
                f"{', '.join(names)}"
            )
