"""SQL sources: a real PostgreSQL is read by cursor, with the window as bound parameters."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from include.corpora.config import CorpusConfig
from include.corpora.records import Document, Reason
from include.corpora.sources import Source
from include.corpora.sql import bound, window
from include.errors import ConfigError, StorageError
from include.ledger.connect import Connection
from include.storage import Storage
from tests.corpora.corpus import Corpus, config
from tests.corpora.reading import documents, ends, faults, read

TICKETS = """
create table tickets (
    id uuid primary key default gen_random_uuid(), subject text, body text, customer integer,
    priority integer, tags jsonb, price numeric, updated_at timestamptz
);
insert into tickets (subject, body, customer, priority, tags, price, updated_at) values
    ('One', 'The first 100% of it.', 1, 3, '["a"]', 1.5, '2026-01-01 10:00+00'),
    ('Two', 'The second.', 2, 1, null, 2, '2026-01-02 00:30+01'),
    ('Three', 'The third.', 1, null, null, null, '2026-01-02 10:00+00'),
    ('Four', 'The fourth.', 2, 2, null, null, '2026-01-03 00:00+00')
"""
QUERY = """
select id, subject, body, customer, priority, tags, price, updated_at, '5%'::text as share from tickets
where updated_at >= :start and updated_at < :end order by updated_at
"""
DAY = window(["2026-01-02"])
FIELDS = {"text": "body", "title": "subject", "tenant": "customer", "partition": "updated_at"}


def tickets(**source: Any) -> CorpusConfig:
    return config(
        None,
        **{
            "kind": "sql",
            "partition": None,
            "connection": "support",
            "query": QUERY,
            "fields": FIELDS,
            "metadata": {"priority": "integer"},
            **source,
        },
    )


class Database:
    """A PostgreSQL database that a source reads, and the connections it opened."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened: list[psycopg.Connection[Any]] = []
        with psycopg.connect(url) as connection:
            connection.execute(TICKETS)

    @contextmanager
    def connect(self, name: str) -> Iterator[psycopg.Connection[Any]]:
        assert name == "support"
        with closing(psycopg.connect(self.url)) as connection:
            self.opened.append(connection)
            yield connection


@pytest.fixture
def database(ledger_url: str) -> Database:
    return Database(ledger_url)


class TestReading:
    def test_a_row_is_a_document_with_its_types(self, database: Database) -> None:
        corpus = tickets(metadata=["tags", "price", "share"])
        found = documents(read(corpus, sql=database.connect))
        assert [document.title for document in found] == ["One", "Two", "Three", "Four"]
        assert len(found[0].id) == 36
        assert found[0].text == "The first 100% of it."
        assert found[0].updated_at == datetime(2026, 1, 1, 10, tzinfo=UTC)
        assert found[0].metadata == {"tags": ["a"], "price": 1.5, "share": "5%", "tenant": "1"}
        assert (found[0].file, found[0].line) == ("sql:support", 1)

    def test_a_window_reads_its_days_only(self, database: Database) -> None:
        events = read(tickets(), ["2026-01-01", "2026-01-02"], database.connect)
        assert [(document.title, document.partition) for document in documents(events)] == [
            ("One", "2026-01-01"),
            ("Two", "2026-01-01"),
            ("Three", "2026-01-02"),
        ]
        assert ends(events) == {"2026-01-02": True, "2026-01-01": True}

    def test_days_between_those_asked_for_are_passed_over(self, database: Database) -> None:
        events = read(tickets(), ["2026-01-01", "2026-01-03"], database.connect)
        assert [document.title for document in documents(events)] == ["One", "Two", "Four"]

    def test_bad_rows_are_named_by_number_and_the_rest_goes_on(self, database: Database) -> None:
        with psycopg.connect(database.url) as connection:
            connection.execute("update tickets set customer = null where subject = 'One'")
            connection.execute("update tickets set body = ' ' where subject = 'Three'")
        events = read(tickets(), sql=database.connect)
        assert [(fault.line, fault.reason) for fault in faults(events)] == [
            (1, Reason.MISSING_TENANT),
            (3, Reason.BLANK_TEXT),
        ]
        assert [document.title for document in documents(events)] == ["Two", "Four"]

    def test_rows_are_fetched_as_they_are_read(self, database: Database) -> None:
        query = "select n as id, repeat('x', 1000) as body, n as customer from generate_series(1, 20000) n"
        corpus = tickets(query=query, fields={"text": "body", "tenant": "customer"}, metadata=[])
        events = Source(corpus.source, database.connect).read()
        assert isinstance(next(events), Document)
        (connection,) = database.opened
        assert connection.execute("select count(*) from pg_cursors").fetchone() == (1,)
        assert sum(isinstance(event, Document) for event in events) == 19_999
        assert connection.closed


class TestErrors:
    def test_a_query_that_the_database_refuses_is_named(self, database: Database) -> None:
        corpus = tickets(query="select * from nowhere", fields={})
        with pytest.raises(StorageError, match=r"source\.query on support failed: .*nowhere"):
            read(corpus, sql=database.connect)

    def test_a_failure_in_mid_reading_says_after_which_row(self, database: Database) -> None:
        query = "select n as id, (1 / (1000 - n))::text as text from generate_series(1, 2000) n"
        with pytest.raises(StorageError, match="failed after row 500: division by zero"):
            read(tickets(query=query, fields={}, metadata=[]), sql=database.connect)

    def test_a_column_that_is_missing_is_named(self, database: Database) -> None:
        with pytest.raises(ConfigError, match=r"no column text, which source\.fields\.text names"):
            read(tickets(query="select id, body from tickets", fields={}), sql=database.connect)

    def test_without_connections_it_says_who_has_them(self) -> None:
        with pytest.raises(ConfigError, match="Airflow connection"):
            read(tickets())


class TestPreparing:
    def test_a_row_that_is_gone_from_a_day_is_deleted_from_it(
        self, database: Database, storage: Storage, ledger: Connection
    ) -> None:
        corpus = Corpus(Path(), storage, ledger, {}, tickets(), database.connect)
        assert corpus.run("all").new == 4
        with psycopg.connect(database.url) as connection:
            connection.execute("delete from tickets where subject in ('One', 'Four')")
            connection.execute(
                "update tickets set body = 'Newer.', updated_at = '2026-01-03 10:00+00' where subject = 'Two'"
            )
        report = corpus.run("the first day", partitions=["2026-01-01"])
        # 'Two' has left that day too, and is read with its new one.
        assert (report.deleted, report.partitions) == (2, {"2026-01-01": True})
        report = corpus.run("the third day", partitions=["2026-01-03"])
        assert (report.new, report.deleted) == (1, 1)
        assert {row["text"] for row in corpus.rows("the third day").to_pylist()} == {"Newer."}

    def test_a_day_without_a_row_is_empty_but_a_query_without_one_is_not(
        self, database: Database, storage: Storage, ledger: Connection
    ) -> None:
        corpus = Corpus(Path(), storage, ledger, {}, tickets(), database.connect)
        assert corpus.run("first").new == 4
        with psycopg.connect(database.url) as connection:
            connection.execute("delete from tickets where updated_at < '2026-01-02'")
        report = corpus.run("second")
        assert (report.unchanged, report.deleted) == (2, 2)
        with psycopg.connect(database.url) as connection:
            connection.execute("delete from tickets")
        assert corpus.run("broken").deleted == 0

    def test_partitions_in_any_order_are_stored_each_by_itself(
        self, database: Database, storage: Storage, ledger: Connection
    ) -> None:
        query = """
            select n as id, 'Text of ' || n as text, '2026-01-01'::date + n % 40 as day
            from generate_series(1, 3000) n
        """
        corpus = Corpus(
            Path(),
            storage,
            ledger,
            {},
            tickets(query=query, fields={"partition": "day"}, metadata=[]),
            database.connect,
        )
        report = corpus.run("r")
        assert report.new == 3000
        assert set(report.partitions.values()) == {True}
        assert len(report.partitions) == 40
        chunks = f"corpora/small/chunks/{tickets().chunking.fingerprint}"
        stored = [path for partition in report.partitions for path in storage.list(f"{chunks}/{partition}")]
        rows = [(path, row) for path in stored for row in corpus.table(path).to_pylist()]
        assert len(rows) == 3000
        assert all(f"/{row['partition']}/" in path for path, row in rows)
        assert corpus.run("again").unchanged == 3000


class TestParameters:
    def test_a_window_is_from_midnight_to_midnight(self) -> None:
        start, end = window(["2026-01-02"])
        assert start == datetime(2026, 1, 2, tzinfo=UTC)
        assert end == datetime(2026, 1, 3, tzinfo=UTC)

    def test_all_partitions_are_all_of_time(self) -> None:
        for partitions in (None, ["europe"], ["2026-13-45"]):
            start, end = window(partitions)
            assert (start.year, end.year) == (1000, 9999)

    @pytest.mark.parametrize(
        ("paramstyle", "text", "values"),
        [
            ("pyformat", "a > %(start)s and b like 'x%%' and c::start and a < %(end)s", {"start", "end"}),
            ("format", "a > %s and b like 'x%%' and c::start and a < %s", 2),
            ("qmark", "a > ? and b like 'x%' and c::start and a < ?", 2),
            ("numeric", "a > :1 and b like 'x%' and c::start and a < :2", 2),
            ("named", "a > :start and b like 'x%' and c::start and a < :end", {"start", "end"}),
        ],
    )
    def test_each_driver_gets_its_own_style(self, paramstyle: str, text: str, values: Any) -> None:
        query = "a > :start and b like 'x%' and c::start and a < :end"
        found, parameters = bound(query, paramstyle, DAY)
        assert found == text
        if isinstance(values, int):
            assert parameters == DAY
        else:
            assert set(parameters) == values

    def test_a_query_without_them_is_left_as_it_is(self) -> None:
        assert bound("select '100%'", "pyformat", DAY) == ("select '100%'", ())

    def test_another_database_is_read_too(self) -> None:
        @contextmanager
        def connect(name: str) -> Iterator[sqlite3.Connection]:
            with closing(sqlite3.connect(":memory:")) as connection:
                connection.execute("create table t (id, text, day)")
                rows = [("a", "Old.", "2026-01-01"), ("b", "New.", "2026-01-02")]
                connection.executemany("insert into t values (?, ?, ?)", rows)
                yield connection

        query = "select * from t where day >= date(:start) and day < date(:end)"
        corpus = tickets(query=query, fields={"partition": "day"}, metadata=[])
        assert [document.id for document in documents(read(corpus, ["2026-01-02"], connect))] == ["b"]


class TestAirflowsConnections:
    def test_a_query_is_read_over_one(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        from batch_inference.connections import sql

        url = urlsplit(database.url)
        host = url.hostname or parse_qs(url.query)["host"][0]
        connection = {
            "conn_type": "postgres",
            "login": url.username,
            "password": url.password,
            "host": host,
            "port": url.port,
            "schema": url.path.removeprefix("/"),
        }
        monkeypatch.setenv("AIRFLOW_CONN_SUPPORT", json.dumps(connection))
        events = read(tickets(), ["2026-01-01"], sql)
        assert [document.title for document in documents(events)] == ["One", "Two"]

    def test_one_that_knows_no_sql_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from batch_inference.connections import sql

        monkeypatch.setenv("AIRFLOW_CONN_SUPPORT", json.dumps({"conn_type": "openai", "password": "x"}))
        with pytest.raises(ConfigError, match=r"source\.connection is 'support'.*knows no SQL"):
            read(tickets(), sql=sql)
