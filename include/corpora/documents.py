"""The document table: which version of each document is the newest truth. The only writer of it.

A run's view of its documents is gathered in a temporary table and merged at the end in one
transaction, after the run's rows are whole: a kill before it changes nothing, and after it the
retry finds, by the run's name, what each document was to it the first time.

What is newer, in this order: a later `updated_at`, where both have one; the later of two dated
partitions, unless the run has read the other one whole and the document is no longer in it; the
run that began to read later. Within a run: a later `updated_at`, else of a source of changes what
comes later in a partition, else what comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

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
    """Older than what the table has, or than what else this run has read: left out."""
    DUPLICATE = "duplicate"
    """The id was read before in this partition of a snapshot, and this isn't newer: left out."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A document's version as just read. Both hashes, of 16 bytes, are zero where it's told to be deleted."""

    document_id: str
    partition: str
    content_hash: bytes
    metadata_hash: bytes
    updated_at: datetime | None = None
    deleted: bool = False


class Replaced(NamedTuple):
    """What the run took of a document before it met this version: what that was, where it was read,
    in how many chunks, and the place of the first among the rows of its range."""

    change: Change
    partition: str
    chunks: int
    place: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a version is. `differs`: the table's row must be written. `store`: so must its chunks.
    `seen`: the run has met this id before; `replaced`: it took that version, and this one is newer."""

    change: Change
    differs: bool
    store: bool
    seen: bool = False
    replaced: Replaced | None = None


class Taken(NamedTuple):
    """A version that a run takes: in how many chunks, the first at which place of its range's rows."""

    version: Incoming
    judgement: Judgement
    chunks: int
    place: int = 0


class Version(Protocol):
    """What of a document says which of two is newer."""

    @property
    def partition(self) -> str:
        """Where it was read."""
        ...

    @property
    def updated_at(self) -> datetime | None:
        """The time of its last change, where it tells one."""
        ...


def replaces(version: Version, earlier: Version, *, changes: bool) -> bool:
    """Whether a version replaces one that the same run read earlier; `changes` is the source's mode.

    What `_NEWER` says in SQL.
    """
    one, other = version.updated_at, earlier.updated_at
    if one is not None and other is not None and one != other:
        return one > other
    return changes and version.partition == earlier.partition


_NEWER = """(
    case when new.updated_at <> seen.updated_at then new.updated_at > seen.updated_at
         else %(changes)s and new.partition = seen.partition end
)"""


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
        when seen.usable and not {_NEWER}
            then case when seen.partition = new.partition and not %(changes)s then 'duplicate'
                      else 'stale' end
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
    seen.document_id is not null as seen,
    seen.change as replaced, seen.partition as replaced_partition,
    seen.chunks as replaced_chunks, seen.place as replaced_place
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

    def __init__(self, connection: Connection, corpus: str, run: str, chunking: str, changes: bool) -> None:
        self._connection = connection
        self._closed: list[str] = []
        self._values = {
            "corpus": corpus,
            "run": run,
            "chunking": chunking,
            "changes": changes,
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
            Judgement(
                Change(row["change"]),
                row["differs"],
                row["differs"] or row["ours"],
                row["seen"],
                Replaced(Change(row["replaced"]), *(row[f"replaced_{name}"] for name in Replaced._fields[1:]))
                if row["replaced"] is not None
                else None,
            )
            for row in rows
        ]

    def add(self, rows: Sequence[Taken]) -> None:
        """Take these versions into the view."""
        seen = [row.version.document_id for row in rows if row.judgement.seen]
        if seen:
            self._connection.execute("delete from seen_documents where document_id = any(%s)", (seen,))
        with self._connection.cursor() as cursor:
            with cursor.copy(
                "copy seen_documents (document_id, partition, content_hash, metadata_hash, updated_at,"
                " deleted, chunks, place, change, differs, usable) from stdin"
            ) as copy:
                for version, judgement, chunks, place in rows:
                    copy.write_row(
                        (
                            version.document_id,
                            version.partition,
                            version.content_hash,
                            version.metadata_hash,
                            version.updated_at,
                            version.deleted,
                            chunks,
                            place,
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
def viewing(
    connection: Connection, corpus: str, run: str, chunking: str, *, changes: bool = False
) -> Iterator[View]:
    """A fresh view for a run that begins to read now.

    `chunking` is the chunking's fingerprint; `changes` says that the source tells changes, in order.
    """
    connection.execute("drop table if exists pg_temp.seen_documents")
    connection.execute(
        "create temporary table seen_documents ("
        " document_id text primary key, partition text not null, content_hash bytea, metadata_hash bytea,"
        " updated_at timestamptz, deleted boolean, chunks integer, place bigint, change text,"
        " differs boolean, usable boolean not null)"
    )
    yield View(connection, corpus, run, chunking, changes)
    connection.execute("drop table pg_temp.seen_documents")
