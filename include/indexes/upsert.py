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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.batches.dead_letters import BLOCKS
from include.contracts import FLOAT_BYTES, Holds, Metric, RunRef, VectorStore, row_schema
from include.errors import IndexMismatch, StorageError
from include.indexes import readback, truth, versions
from include.indexes.ahead import ahead
from include.indexes.answers import NEVER, Answers
from include.indexes.held import Held
from include.indexes.run_rows import RunRows, judged
from include.indexes.truth import Mask
from include.ledger.connect import Connection
from include.requests.lookup import Numbers, keys_of_names
from include.storage import Storage

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0
PASS_ROWS = 250_000
"""Rows whose ids, keys and documents are held at once, some 100 bytes each."""
_BATCH_BYTES = 3 << 19
_SAMPLE_EVERY = 5_000
_AHEAD = 4
_RANGE = re.compile(r"range-(\d+)\.parquet$")


@dataclass(frozen=True, slots=True)
class UpsertReport:
    """What became of a range's rows: rows = upserted + stale + no_result.

    Of the `upserted`, the index held `kept` before, just as they are to be. `stale` rows are no longer
    their document's newest version. `no_result` rows wait for a result or a dead letter; of
    `incomplete` documents the old chunks were kept for them. `deleted` counts chunks taken out of the
    index.
    """

    rows: int = 0
    upserted: int = 0
    kept: int = 0
    stale: int = 0
    no_result: int = 0
    incomplete: int = 0
    deleted: int = 0

    def __add__(self, other: UpsertReport) -> UpsertReport:
        return UpsertReport(
            self.rows + other.rows,
            self.upserted + other.upserted,
            self.kept + other.kept,
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

    `rows` names one `rows/range-NN.parquet` in storage, or several. The space's results are read once
    for all of them, or once for each `PASS_ROWS` rows, so that memory stays the same for more. Makes
    the index if it isn't there.
    `batch_rows` is how many rows are made ready at once, by default 1.5 MB of vectors: they stay in
    the processor's cache from reading to writing.
    Raises IndexMismatch where the index, or the results, are of another shape; ReadBackFailed where
    the store doesn't hold what it was given.
    """
    spec = versions.get(connection, version).spec
    if spec.dimensions != dimensions:
        raise IndexMismatch(
            f"index version {version} is of {spec.dimensions} dimensions and this run's space of "
            f"{dimensions}: start a new run"
        )
    store.ensure(spec)
    report = UpsertReport()
    for paths in _passes(storage, [rows] if isinstance(rows, str) else rows):
        places = [_place(storage, path) for path in paths]
        locks = {lock for number, ranges in places for lock in truth.locks_of_range(number, ranges)}
        with truth.locked(connection, version, locks), judged(connection, storage, corpus, paths) as run_rows:
            work = _Work(store, version, run_rows, Answers(storage, space_id, dimensions, run_rows.keys))
            work.write(batch_rows or _batch_rows(dimensions))
            work.read_back(spec.metric)
            incomplete = _incomplete(connection, corpus, space_id, run_rows, work.answered)
            deleted = work.delete(
                incomplete, _deleted(connection, storage, run, corpus, [number for number, _ in places])
            )
        report += UpsertReport(
            rows=len(run_rows),
            upserted=int(work.wanted.sum()),
            kept=int(work.kept.sum()),
            stale=int((~run_rows.current).sum()),
            no_result=int((run_rows.current & ~work.answered).sum()),
            incomplete=int(incomplete.sum()),
            deleted=deleted,
        )
        log.info("%s into %s; so far %s", ", ".join(paths), version, report)
    return report


def _batch_rows(dimensions: int) -> int:
    return max(64, _BATCH_BYTES // (FLOAT_BYTES * dimensions))


def _passes(storage: Storage, paths: Sequence[str]) -> Iterator[list[str]]:
    """Range files that are worked on together: `PASS_ROWS` rows, or the one file that has more."""
    together: list[str] = []
    rows = 0
    for path in paths:
        _place(storage, path)
        with storage.parquet_file(path) as file:
            own = file.metadata.num_rows
        if together and rows + own > PASS_ROWS:
            yield together
            together, rows = [], 0
        together.append(path)
        rows += own
    yield together


class _Work:
    """Some ranges under their locks. Masks are by row, shape (rows,)."""

    def __init__(self, store: VectorStore, index: str, rows: RunRows, answers: Answers) -> None:
        self._store = store
        self._index = index
        self._rows = rows
        self._answers = answers
        self._landed = answers.landed()
        self.answered = self._landed != NEVER
        self.wanted = rows.current & self.answered
        self._held = self._look()
        self._stamps = np.zeros(len(rows), np.int64)
        there = np.flatnonzero(self.wanted & (self._held.times > 0))
        self._stamps[there] = rows.content(there) ^ self._landed[there]
        self.kept = np.zeros(len(rows), bool)
        self.kept[there] = self._held.stamps[there] == self._stamps[there]
        self._samples: list[tuple[pa.Array[Any], npt.NDArray[np.float32]]] = []
        self._next_sample = 0

    def _look(self) -> Held:
        """What the index holds by now.

        Only this process may write these documents now, so what isn't there can be appended. An id
        that is there twice (someone wrote without our locks, or was killed while he replaced it) is
        taken out and written anew.
        """
        held = Held(self._store, self._index, self._rows)
        twice = np.flatnonzero((held.times > 1) & self.wanted)
        if len(twice):
            log.warning("%s holds %d chunks more than once; writing them anew", self._index, len(twice))
            self._delete(self._rows.chunk_ids(twice))
            held = Held(self._store, self._index, self._rows)
        return held

    def write(self, batch_rows: int) -> None:
        """Upsert the rows that are current, have an answer, and aren't held as they are to be."""
        wanted, there = self.wanted & ~self.kept, self._held.times > 0
        kinds: tuple[tuple[Holds, Mask], ...] = (("nothing", wanted & ~there), ("others", wanted & there))
        for holds, which in kinds:
            if which.any():
                batches = ahead(self._batches(which, batch_rows), _AHEAD)
                self._store.upsert(self._index, batches, holds=holds)

    def _batches(self, wanted: Mask, size: int) -> Iterator[pa.RecordBatch]:
        """These rows as the store takes them, about `size` a batch."""
        total, began = int(wanted.sum()), time.monotonic()
        logged, done = began, 0
        for batch in self._filled(wanted, size):
            self._keep_samples(batch, done)
            yield batch
            done += batch.num_rows
            if time.monotonic() - logged > LOG_SECONDS:
                logged = time.monotonic()
                log.info("%s: %d of %d rows, %.0f/s", self._index, done, total, done / (logged - began))

    def _filled(self, wanted: Mask, size: int) -> Iterator[pa.RecordBatch]:
        numbers: list[Numbers] = []
        vectors: list[Any] = []
        for some, values in self._answers.stream(wanted, size):
            numbers.append(some)
            vectors.append(values)
            if 2 * sum(map(len, numbers)) >= size:
                yield self._batch(numbers, vectors)
                numbers, vectors = [], []
        if numbers:
            yield self._batch(numbers, vectors)

    def _batch(self, parts: list[Numbers], vectors: list[Any]) -> pa.RecordBatch:
        numbers = np.concatenate(parts)
        vector = vectors[0] if len(vectors) == 1 else pa.concat_arrays(vectors)
        schema = row_schema(vector.type.list_size)
        columns, content = self._rows.take(numbers)
        stamps = content ^ self._landed[numbers]
        self._stamps[numbers] = stamps
        columns += [vector.cast(schema.field("vector").type), pa.array(stamps)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _keep_samples(self, batch: pa.RecordBatch, done: int) -> None:
        """Copies of a few rows to be read back: many of the first batch, then one now and then."""
        if done >= self._next_sample:
            self._next_sample = done + _SAMPLE_EVERY
            size = min(readback.SAMPLE if not self._samples else 1, batch.num_rows)
            few = batch.take(pa.array(np.linspace(0, batch.num_rows - 1, size).astype(int)))
            self._samples.append((few.column("chunk_id"), readback.matrix(few.column("vector"))))

    def read_back(self, metric: Metric) -> None:
        """Ask the store for what it was given: every id, once, and a sample of whole rows."""
        if not self._samples:
            return
        self._held = Held(self._store, self._index, self._rows)
        readback.check_ids(self._index, self._rows, self.wanted, self._held, self._stamps)
        ids = pa.concat_arrays([ids for ids, _ in self._samples])
        vectors = np.concatenate([vectors for _, vectors in self._samples])
        readback.check_vectors(self._store, self._index, metric, ids, vectors)

    def delete(self, incomplete: Mask, deleted: pa.Array[Any]) -> int:
        """Delete what the rows' documents no longer hold, and all of deleted ones; returns how many."""
        rows, held = self._rows, self._held
        gone = rows.documents_where(rows.deleted)
        replaced = ~rows.documents_where(~rows.current) & ~incomplete
        columns = [held.others_of(replaced | gone)]
        columns.append(rows.chunk_ids(np.flatnonzero((held.times > 0) & gone[rows.document])))
        for part in self._store.ids_of(self._index, deleted):
            columns += part["chunk_id"].chunks
        return self._delete(pa.chunked_array(columns).unique())

    def _delete(self, ids: Any) -> int:
        names = sorted(str(name) for name in ids.to_pylist())
        if names:
            self._store.delete(self._index, names)
        return len(names)


def _incomplete(connection: Connection, corpus: str, space_id: str, rows: RunRows, answered: Mask) -> Mask:
    """Which documents still wait for a result; shape (documents,)."""
    waiting = rows.current & ~answered
    numbers = np.flatnonzero(rows.keys.any_of(waiting))
    keys = keys_of_names(rows.keys.names(numbers))
    found = connection.execute(
        "select distinct key from dead_letters where corpus = %s and space = %s and key = any(%s)"
        f" and {BLOCKS}",
        (corpus, space_id, [key.hex() for key in keys]),
    )
    blocked = {row["key"] for row in found}
    asked = np.zeros(len(rows.keys), bool)
    asked[numbers] = [key.hex() not in blocked for key in keys]
    return rows.documents_where(waiting & rows.keys.spread(asked))


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
