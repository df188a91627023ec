"""Verification before publishing: the index's ids against the document table, repaired where they differ.

What must be there is every stored chunk of every document's newest version. Ids beyond that are
deleted, under the locks that an upsert holds and after a second look at the table, so that what a
newer run wrote meanwhile stays. An id that is missing although its result is paid for stops the
publishing; one without a result is a dead letter's, or waits for the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from psycopg.rows import tuple_row

from include.batches.dead_letters import BLOCKS
from include.contracts import VectorStore
from include.errors import PublishRefused, ReadBackFailed
from include.indexes import readback, truth, versions
from include.indexes.versions import IndexVersion
from include.ledger.connect import Connection
from include.requests import results
from include.requests.key_sets import KeySets, opened
from include.storage import Storage

log = logging.getLogger(__name__)

_BATCH = 20_000
_TWICE = 1_000
_TRUTH_FIELDS: list[pa.Field[Any]] = [
    pa.field("document_id", pa.string()),
    pa.field("content_hash", pa.binary(16)),
    pa.field("deleted", pa.bool_()),
    pa.field("chunks", pa.int32()),
]
_HELD = pa.schema([pa.field("chunk_id", pa.string()), pa.field("document_id", pa.string())])


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What an index holds against what it must.

    `waiting` chunks have no result yet, and none that is on its way for good: they are dead letters
    or wait for the next run. `removed` ids had no business in the index. `unjudged` documents have
    no stored chunks to compare with, and were left alone.
    """

    held: int
    expected: int
    waiting: int = 0
    removed: int = 0
    unjudged: int = 0
    unaccounted: int = 0


def verify(
    connection: Connection,
    storage: Storage,
    store: VectorStore,
    *,
    corpus: str,
    version: str,
    rows: Sequence[str] = (),
) -> VerifyReport:
    """Compare an index version with the document table, and repair it.

    `rows` are the run's range files, which tell the keys of the chunks they hold: a missing one
    whose result is there is an error, and a document that waits for a result keeps its old chunks.
    Raises IndexMissing, IndexMismatch or ReadBackFailed for an index that isn't what it must be, and
    PublishRefused where chunks are missing that could be there.
    """
    made = versions.get(connection, version)
    count = store.count(version)
    store.ensure(made.spec)
    with opened(storage) as sets:
        sets.load("truth", pa.schema(_TRUTH_FIELDS), _documents(connection, corpus))
        expected = _expect(connection, storage, sets, made)
        held = sets.load("held", _HELD, (part.select(_HELD.names).cast(_HELD) for part in store.ids(version)))
        _sample(sets, store, made)
        _compare(sets)
        unjudged = sets.number(
            "select count(distinct document_id) from held join truth using (document_id)"
            " anti join judged using (document_id)"
        )
        differing = [name for (name,) in sets.rows("select distinct document_id from differing")]
        if held != count:
            log.info("%s changed while it was read: %d rows, then %d", version, count, held)
        if not differing:
            return VerifyReport(held, expected, unjudged=unjudged)
        with truth.locked(connection, version, truth.locks_of(differing)):
            _look_again(connection, corpus, sets, differing)
            _find_keys(connection, storage, sets, made, rows)
            removed = _remove(sets, store, version)
            lost = _lost(sets, store, version)
        waiting = sets.number("select count(*) from missing")
        unaccounted = _unaccounted(connection, sets, made) if waiting else 0
    log.info("%s: %d held, %d expected, %d removed, %d waiting", version, held, expected, removed, waiting)
    if lost:
        raise PublishRefused(
            f"index version {version} lacks {len(lost)} chunks whose results are there, first {lost[0]}: run "
            "`upsert` again, which costs nothing"
        )
    return VerifyReport(held - removed, expected, waiting, removed, unjudged, unaccounted)


def _documents(connection: Connection, corpus: str) -> Iterator[pa.Table]:
    """The whole document table of a corpus, streamed."""
    with (
        connection.transaction(),
        connection.cursor(name="verify_documents", row_factory=tuple_row, binary=True) as cursor,
    ):
        cursor.itersize = _BATCH
        cursor.execute(
            "select document_id, content_hash, deleted, chunks from documents where corpus = %s", (corpus,)
        )
        while batch := cursor.fetchmany(_BATCH):
            columns = list(zip(*batch, strict=True))
            arrays: list[pa.Array[Any]] = [
                pa.array(column, field.type) for column, field in zip(columns, _TRUTH_FIELDS, strict=True)
            ]
            yield pa.table(arrays, schema=pa.schema(_TRUTH_FIELDS))


def _expect(connection: Connection, storage: Storage, sets: KeySets, made: IndexVersion) -> int:
    """Table `expected`: the chunks of every newest version; `judged`: the documents they speak for."""
    partitions = connection.execute(
        "select distinct partition from documents where corpus = %s", (made.corpus,)
    )
    folder = f"corpora/{made.corpus}/chunks/{made.chunking}"
    paths = [path for row in partitions for path in storage.list(f"{folder}/{row['partition']}", ".parquet")]
    if paths:
        sets.files("chunks", paths, "chunk_id, document_id, content_hash")
        query = (
            "select distinct chunk_id, document_id from chunks"
            " semi join (select document_id, content_hash from truth where not deleted)"
            " using (document_id, content_hash)"
        )
    else:
        query = "select ''::varchar as chunk_id, ''::varchar as document_id where false"
    expected = sets.table("expected", query)
    sets.table(
        "judged",
        "select distinct document_id from expected"
        " union select document_id from truth where deleted or chunks = 0",
    )
    return expected


def _compare(sets: KeySets) -> None:
    """Tables `missing`, `extra` and `twice`, and the documents that are `differing` for them."""
    sets.table("missing", "select * from expected anti join held using (chunk_id)")
    # A document that the table doesn't know at all was never ours to keep.
    sets.table(
        "extra",
        "select distinct chunk_id, document_id from held anti join expected using (chunk_id)"
        " where document_id in (select document_id from judged)"
        " or document_id not in (select document_id from truth)",
    )
    sets.table(
        "twice",
        "select chunk_id, any_value(document_id) as document_id from held"
        " group by chunk_id having count(*) > 1",
    )
    sets.table(
        "differing",
        "select document_id from missing union select document_id from extra"
        " union select document_id from twice",
    )


def _look_again(connection: Connection, corpus: str, sets: KeySets, differing: list[str]) -> None:
    """Leave out the documents that changed since they were read; the caller holds their locks."""
    parts = (
        truth.documents(connection, corpus, differing[start : start + _BATCH])
        for start in range(0, len(differing), _BATCH)
    )
    now = pa.schema([field for field in _TRUTH_FIELDS if field.name != "chunks"])
    sets.load("now", now, (part.select(now.names) for part in parts))
    sets.table(
        "settled",
        "select document_id from differing"
        " anti join (select document_id from now"
        " anti join truth using (document_id, content_hash, deleted)) using (document_id)",
    )
    for name in ("missing", "extra", "twice"):
        sets.table(name, f"select * from {name} semi join settled using (document_id)")


def _find_keys(
    connection: Connection, storage: Storage, sets: KeySets, made: IndexVersion, rows: Sequence[str]
) -> None:
    """Table `lost`: missing chunks that have a result; `pending`: documents that wait for one.

    A missing chunk waits unless a dead letter blocks its key.
    """
    nothing = "select chunk_id, document_id, ''::blob as key from missing where false"
    if rows:
        sets.files("run_rows", rows, "chunk_id, key")
        sets.table(
            "wanted",
            "select m.chunk_id, m.document_id, r.key from missing m join run_rows r using (chunk_id)",
        )
    else:
        sets.table("wanted", nothing)
    paths = results.files(storage, made.space)
    if paths:
        sets.files("answers", paths, "key")
        sets.table("lost", "select * from wanted semi join answers using (key)")
    else:
        sets.table("lost", nothing)
    blocked = connection.execute(
        f"select distinct key from dead_letters where corpus = %s and space = %s and {BLOCKS}",
        (made.corpus, made.space),
    )
    sets.keys("blocked", pa.array([bytes.fromhex(row["key"]) for row in blocked], pa.binary(16)))
    sets.table(
        "pending",
        "select distinct document_id from missing anti join"
        " (select chunk_id from wanted semi join blocked using (key)) using (chunk_id)",
    )


def _unaccounted(connection: Connection, sets: KeySets, made: IndexVersion) -> int:
    """Missing chunks that no dead letter speaks for, by their key where it is known, else by their
    document. (A letter names the first document of its key only.)"""
    letters = connection.execute(
        "select distinct key, document_id from dead_letters"
        " where corpus = %s and space = %s and state <> 'resolved'",
        (made.corpus, made.space),
    ).fetchall()
    sets.keys("lettered_keys", pa.array([bytes.fromhex(row["key"]) for row in letters], pa.binary(16)))
    names = pa.array([row["document_id"] for row in letters], pa.string())
    schema = pa.schema([pa.field("document_id", pa.string())])
    sets.load("lettered", schema, iter([pa.table([names], schema=schema)]))
    return sets.number(
        "select count(*) from missing anti join lettered using (document_id)"
        " anti join (select chunk_id from wanted semi join lettered_keys using (key)) using (chunk_id)"
    )


def _remove(sets: KeySets, store: VectorStore, version: str) -> int:
    """Delete what has no business there, and all but one of what is there more than once."""
    extra = sets.rows("select chunk_id from extra anti join pending using (document_id)")
    names = [str(name) for (name,) in extra]
    if names:
        store.delete(version, names)
    doomed = set(names)
    twice = [str(name) for (name,) in sets.rows("select chunk_id from twice") if name not in doomed]
    copies = 0
    for start in range(0, len(twice), _TWICE):
        # An upsert that was killed leaves old and new: whichever stays, its next run puts it right.
        found = store.fetch(version, twice[start : start + _TWICE])
        _, first = np.unique(found["chunk_id"].to_numpy(), return_index=True)
        store.delete(version, twice[start : start + _TWICE])
        store.upsert(version, found.take(first).combine_chunks().to_batches(), holds="nothing")
        copies += found.num_rows - len(first)
    return len(names) + copies


def _lost(sets: KeySets, store: VectorStore, version: str) -> list[str]:
    """The chunks that could be there and still aren't, sorted."""
    rows = list(sets.rows("select chunk_id, document_id from lost"))
    documents = pa.array(sorted({str(document) for _, document in rows}), pa.string())
    there = {name for part in store.ids_of(version, documents) for name in part["chunk_id"].to_pylist()}
    return sorted({str(name) for name, _ in rows} - there)


def _sample(sets: KeySets, store: VectorStore, made: IndexVersion) -> None:
    """Read some rows back whole: they must be there, finite and not all zero."""
    ids = {str(name) for (name,) in sets.rows(f"select chunk_id from held using sample {readback.SAMPLE}")}
    found = store.fetch(made.version, sorted(ids))
    lacking = sorted(ids.difference(found["chunk_id"].to_pylist()))
    if lacking:
        raise ReadBackFailed(
            f"{made.version} lists chunk {lacking[0]} but doesn't give it back: run it again"
        )
    readback.check_finite(made.version, readback.matrix(found["vector"]))
