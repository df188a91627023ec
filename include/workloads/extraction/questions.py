"""What a corpus's documents are asked, as rows of a run: derived from what an ingest stored.

Reads no source. Streams by partition; a document's text goes through the corpus's pre-send hook.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import KEY_BYTES, RUN_ROW_SCHEMA, RunRef
from include.corpora import tokens
from include.corpora.config import CorpusConfig
from include.corpora.presend import PresendFailed
from include.corpora.rows import RangeRows, range_of
from include.errors import ConfigError
from include.ledger.connect import Connection
from include.requests.keys import item_key
from include.storage import Storage
from include.workloads.current_chunks import all_are_stored
from include.workloads.extraction import prompt
from include.workloads.extraction.reading import Selection, StoredDocument, stored, windows

log = logging.getLogger(__name__)

_ROWS = 2_000
_LOG_SECONDS = 10.0

#: Which chunks a run's documents have, with what the source says of each: `rows/chunks-NN.parquet`.
_HOLDER_FIELDS: list[pa.Field[Any]] = [
    pa.field("chunk_id", pa.string(), nullable=False),
    pa.field("document_id", pa.string(), nullable=False),
    pa.field("content_hash", pa.binary(KEY_BYTES), nullable=False),
    pa.field("metadata_hash", pa.binary(KEY_BYTES), nullable=False),
    pa.field("metadata", pa.string(), nullable=False),
]
HOLDER_SCHEMA = pa.schema(_HOLDER_FIELDS)


@dataclass(slots=True)
class Prepared:
    """The counts: documents `read`, `chunks` requests wanted (one a window, or a chunk), their tokens, and
    documents that the pre-send hook fails on (`bad`), which are left out."""

    read: int = 0
    chunks: int = 0
    tokens: int = 0
    bad: int = 0
    partitions: dict[str, bool] = field(default_factory=dict)


def holders_path(run: RunRef, number: int) -> str:
    """A range's chunks, relative to the storage root."""
    return f"{run.uri}/rows/chunks-{number:02d}.parquet"


class Questions:
    """The questions of a corpus's current documents in one space."""

    def __init__(self, connection: Connection, storage: Storage, config: CorpusConfig, space_id: str) -> None:
        if config.extraction is None:
            raise ConfigError(f"corpus {config.corpus} has no `extraction`")
        self._connection = connection
        self._storage = storage
        self._config = config
        self._extraction = config.extraction
        self._space_id = space_id
        self._hook = config.hook()
        self._system = prompt.instructions(config.extraction)
        self._fixed_tokens = int(tokens.count([self._system])[0])

    def write(self, run: RunRef, selection: Selection, ranges: int) -> Prepared:
        """Write the rows of the documents selected, by range of document id."""
        return self._write(run, selection, ranges, lambda document: True)

    def with_keys(self, keys: pa.Array[Any]) -> Iterator[pa.Table]:
        """The rows that want one of these items."""
        for rows, _ in self._batches(Selection(), Prepared(), lambda document: True):
            found = rows.filter(pc.is_in(rows["key"], keys))
            if found.num_rows:
                yield found

    def write_documents(self, run: RunRef, documents: set[str], ranges: int) -> int:
        """Write all rows of these documents; returns how many."""
        return self._write(run, Selection(), ranges, lambda document: document.id in documents).chunks

    def all_are_stored(self) -> bool:
        """See `current_chunks.all_are_stored`."""
        return all_are_stored(self._connection, self._config)

    def _write(
        self, run: RunRef, selection: Selection, ranges: int, wanted: Callable[[StoredDocument], bool]
    ) -> Prepared:
        report = Prepared()
        with ExitStack() as stack:
            ranged = stack.enter_context(RangeRows(self._storage, run, ranges))
            holders = [
                stack.enter_context(self._storage.parquet_writer(holders_path(run, number), HOLDER_SCHEMA))
                for number in range(ranges)
            ]
            for rows, held in self._batches(selection, report, wanted):
                ranged.write(rows, _ranges(rows, ranges))
                places = _ranges(held, ranges)
                for number in np.unique(places).tolist():
                    holders[number].write_table(held.filter(pa.array(places == number)))
        return report

    def _batches(
        self, selection: Selection, report: Prepared, wanted: Callable[[StoredDocument], bool]
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """(rows of RUN_ROW_SCHEMA, of HOLDER_SCHEMA), some thousand at a time."""
        config = self._config
        started = logged = time.monotonic()
        batch = _Batch()
        for document in stored(
            self._connection, self._storage, config.corpus, config.chunking.fingerprint, selection
        ):
            if not wanted(document):
                continue
            report.read += 1
            report.partitions[document.partition] = True
            try:
                self._add(batch, document)
            except PresendFailed as failed:
                report.bad += 1
                log.warning("document %r is left out: %s", document.id, failed)
            if len(batch) >= _ROWS:
                yield batch.tables(report)
                batch = _Batch()
            if time.monotonic() - logged >= _LOG_SECONDS:
                logged = time.monotonic()
                log.info("%s documents, %.0f/s", f"{report.read:,}", report.read / (logged - started))
        if len(batch):
            yield batch.tables(report)

    def _add(self, batch: _Batch, document: StoredDocument) -> None:
        """What this document, or each of its chunks, is asked."""
        if self._extraction.per == "chunk":
            asked = [(piece.chunk_id, piece.text) for piece in document.pieces]
        else:
            asked = [(one.chunk_id, one.text) for one in windows(document, self._extraction.window_tokens)]
        texts = self._sent([text for _, text in asked])
        title = self._sent([document.title])[0] if document.title else None
        for position, ((chunk_id, _), text) in enumerate(zip(asked, texts, strict=True)):
            content = prompt.material(text, title)
            question = prompt.question(self._system, content)
            size = self._fixed_tokens + int(tokens.count([content])[0])
            batch.row(document, chunk_id, position, question, item_key(self._space_id, question), size)
        batch.hold(document)

    def _sent(self, texts: list[str]) -> list[str]:
        return texts if self._hook is None else self._hook.apply(texts)


class _Batch:
    """Rows gathered in columns."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in RUN_ROW_SCHEMA.names}
        self._holders: dict[str, list[Any]] = {name: [] for name in HOLDER_SCHEMA.names}

    def __len__(self) -> int:
        return len(self._holders["chunk_id"])

    def row(
        self,
        document: StoredDocument,
        chunk_id: str,
        position: int,
        question: dict[str, Any],
        key: bytes,
        size: int,
    ) -> None:
        """One request."""
        values: dict[str, Any] = {
            "chunk_id": chunk_id,
            "key": key,
            "document_id": document.id,
            "content_hash": document.content_hash,
            "metadata_hash": document.metadata_hash,
            "partition": document.partition,
            "position": position,
            # The question holds the text; once is enough.
            "text": "",
            "input": json.dumps(question, ensure_ascii=False),
            "tokens": size,
            "metadata": "{}",
        }
        for name, value in values.items():
            self._columns[name].append(value)

    def hold(self, document: StoredDocument) -> None:
        """All chunks of a document."""
        for piece in document.pieces:
            for name, value in (
                ("chunk_id", piece.chunk_id),
                ("document_id", document.id),
                ("content_hash", document.content_hash),
                ("metadata_hash", document.metadata_hash),
                ("metadata", piece.metadata),
            ):
                self._holders[name].append(value)

    def tables(self, report: Prepared) -> tuple[pa.Table, pa.Table]:
        """What was gathered, counted."""
        report.chunks += len(self._columns["key"])
        report.tokens += sum(self._columns["tokens"])
        return _table(self._columns, RUN_ROW_SCHEMA), _table(self._holders, HOLDER_SCHEMA)


def _table(columns: dict[str, list[Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([pa.array(columns[one.name], one.type) for one in schema], schema=schema)


def _ranges(rows: pa.Table, ranges: int) -> Any:
    return np.array([range_of(str(name), ranges) for name in rows["document_id"].to_pylist()], np.int32)
