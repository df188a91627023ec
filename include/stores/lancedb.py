"""LanceDB: vector tables on a disk or an object store, opened in process.

Metadata is kept as Lance's JSON type, so that a filter is answered inside the search and its k
hits are exact; it comes back as canonical JSON text (sorted, compact), not byte by byte as it was
written. The metric is kept in the table's schema, since a brute-force search names it per query.

`chunk_id` has a B-tree, without which a merge reads every id of the table, and is Lance's
primary key, by which two writers of the same new id conflict instead of both inserting it.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from include import memory
from include.contracts import HELD_COLUMNS, JSON, Hit, Holds, IndexSpec, Metric, Vector, row_schema
from include.errors import ConfigError, IndexMismatch, IndexMissing

log = logging.getLogger(__name__)

METRIC_KEY = b"batch_inference.metric"
PRIMARY_KEY: dict[bytes | str, bytes | str] = {b"lance-schema:unenforced-primary-key": b"true"}
JSON_TYPE = pa.json_(pa.utf8())

IDS_PER_QUERY = 5_000
"""Ids in one SQL list; the parser's memory grows with it."""
DOCUMENTS_PER_QUERY = 2_000
"""From so many documents on, one pass over the id columns is faster than lists."""
SCAN_ROWS = 65_536
KEEP_VERSIONS = timedelta(minutes=10)
"""Compaction leaves younger versions alone: a reader or writer may be on one."""
INDEX_CACHE_BYTES = 32 << 20
METADATA_CACHE_BYTES = 8 << 20
FRUGAL = {"LANCE_DEFAULT_BATCH_SIZE": "512", "LANCE_DEFAULT_IO_BUFFER_SIZE": str(32 << 20)}
"""Rows and bytes that Lance reads ahead where a call says nothing of it; by default a compaction of
vectors of 1,536 dimensions takes half a gigabyte and more time."""
CONFLICT_SECONDS = 120.0
"""How long a write that meets other writers is tried again."""

T = TypeVar("T")


class LanceStore:
    """A LanceDB database at a path or URL (`file://`, `s3://`, `gs://`).

    `client` is a ready `lancedb` connection for those who need options of their own.
    """

    name = "lancedb"
    commit_bytes = 128 << 20
    """Rows written at once. What is killed before its commit is written again; each commit is a file
    and a version until the next compaction."""

    def __init__(self, url: str, client: Any = None) -> None:
        self.url = url
        self._client = client
        self._tables: dict[str, Any] = {}

    # ------------------------------------------------------------------ the index

    def ensure(self, spec: IndexSpec) -> None:
        """Create the index, or check that the one there has these dimensions and this metric.

        Raises IndexMismatch when it hasn't.
        """
        table = self._find(spec.name)
        if table is None:
            try:
                table = self._database().create_table(spec.name, schema=_table_schema(spec))
            except ValueError:  # another process was faster
                table = self._find(spec.name)
                if table is None:
                    raise
        schema = table.schema
        dimensions, metric = schema.field("vector").type.list_size, _metric(schema)
        if dimensions != spec.dimensions or metric != spec.metric:
            raise IndexMismatch(
                f"index {spec.name} at {self.url} holds {dimensions} dimensions compared by {metric}, "
                f"and this corpus asks for {spec.dimensions} compared by {spec.metric}: give the corpus the "
                "values of the index, or re-embed into a new index"
            )
        if not any(index.columns == ["chunk_id"] for index in table.list_indices()):
            from lancedb.index import BTree

            _insist(lambda: table.create_index("chunk_id", config=BTree()), spec.name)

    def exists(self, index: str) -> bool:
        """Whether the index is there."""
        self._tables.pop(index, None)
        return self._find(index) is not None

    def drop(self, index: str) -> None:
        """Drop the index; one that is gone already is no error."""
        self._tables.pop(index, None)
        if self._find(index) is not None:
            self._tables.pop(index, None)
            self._database().drop_table(index)

    def compact(self, index: str) -> None:
        """Join small files, bring the id's B-tree up to date, and drop versions nobody reads any more."""
        table = self._table(index)
        _insist(lambda: table.optimize(cleanup_older_than=KEEP_VERSIONS), index)
        memory.give_back()

    # ------------------------------------------------------------------ writing

    def upsert(self, index: str, rows: Iterable[pa.RecordBatch], *, holds: Holds = "anything") -> None:
        """Insert or overwrite rows of `row_schema`, by chunk_id.

        Where it's known what the index `holds`, rows are appended in a stream, in commits of
        `commit_bytes`, and after each the rows they replace are deleted. A merge takes several times
        as long, and memory for all that it merges and the ids of the whole table.
        """
        table = self._table(index)
        for commit in _commits(rows, self.commit_bytes):
            if holds == "anything":
                _merge(table, pa.Table.from_batches(list(commit.batches())), index)
                continue
            commit.append_to(table)
            if holds == "others":
                for condition in commit.replaced():
                    self._remove(index, condition)
            memory.give_back()

    def set_metadata(self, index: str, rows: pa.RecordBatch) -> None:
        """Overwrite `metadata` and `stamp` of existing chunks; rows have those and chunk_id only.

        In one commit: what is appended and then deleted is there twice where a kill comes between.
        """
        if rows.num_rows == 0:
            return
        table = self._table(index)
        data = _to_lance(rows.select(["chunk_id", "metadata", "stamp"]))
        _insist(lambda: table.merge_insert("chunk_id").when_matched_update_all().execute(data), index)

    def delete(self, index: str, chunk_ids: Sequence[str]) -> None:
        """Delete by chunk id; ids that aren't there are no error."""
        self._table(index)
        for start in range(0, len(chunk_ids), IDS_PER_QUERY):
            self._remove(index, _among("chunk_id", chunk_ids[start : start + IDS_PER_QUERY]))

    def _remove(self, index: str, condition: str) -> None:
        table = self._table(index)
        _insist(lambda: table.delete(condition), index)

    # ------------------------------------------------------------------ reading

    def fetch(self, index: str, chunk_ids: Sequence[str]) -> pa.Table:
        """The rows with these ids, vectors included, in any order; absent ones are left out."""
        schema = row_schema(self._table(index).schema.field("vector").type.list_size)
        # Of one version: a compaction gives rows other ids.
        table = self._database().open_table(index)
        table.checkout(table.version)
        parts = [schema.empty_table()]
        for start in range(0, len(chunk_ids), IDS_PER_QUERY):
            # In one query, Lance reads whole rows of all that its index doesn't know yet.
            where = _among("chunk_id", chunk_ids[start : start + IDS_PER_QUERY])
            rows = table.search().where(where).with_row_id(True).select(["chunk_id"]).to_arrow()["_rowid"]
            if len(rows):
                parts.append(_from_lance(table.take_row_ids(rows.to_pylist()).to_arrow(), schema))
        return pa.concat_tables(parts)

    def ids(self, index: str) -> Iterator[pa.Table]:
        """`HELD_COLUMNS` of all rows, streamed in tables."""
        return _held(self._table(index).search())

    def ids_of(self, index: str, document_ids: pa.Array[Any]) -> Iterator[pa.Table]:
        """`HELD_COLUMNS` of all rows of these documents, in any order, streamed in tables."""
        query = self._table(index).search()
        if len(document_ids) > DOCUMENTS_PER_QUERY:
            for part in _held(query):
                yield part.filter(pc.is_in(part["document_id"], document_ids))
        elif len(document_ids):
            yield from _held(
                query.where(_among("document_id", [str(name) for name in document_ids.to_pylist()]))
            )

    def count(self, index: str) -> int:
        """How many rows the index holds."""
        return int(self._table(index).count_rows())

    def search(
        self, index: str, vector: Vector, k: int, filter: Mapping[str, JSON] | None = None
    ) -> list[Hit]:
        """The k nearest rows, best first; exact, `filter` included.

        The score is the cosine, the dot product, or minus the Euclidean distance.
        """
        table = self._table(index)
        schema = table.schema
        dimensions, metric = schema.field("vector").type.list_size, _metric(schema)
        if vector.shape != (dimensions,):
            raise IndexMismatch(
                f"index {index} holds {dimensions} dimensions and the question's vector has shape "
                f"{vector.shape}: embed it with the model of the index, see its live.json"
            )
        query = table.search(vector, vector_column_name="vector").distance_type(metric.value).limit(k)
        if filter:
            query = query.where(" and ".join(_equals(*item) for item in filter.items()), prefilter=True)
        found = query.select(["chunk_id", "document_id", "text", "metadata", "_distance"]).to_arrow()
        return [
            Hit(
                row["chunk_id"],
                row["document_id"],
                _score(metric, row["_distance"]),
                row["text"],
                json.loads(row["metadata"]),
            )
            for row in found.to_pylist()
        ]

    # ------------------------------------------------------------------ connections

    def _database(self) -> Any:
        if self._client is None:
            memory.one_arena()
            for name, value in FRUGAL.items():
                os.environ.setdefault(name, value)
            import lancedb

            # Zero: every operation sees what other processes have committed. By default its caches may
            # take gigabytes, and bulk work never comes back to what is in them.
            self._client = lancedb.connect(
                self.url,
                read_consistency_interval=timedelta(0),
                session=lancedb.Session(INDEX_CACHE_BYTES, METADATA_CACHE_BYTES),
            )
        return self._client

    def _find(self, index: str) -> Any | None:
        if index not in self._tables:
            try:
                self._tables[index] = self._database().open_table(index)
            except ValueError as error:
                if "not found" not in str(error):
                    raise
                return None
        return self._tables[index]

    def _table(self, index: str) -> Any:
        table = self._find(index)
        if table is None:
            raise IndexMissing(
                f"there is no index {index} at {self.url}: run the corpus's ingest again, which refills it "
                "from results that are paid for"
            )
        return table


# ---------------------------------------------------------------------- commits


class _Commit:
    """Batches that are written at once: the next ones of a stream that the next commit goes on with."""

    def __init__(self, first: pa.RecordBatch, stream: Iterator[pa.RecordBatch], size: int) -> None:
        self._first = first
        self._stream = stream
        self._size = size
        self._written: list[pa.RecordBatch] = []
        self._error: BaseException | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its batches as Lance takes them, once."""
        size = 0
        for batch in itertools.chain([self._first], self._stream):
            yield _to_lance(batch)
            self._written.append(batch.select(["chunk_id", "stamp"]))
            size += batch.nbytes
            if size >= self._size:
                return

    def append_to(self, table: Any) -> None:
        """Append its batches, as they come, in one commit. Raises what the stream raised."""
        stream = pa.RecordBatchReader.from_batches(_lance_schema(self._first.schema), self._reading())
        try:
            # More writers at once would hold more rows and, beside our own work, be no faster.
            table.add(stream, write_parallelism=1)
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise

    def _reading(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.batches()
        except BaseException as error:
            self._error = error
            raise

    def replaced(self) -> Iterator[str]:
        """SQL for the rows with these ids and other stamps, in conditions of a size that SQL bears."""
        written = pa.Table.from_batches(self._written)
        for start in range(0, written.num_rows, IDS_PER_QUERY):
            some = written.slice(start, IDS_PER_QUERY)
            stamps = ",".join(map(str, some["stamp"].to_pylist()))
            ids = _among("chunk_id", [str(name) for name in some["chunk_id"].to_pylist()])
            yield f"{ids} and stamp not in ({stamps})"


def _commits(rows: Iterable[pa.RecordBatch], size: int) -> Iterator[_Commit]:
    """Commits of about `size` bytes; each must have been written before the next is asked for."""
    stream = (batch for batch in rows if batch.num_rows)
    for first in stream:
        yield _Commit(first, stream, size)


def _merge(table: Any, rows: pa.Table, index: str) -> None:
    merge = table.merge_insert("chunk_id").when_matched_update_all().when_not_matched_insert_all()
    _insist(lambda: merge.execute(rows), index)


# ---------------------------------------------------------------------- rows


def _table_schema(spec: IndexSpec) -> pa.Schema:
    schema = _lance_schema(row_schema(spec.dimensions))
    return schema.with_metadata({METRIC_KEY: spec.metric.value.encode()})


def _lance_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of rows as Lance keeps them: metadata as JSON, chunk_id as primary key."""
    fields = []
    for field in schema:
        if field.name == "metadata":
            field = field.with_type(JSON_TYPE)
        if field.name == "chunk_id":
            field = field.with_metadata(PRIMARY_KEY)
        fields.append(field.with_nullable(False))
    return pa.schema(fields)


def _to_lance(rows: pa.RecordBatch) -> pa.RecordBatch:
    place = rows.schema.get_field_index("metadata")
    columns = list(rows.columns)
    columns[place] = pa.ExtensionArray.from_storage(JSON_TYPE, columns[place])
    return pa.RecordBatch.from_arrays(columns, schema=_lance_schema(rows.schema))


def _from_lance(found: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        column = found[field.name]
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _held(query: Any) -> Iterator[pa.Table]:
    schema = pa.schema([row_schema(1).field(name) for name in HELD_COLUMNS])
    for batch in query.select(list(HELD_COLUMNS)).to_batches(SCAN_ROWS):
        yield pa.Table.from_batches([batch]).select(list(HELD_COLUMNS)).cast(schema)


def _metric(schema: pa.Schema) -> Metric:
    stored = (schema.metadata or {}).get(METRIC_KEY)
    if stored is None:
        raise IndexMismatch("the table's schema names no metric: it wasn't made by this project")
    return Metric(stored.decode())


def _score(metric: Metric, distance: float) -> float:
    if metric is Metric.L2:
        return -math.sqrt(max(distance, 0.0))  # Lance gives the square
    return 1.0 - distance


# ---------------------------------------------------------------------- SQL


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _among(column: str, values: Sequence[str]) -> str:
    return f"{column} in ({','.join(map(_quoted, values))})"


def _equals(name: str, value: JSON) -> str:
    """SQL that is true where the metadata's field equals a JSON scalar, its type included, or is a list
    that holds this text."""
    field = f"json_get(metadata, {_quoted(name)})"
    text = f"json_extract({field}, '$')"
    if isinstance(value, bool):
        return f"{text} = '{str(value).lower()}'"
    if isinstance(value, str):
        # By the text's JSON: json_get_string fails on a row where the field is a list, and
        # json_array_contains compares what stands between the quotes.
        told = orjson.dumps(value).decode()
        held = f"json_array_contains(metadata, {_quoted(_path(name))}, {_quoted(told[1:-1])})"
        return f"({text} = {_quoted(told)} or {held})"
    if isinstance(value, int) and 2**53 <= abs(value) < 2**63:
        return f"try_cast({text} as bigint) = {value}"
    if isinstance(value, int | float):
        return f"try_cast({text} as double) = {float(value)!r}"
    raise ConfigError(f"a filter compares text, numbers and booleans; {name} is asked to be {value!r}")


def _path(name: str) -> str:
    """A field of an object as a JSON path, whatever its name."""
    return "$." + json.dumps(name, ensure_ascii=False)


# ---------------------------------------------------------------------- conflicts


def _insist(write: Callable[[], T], index: str) -> T:
    """Do a write, again while it only lost against other writers of the same table.

    Lance retries some times by itself; many writers at once can outlast that.
    """
    deadline = time.monotonic() + CONFLICT_SECONDS
    pause = 0.05
    while True:
        try:
            return write()
        except (RuntimeError, OSError) as error:
            text = str(error).lower()
            if not ("conflict" in text or "concurrent" in text) or time.monotonic() > deadline:
                raise
            log.info("another writer of %s was faster, trying again", index)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 5.0)
