"""Upsert: ranges of a run's rows, joined with their results, into one index version.

What holds, and must not be relaxed:
- Only rows that are current *now* are written; see `truth`.
- Ids that are no longer their document's are deleted only after the new ones were read back.
- A document's old chunks go only when each of its chunks either has its result or can have none
  (a dead letter blocks it). Until then old and new stand side by side: a request that failed
  takes nothing away from readers, and is put right by the next run or a replay.
- Running again at any time gives the same index, also one that was dropped.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import RunRef, VectorStore, row_schema
from include.errors import IndexMismatch, StorageError
from include.indexes import readback, truth, versions
from include.indexes.vectors import Places, Vectors, gathered
from include.ledger.connect import Connection
from include.storage import Storage

log = logging.getLogger(__name__)

BATCH_ROWS = 10_000
"""Rows a write. Each is a version of a LanceDB table; smaller ones are slower there."""
LOG_SECONDS = 10.0
_RANGE = re.compile(r"range-(\d+)\.parquet$")


@dataclass(frozen=True, slots=True)
class UpsertReport:
    """What became of a range's rows: rows = upserted + stale + no_result.

    `stale` rows are no longer their document's newest version. `no_result` rows wait for a result or
    a dead letter; of `incomplete` documents the old chunks were kept for them. `deleted` counts
    chunks taken out of the index.
    """

    rows: int = 0
    upserted: int = 0
    stale: int = 0
    no_result: int = 0
    incomplete: int = 0
    deleted: int = 0

    def __add__(self, other: UpsertReport) -> UpsertReport:
        return UpsertReport(
            self.rows + other.rows,
            self.upserted + other.upserted,
            self.stale + other.stale,
            self.no_result + other.no_result,
            self.incomplete + other.incomplete,
            self.deleted + other.deleted,
        )


def upsert(
    connection: Connection,
    storage: Storage,
    store: VectorStore,
    *,
    run: RunRef,
    version: str,
    space_id: str,
    dimensions: int,
    rows: str | Sequence[str],
    corpus: str,
    batch_rows: int = BATCH_ROWS,
) -> UpsertReport:
    """Bring range files of a run into an index version, and take out what they replace.

    `rows` names one `rows/range-NN.parquet` in storage, or several: each call reads the space's
    results once, so the ranges of a task belong into one call. Makes the index if it isn't there.
    Raises IndexMismatch where the index, or the results, are of another shape; ReadBackFailed where
    the store doesn't hold what it was given.
    """
    spec = versions.get(connection, version).spec
    if spec.dimensions != dimensions:
        raise IndexMismatch(
            f"index version {version} is of {spec.dimensions} dimensions and this run's space of "
            f"{dimensions}: start a new run"
        )
    paths = [rows] if isinstance(rows, str) else list(rows)
    places = [_place(storage, path) for path in paths]
    store.ensure(spec)
    total = UpsertReport()
    keys = pa.concat_tables([_columns(storage, path, ["key"]) for path in paths])["key"]
    with gathered(storage, space_id, dimensions, keys) as vectors:
        for path, (number, ranges) in zip(paths, places, strict=True):
            with truth.locked(connection, version, truth.locks_of_range(number, ranges)):
                work = _Range(connection, storage, store, version, corpus, dimensions, path, vectors)
                work.write(batch_rows)
                work.read_back(spec.metric)
                incomplete = work.incomplete(space_id)
                deleted = work.delete(incomplete, _deleted(connection, storage, run, corpus, number))
            report = UpsertReport(
                rows=len(work.places),
                upserted=int(work.written.sum()),
                stale=int((~work.current).sum()),
                no_result=int((work.current & (work.places < 0)).sum()),
                incomplete=int(incomplete.sum()),
                deleted=deleted,
            )
            log.info("range %d of %d into %s: %s", number, ranges, version, report)
            total += report
    return total


class _Range:
    """One range under its locks. Masks and places are by row of the file, shape (rows,)."""

    def __init__(
        self,
        connection: Connection,
        storage: Storage,
        store: VectorStore,
        version: str,
        corpus: str,
        dimensions: int,
        path: str,
        vectors: Vectors,
    ) -> None:
        columns = _columns(storage, path, ["chunk_id", "key", "document_id"])
        self._connection = connection
        self._storage = storage
        self._store = store
        self._index = version
        self._corpus = corpus
        self._schema = row_schema(dimensions)
        self._path = path
        self._vectors = vectors
        self._columns = columns
        self._ids = columns["chunk_id"].combine_chunks()
        encoded = columns["document_id"].combine_chunks().dictionary_encode()
        self._documents: pa.Array[Any] = encoded.dictionary
        self._document = encoded.indices.to_numpy()
        self.places: Places = vectors.places(columns["key"])
        size = columns.num_rows
        self.current = np.zeros(size, bool)
        self.written = np.zeros(size, bool)
        self._gone = np.zeros(len(self._documents), bool)

    def write(self, batch_rows: int) -> None:
        """Upsert the rows that are current and have a result."""
        there = self._known()
        pending: Future[None] = Future()
        pending.set_result(None)
        start, began, logged = 0, time.monotonic(), time.monotonic()
        # One batch is written while the next is made ready.
        with self._storage.parquet_file(self._path) as file, ThreadPoolExecutor(1) as writer:
            for batch in file.iter_batches(batch_rows):
                part = slice(start, start + batch.num_rows)
                start = part.stop
                state = truth.judge(self._connection, self._corpus, batch)
                self.current[part] = state.current
                self._gone[self._document[part][state.deleted]] = True
                wanted = state.current & (self.places[part] >= 0)
                self.written[part] = wanted
                for new, chosen in ((True, wanted & ~there[part]), (False, wanted & there[part])):
                    if chosen.any():
                        ready = self._ready(batch, chosen, self.places[part])
                        pending.result()
                        pending = writer.submit(self._store.upsert, self._index, ready, new=new)
                if time.monotonic() - logged > LOG_SECONDS:
                    logged = time.monotonic()
                    rate = start / (logged - began)
                    log.info("%s: %d of %d rows, %.0f/s", self._index, start, len(self._ids), rate)
            pending.result()

    def _known(self) -> npt.NDArray[np.bool_]:
        """Which rows' ids the index holds already.

        Only this process may write these documents now, so what isn't there can be appended. An id
        that is there twice (someone wrote without our locks) is taken out and written anew.
        """
        if pc.count_distinct(self._ids).as_py() != len(self._ids):
            raise StorageError(
                f"{self._storage.url(self._path)} holds a chunk id twice, so it wasn't written by "
                "`prepare`: clear the run's prepare to write it again"
            )
        if self._store.count(self._index) == 0:
            return np.zeros(len(self._ids), bool)
        held = self._store.ids_of(self._index, self._documents)["chunk_id"].combine_chunks()
        twice = _twice(held)
        if len(twice):
            log.warning("%s holds %d chunks more than once; writing them anew", self._index, len(twice))
            self._store.delete(self._index, [str(name) for name in twice.to_pylist()])
            held = held.filter(pc.invert(pc.is_in(held, twice)))
        found: npt.NDArray[np.bool_] = pc.is_in(self._ids, held).to_numpy(zero_copy_only=False)
        return found

    def _ready(self, batch: pa.RecordBatch, wanted: npt.NDArray[np.bool_], places: Places) -> pa.RecordBatch:
        """The wanted rows of a batch as a store takes them."""
        kept = batch.select(["chunk_id", "document_id", "text", "metadata"])
        if not wanted.all():
            kept = kept.filter(pa.array(wanted))
        flat = pa.array(self._vectors.take(places[wanted]).reshape(-1))
        vector = pa.FixedSizeListArray.from_arrays(flat, self._schema.field("vector").type.list_size)
        return pa.RecordBatch.from_arrays([*kept.columns, vector], schema=self._schema)

    def read_back(self, metric: Any) -> None:
        """Ask the store for what it was given: every id, once, and a sample of whole rows."""
        self._held = self._store.ids_of(self._index, self._documents)
        readback.check_ids(self._index, self._ids.filter(pa.array(self.written)), self._held)
        sample = readback.spread(np.flatnonzero(self.written))
        ids = self._ids.take(sample)
        readback.check_vectors(self._store, self._index, metric, ids, self._vectors.take(self.places[sample]))

    def incomplete(self, space_id: str) -> npt.NDArray[np.bool_]:
        """Which documents still wait for a result; shape (documents,)."""
        waiting = np.flatnonzero(self.current & (self.places < 0))
        found = np.zeros(len(self._documents), bool)
        if len(waiting) == 0:
            return found
        keys = [bytes(key or b"").hex() for key in self._columns["key"].take(waiting).to_pylist()]
        rows = self._connection.execute(
            "select distinct key from dead_letters where corpus = %s and space = %s and key = any(%s)"
            " and class <> 'retryable' and state in ('open', 'discarded')",
            (self._corpus, space_id, keys),
        )
        blocked = {row["key"] for row in rows}
        still = np.array([key not in blocked for key in keys])
        found[self._document[waiting[still]]] = True
        return found

    def delete(self, incomplete: npt.NDArray[np.bool_], deleted: pa.Array[Any]) -> int:
        """Delete what the range's documents no longer hold, and all of deleted ones; returns how many."""
        older = np.zeros(len(self._documents), bool)
        older[self._document[~self.current]] = True
        replaced = self._documents.filter(pa.array(~older & ~incomplete))
        held = self._held
        stale = pc.and_(
            pc.is_in(held["document_id"], replaced),
            pc.invert(pc.is_in(held["chunk_id"], self._ids)),
        )
        gone = pc.is_in(held["document_id"], self._documents.filter(pa.array(self._gone)))
        ids = held.filter(pc.or_(stale, gone))["chunk_id"].to_pylist()
        ids += self._store.ids_of(self._index, deleted)["chunk_id"].to_pylist() if len(deleted) else []
        names = sorted({str(name) for name in ids})
        if names:
            self._store.delete(self._index, names)
        return len(names)


def _columns(storage: Storage, path: str, names: list[str]) -> pa.Table:
    with storage.parquet_file(path) as file:
        return file.read(columns=names)


def _twice(ids: Any) -> pa.Array[Any]:
    """The ids that come more than once."""
    counts = ids.value_counts()
    often: pa.Array[Any] = counts.field("values").filter(counts.field("counts").to_numpy() > 1)
    return often


def _deleted(
    connection: Connection, storage: Storage, run: RunRef, corpus: str, number: int
) -> pa.Array[Any]:
    """The documents of a range that the run saw deleted, and that still are."""
    path = f"{run.uri}/rows/deleted.parquet"
    if not storage.exists(path):
        return pa.array([], pa.string())
    with storage.parquet_file(path) as file:
        rows = file.read(columns=["document_id", "range"])
    names = rows.filter(pc.field("range") == number)["document_id"].to_pylist()
    known = truth.documents(connection, corpus, [str(name) for name in names])
    return known.filter(known["deleted"])["document_id"].combine_chunks()


def _place(storage: Storage, rows: str) -> tuple[int, int]:
    """The number of a range file, and how many ranges its run has."""
    match = _RANGE.search(rows)
    if match is None:
        raise StorageError(f"{rows} is no range of a run's rows (rows/range-NN.parquet)")
    ranges = [path for path in storage.list(rows.rpartition("/")[0], ".parquet") if _RANGE.search(path)]
    if rows not in ranges:
        raise StorageError(f"{storage.url(rows)} isn't there: clear the run's prepare to write it again")
    return int(match.group(1)), len(ranges)
