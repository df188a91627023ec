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
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.batches.dead_letters import BLOCKS
from include.contracts import KEY_BYTES, Metric, RunRef, VectorStore, row_schema
from include.errors import IndexMismatch, StorageError
from include.indexes import readback, truth, versions
from include.indexes.answers import Answers, Numbers
from include.indexes.run_rows import RunRows, judged
from include.ledger.connect import Connection
from include.requests import results
from include.storage import Storage

log = logging.getLogger(__name__)

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
    batch_rows: int | None = None,
) -> UpsertReport:
    """Bring range files of a run into an index version, and take out what they replace.

    `rows` names one `rows/range-NN.parquet` in storage, or several: each call reads the space's
    results once, so the ranges of a task belong into one call. Makes the index if it isn't there.
    `batch_rows` is how many rows are written at once, by default as many as results are read at once
    (some 32 MB), so that either waits little for the other.
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
    locks = {lock for number, ranges in places for lock in truth.locks_of_range(number, ranges)}
    store.ensure(spec)
    with truth.locked(connection, version, locks), judged(connection, storage, corpus, paths) as run_rows:
        work = _Work(store, version, run_rows, Answers(storage, space_id, dimensions, run_rows.keys))
        work.write(batch_rows or results.group_rows(dimensions))
        work.read_back(spec.metric)
        incomplete = _incomplete(connection, corpus, space_id, run_rows, work.answered)
        deleted = work.delete(
            incomplete, _deleted(connection, storage, run, corpus, [number for number, _ in places])
        )
    report = UpsertReport(
        rows=len(run_rows),
        upserted=int(work.written.sum()),
        stale=int((~run_rows.current).sum()),
        no_result=int((run_rows.current & ~work.answered).sum()),
        incomplete=int(incomplete.sum()),
        deleted=deleted,
    )
    log.info("%s into %s: %s", ", ".join(paths), version, report)
    return report


class _Work:
    """Some ranges under their locks. Masks are by row, shape (rows,)."""

    def __init__(self, store: VectorStore, index: str, rows: RunRows, answers: Answers) -> None:
        self._store = store
        self._index = index
        self._rows = rows
        self._answers = answers
        self.answered = answers.answered()
        self.written = np.zeros(len(rows), bool)
        self._samples: list[tuple[pa.Array[Any], npt.NDArray[np.float32]]] = []

    def write(self, batch_rows: int) -> None:
        """Upsert the rows that are current and have an answer."""
        there = self._known()
        wanted = self._rows.current & self.answered
        total, began = int(wanted.sum()), time.monotonic()
        logged, done = began, 0
        pending: Future[None] = Future()
        pending.set_result(None)
        # One batch is written while the next is made ready.
        with ThreadPoolExecutor(1) as writer:
            for numbers, batch in _filled(self._rows, self._answers.stream(wanted, batch_rows), batch_rows):
                self.written[numbers] = True
                known = there[numbers]
                for new, chosen in ((True, ~known), (False, known)):
                    if chosen.any():
                        ready = batch if chosen.all() else batch.filter(pa.array(chosen))
                        pending.result()
                        pending = writer.submit(self._store.upsert, self._index, ready, new=new)
                self._keep_samples(batch)
                done += len(numbers)
                if time.monotonic() - logged > LOG_SECONDS:
                    logged = time.monotonic()
                    log.info("%s: %d of %d rows, %.0f/s", self._index, done, total, done / (logged - began))
            pending.result()

    def _known(self) -> npt.NDArray[np.bool_]:
        """Which rows' ids the index holds already.

        Only this process may write these documents now, so what isn't there can be appended. An id
        that is there twice (someone wrote without our locks) is taken out and written anew.
        """
        ids = self._rows.ids
        if pc.count_distinct(ids).as_py() != len(ids):
            raise StorageError(
                f"the rows of {self._index} hold chunk {_twice(ids)[0]} twice, so they weren't written by "
                "`prepare`: clear the run's prepare to write them again"
            )
        if self._store.count(self._index) == 0:
            return np.zeros(len(ids), bool)
        held = self._store.ids_of(self._index, self._rows.documents)["chunk_id"].combine_chunks()
        twice = _twice(held)
        if len(twice):
            log.warning("%s holds %d chunks more than once; writing them anew", self._index, len(twice))
            self._store.delete(self._index, [str(name) for name in twice.to_pylist()])
            held = held.filter(pc.invert(pc.is_in(held, twice)))
        found: npt.NDArray[np.bool_] = pc.is_in(ids, held).to_numpy(zero_copy_only=False)
        return found

    def _keep_samples(self, batch: pa.RecordBatch) -> None:
        """Copies of a few rows to be read back: many of the first batch, then one a batch."""
        size = readback.SAMPLE if not self._samples else 1
        few = batch.take(pa.array(np.linspace(0, batch.num_rows - 1, min(size, batch.num_rows)).astype(int)))
        self._samples.append((few.column("chunk_id"), readback.matrix(few.column("vector"))))

    def read_back(self, metric: Metric) -> None:
        """Ask the store for what it was given: every id, once, and a sample of whole rows."""
        self._held = self._store.ids_of(self._index, self._rows.documents)
        readback.check_ids(self._index, self._rows.ids.filter(pa.array(self.written)), self._held)
        if self._samples:
            ids = pa.concat_arrays([ids for ids, _ in self._samples])
            vectors = np.concatenate([vectors for _, vectors in self._samples])
            readback.check_vectors(self._store, self._index, metric, ids, vectors)

    def delete(self, incomplete: npt.NDArray[np.bool_], deleted: pa.Array[Any]) -> int:
        """Delete what the rows' documents no longer hold, and all of deleted ones; returns how many."""
        rows, held = self._rows, self._held
        replaced = ~rows.documents_where(~rows.current) & ~incomplete
        stale = pc.and_(
            pc.is_in(held["document_id"], rows.documents.filter(pa.array(replaced))),
            pc.invert(pc.is_in(held["chunk_id"], rows.ids)),
        )
        gone = rows.documents.filter(pa.array(rows.documents_where(rows.deleted)))
        ids = held.filter(pc.or_(stale, pc.is_in(held["document_id"], gone)))["chunk_id"].to_pylist()
        ids += self._store.ids_of(self._index, deleted)["chunk_id"].to_pylist() if len(deleted) else []
        names = sorted({str(name) for name in ids})
        if names:
            self._store.delete(self._index, names)
        return len(names)


def _filled(
    rows: RunRows, answers: Iterator[tuple[Numbers, Any]], size: int
) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
    """Batches of store rows with their numbers, at least `size` rows each but the last."""
    numbers: list[Numbers] = []
    vectors: list[Any] = []
    for some, values in answers:
        numbers.append(some)
        vectors.append(values)
        if sum(map(len, numbers)) >= size:
            yield _joined(rows, numbers, vectors)
            numbers, vectors = [], []
    if numbers:
        yield _joined(rows, numbers, vectors)


def _joined(rows: RunRows, numbers: list[Numbers], vectors: list[Any]) -> tuple[Numbers, pa.RecordBatch]:
    chosen = np.concatenate(numbers)
    vector = vectors[0] if len(vectors) == 1 else pa.concat_arrays(vectors)
    (texts,) = rows.take(chosen).to_batches()
    schema = row_schema(vector.type.list_size)
    return chosen, pa.RecordBatch.from_arrays(
        [*texts.columns, vector.cast(schema.field("vector").type)], schema=schema
    )


def _incomplete(
    connection: Connection, corpus: str, space_id: str, rows: RunRows, answered: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which documents still wait for a result; shape (documents,)."""
    waiting = np.flatnonzero(rows.current & ~answered)
    keys = [key.ljust(KEY_BYTES, b"\0").hex() for key in rows.keys[waiting].tolist()]
    found = connection.execute(
        "select distinct key from dead_letters where corpus = %s and space = %s and key = any(%s)"
        f" and {BLOCKS}",
        (corpus, space_id, keys),
    )
    blocked = {row["key"] for row in found}
    still = np.zeros(len(rows), bool)
    still[waiting] = [key not in blocked for key in keys]
    return rows.documents_where(still)


def _twice(ids: Any) -> pa.Array[Any]:
    """The ids that come more than once."""
    counts = ids.value_counts()
    often: pa.Array[Any] = counts.field("values").filter(counts.field("counts").to_numpy() > 1)
    return often


def _deleted(
    connection: Connection, storage: Storage, run: RunRef, corpus: str, ranges: list[int]
) -> pa.Array[Any]:
    """The documents of these ranges that the run saw deleted, and that still are."""
    path = f"{run.uri}/rows/deleted.parquet"
    if not storage.exists(path):
        return pa.array([], pa.string())
    with storage.parquet_file(path) as file:
        rows = file.read(columns=["document_id", "range"])
    names = rows.filter(pc.field("range").isin(ranges))["document_id"].to_pylist()
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
