"""The document table: which version of each document is the newest truth. The only writer of it.

A run's view of its documents is gathered in a temporary table and merged at the end in one
transaction, after the run's rows are whole: a kill before it changes nothing, and after it the
retry finds, by the run's name, what each document was to it the first time.

What is newer, in this order: a later `updated_at`, where both have one; the later of two dated
partitions, unless the run has read the other one whole and the document is no longer in it; the
run that began to read later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import psycopg

from include.ledger import clock, locks
from include.ledger.connect import Connection

_DELETED_BATCH = 10_000


class Change(StrEnum):
    """What a document is to a run, against the table."""

    NEW = "new"
    CHANGED = "changed"
    MOVED = "moved"
    """Same text, another partition."""
    METADATA = "metadata"
    """Same text and partition, other title, URL or metadata."""
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    STALE = "stale"
    """Older than what the table, or another partition of this run, has: left out."""
    DUPLICATE = "duplicate"
    """The id was read before in this partition: left out."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A document's version as just read. Both hashes are empty where it's told to be deleted."""

    document_id: str
    partition: str
    content_hash: bytes
    metadata_hash: bytes
    updated_at: datetime | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a version is. `differs`: the table's row must be written. `store`: so must its chunks.
    `again`: the run has read this id before, and this version replaces that one."""

    change: Change
    differs: bool
    store: bool
    again: bool


# Of {new} against {old}; partitions are compared only where both are dates, whose order means time.
_STALE = """(
    coalesce({new}.updated_at < {old}.updated_at, false)
    or coalesce({new}.updated_at = {old}.updated_at, true) and (
        {new}.read_at < {old}.read_at
        or {old}.partition ~ '^[0-9]{{4}}' and {new}.partition ~ '^[0-9]{{4}}'
           and {new}.partition collate "C" < {old}.partition collate "C"
           and {old}.partition <> all(%(closed)s::text[])
    )
)"""

_JUDGE = f"""
select
    case
        when seen.usable and not coalesce(new.updated_at > seen.updated_at, false)
            then case when seen.partition = new.partition then 'duplicate' else 'stale' end
        when not seen.usable and seen.partition <> new.partition and old.document_id is not null
            then 'stale'
        when old.document_id is null then case when new.deleted then 'deleted' else 'new' end
        when {_STALE.format(new="new", old="old")} then 'stale'
        when old.run = %(run)s and (old.partition, old.content_hash, old.metadata_hash, old.deleted)
                                 = (new.partition, new.content_hash, new.metadata_hash, new.deleted)
            then old.change
        when new.deleted then case when old.deleted then 'unchanged' else 'deleted' end
        when old.deleted then 'new'
        when old.content_hash <> new.content_hash then 'changed'
        when old.partition <> new.partition then 'moved'
        when old.metadata_hash <> new.metadata_hash then 'metadata'
        else 'unchanged'
    end as change,
    (old.partition, old.content_hash, old.metadata_hash, old.updated_at, old.deleted, old.chunking)
        is distinct from
    (new.partition, new.content_hash, new.metadata_hash, new.updated_at, new.deleted, %(chunking)s)
        as differs,
    old.run is not distinct from %(run)s as ours,
    seen.document_id is not null as again
from (
    select *, %(read_at)s::timestamptz as read_at
    from unnest(%(ids)s::text[], %(partitions)s::text[], %(contents)s::bytea[], %(metadata)s::bytea[],
                %(updated)s::timestamptz[], %(deleted)s::boolean[])
        with ordinality
        as t (document_id, partition, content_hash, metadata_hash, updated_at, deleted, ordinal)
) new
left join documents old on old.corpus = %(corpus)s and old.document_id = new.document_id
left join seen_documents seen on seen.document_id = new.document_id
order by new.ordinal
"""

_MERGE = f"""
insert into documents as old (corpus, document_id, partition, content_hash, metadata_hash, updated_at,
                              deleted, chunks, chunking, run, change, read_at, changed_at)
select %(corpus)s, document_id, partition, content_hash, metadata_hash, updated_at,
       deleted, chunks, %(chunking)s, %(run)s, change, %(read_at)s, %(now)s
from seen_documents where usable and differs
on conflict (corpus, document_id) do update set
    partition = excluded.partition, content_hash = excluded.content_hash,
    metadata_hash = excluded.metadata_hash, updated_at = excluded.updated_at,
    deleted = excluded.deleted, chunks = excluded.chunks, chunking = excluded.chunking,
    run = excluded.run, change = excluded.change, read_at = excluded.read_at,
    changed_at = case when excluded.change = 'unchanged' then old.changed_at else excluded.changed_at end
where not {_STALE.format(new="excluded", old="old")}
"""

_DELETE_MISSING = """
update documents old
set deleted = true, run = %(run)s, change = 'deleted', read_at = %(read_at)s, changed_at = %(now)s
where corpus = %(corpus)s and partition = any(%(closed)s::text[]) and not deleted
  and read_at <= %(read_at)s
  and not exists (select from seen_documents seen where seen.document_id = old.document_id)
"""


class View:
    """One run's view of a corpus's documents. Made by `viewing`."""

    def __init__(self, connection: Connection, corpus: str, run: str, chunking: str) -> None:
        self._connection = connection
        self._closed: list[str] = []
        self._values = {
            "corpus": corpus,
            "run": run,
            "chunking": chunking,
            "read_at": clock.now(connection),
            "closed": self._closed,
        }

    def judge(self, batch: Sequence[Incoming]) -> list[Judgement]:
        """What each of these versions is, in their order; one query. Ids must differ."""
        rows = self._connection.execute(
            _JUDGE,
            {
                **self._values,
                "ids": [version.document_id for version in batch],
                "partitions": [version.partition for version in batch],
                "contents": [version.content_hash for version in batch],
                "metadata": [version.metadata_hash for version in batch],
                "updated": [version.updated_at for version in batch],
                "deleted": [version.deleted for version in batch],
            },
        )
        return [
            # What this run wrote before it was killed is stored anew: its files are written anew.
            Judgement(Change(row["change"]), row["differs"], row["differs"] or row["ours"], row["again"])
            for row in rows
        ]

    def add(self, rows: Sequence[tuple[Incoming, Judgement, int]]) -> None:
        """Take these versions, each with its number of chunks, into the view."""
        again = [version.document_id for version, judgement, _ in rows if judgement.again]
        if again:
            self._connection.execute("delete from seen_documents where document_id = any(%s)", (again,))
        with self._connection.cursor() as cursor:
            with cursor.copy(
                "copy seen_documents (document_id, partition, content_hash, metadata_hash, updated_at,"
                " deleted, chunks, change, differs, usable) from stdin"
            ) as copy:
                for version, judgement, chunks in rows:
                    copy.write_row(
                        (
                            version.document_id,
                            version.partition,
                            version.content_hash,
                            version.metadata_hash,
                            version.updated_at,
                            version.deleted,
                            chunks,
                            judgement.change.value,
                            judgement.differs,
                            True,
                        )
                    )

    def protect(self, unread: Sequence[tuple[str, str]]) -> None:
        """These (document id, partition) are there but can't be read: they are not deleted as missing."""
        self._connection.execute(
            "insert into seen_documents (document_id, partition, usable)"
            " select id, partition, false from unnest(%s::text[], %s::text[]) as t (id, partition)"
            " on conflict do nothing",
            ([document for document, _ in unread], [partition for _, partition in unread]),
        )

    def close_partition(self, partition: str) -> None:
        """The run has read this partition of a snapshot whole: what it lacks is gone from it."""
        self._closed.append(partition)

    def close_all(self) -> None:
        """The run has read a snapshot whole, whatever partitions it's in by now: others are empty."""
        self._closed += [
            row["partition"]
            for row in self._connection.execute(
                "select distinct partition from documents where corpus = %(corpus)s and not deleted"
                " and partition <> all(%(closed)s::text[])",
                self._values,
            )
        ]

    def merge(self, deleted: Callable[[list[str]], None], *, keep: bool = True) -> int:
        """Write the view to the table, and mark what is missing from closed partitions as deleted.

        `deleted` is called with the ids of every document that this run has deleted, in lists,
        before the transaction ends; returns how many there are. Without `keep` the table stays as it
        was: a run that indexes nothing must not make what others are indexing an older truth.
        """
        values = {**self._values, "now": clock.now(self._connection)}
        count = 0
        self._connection.execute("analyze seen_documents")
        with (
            locks.held(self._connection, f"documents/{values['corpus']}"),
            self._connection.transaction() as transaction,
        ):
            self._connection.execute(_MERGE, values)
            self._connection.execute(_DELETE_MISSING, values)
            with self._connection.cursor(name="deleted_documents") as cursor:
                cursor.execute(
                    "select document_id from documents where corpus = %(corpus)s and run = %(run)s"
                    " and change = 'deleted' and deleted order by document_id",
                    values,
                )
                while rows := cursor.fetchmany(_DELETED_BATCH):
                    deleted([row["document_id"] for row in rows])
                    count += len(rows)
            if not keep:
                raise psycopg.Rollback(transaction)
        return count


@contextmanager
def viewing(connection: Connection, corpus: str, run: str, chunking: str) -> Iterator[View]:
    """A fresh view for a run that begins to read now. `chunking` is the chunking's fingerprint."""
    connection.execute("drop table if exists pg_temp.seen_documents")
    connection.execute(
        "create temporary table seen_documents ("
        " document_id text primary key, partition text not null, content_hash bytea, metadata_hash bytea,"
        " updated_at timestamptz, deleted boolean, chunks integer, change text, differs boolean,"
        " usable boolean not null)"
    )
    yield View(connection, corpus, run, chunking)
    connection.execute("drop table pg_temp.seen_documents")
