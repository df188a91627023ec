"""The stored chunks of a corpus that are true now, as rows of a run. Reads no source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import RUN_ROW_SCHEMA, RunRef
from include.corpora.config import CorpusConfig
from include.corpora.presend import PresendFailed
from include.corpora.rows import RangeRows, range_of
from include.indexes import truth
from include.ledger.connect import Connection
from include.requests.keys import item_keys
from include.storage import Storage

_READ_ROWS = 10_000


class CurrentChunks:
    """Streams chunks as rows of `RUN_ROW_SCHEMA`, keyed in one space; each chunk once a call."""

    def __init__(self, connection: Connection, storage: Storage, config: CorpusConfig, space_id: str) -> None:
        self._connection = connection
        self._storage = storage
        self._config = config
        self._space_id = space_id
        self._hook = config.hook()

    def with_keys(self, keys: pa.Array[Any]) -> Iterator[pa.Table]:
        """The chunks that want one of these items."""
        yield from self._where(lambda rows: pc.is_in(rows["key"], keys))

    def of_documents(self, documents: pa.Array[Any]) -> Iterator[pa.Table]:
        """All chunks of these documents."""
        yield from self._where(lambda rows: pc.is_in(rows["document_id"], documents))

    def write_documents(self, run: RunRef, documents: set[str], ranges: int) -> int:
        """Write every chunk of these documents as the run's rows; returns how many."""
        written = 0
        with RangeRows(self._storage, run, ranges) as rows:
            for table in self.of_documents(pa.array(sorted(documents), pa.string())):
                numbers = [range_of(str(name), ranges) for name in table["document_id"].to_pylist()]
                rows.write(table, np.array(numbers, np.int32))
                written += table.num_rows
        return written

    def all_are_stored(self) -> bool:
        """See `all_are_stored`."""
        return all_are_stored(self._connection, self._config)

    def _where(self, chosen: Callable[[pa.Table], Any]) -> Iterator[pa.Table]:
        seen: set[str] = set()
        for path in self._paths():
            with self._storage.parquet_file(path) as file:
                for batch in file.iter_batches(_READ_ROWS):
                    rows = self._rows(batch)
                    rows = rows.filter(chosen(rows))
                    if not rows.num_rows:
                        continue
                    (whole,) = rows.combine_chunks().to_batches()
                    # A part stays when its documents change, and may repeat what another has.
                    current = truth.judge(self._connection, self._config.corpus, whole).current
                    rows = rows.filter(pa.array(current))
                    new = [str(name) not in seen for name in rows["chunk_id"].to_pylist()]
                    rows = rows.filter(pa.array(new, pa.bool_()))
                    seen.update(map(str, rows["chunk_id"].to_pylist()))
                    if rows.num_rows:
                        yield rows

    def _paths(self) -> Iterator[str]:
        partitions = self._connection.execute(
            "select distinct partition from documents where corpus = %s and not deleted order by partition",
            (self._config.corpus,),
        ).fetchall()
        folder = f"corpora/{self._config.corpus}/chunks/{self._config.chunking.fingerprint}"
        for row in partitions:
            yield from self._storage.list(f"{folder}/{row['partition']}", ".parquet")

    def _rows(self, batch: pa.RecordBatch) -> pa.Table:
        texts = [str(text) for text in batch.column("text").to_pylist()]
        inputs = texts if self._hook is None else [self._sent(text) for text in texts]
        as_sent = self._config.presend_text
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        columns["text"] = pa.array(inputs if as_sent else texts, pa.string())
        columns["key"] = item_keys(self._space_id, inputs)
        columns["input"] = [
            None if as_sent or given == text else given for given, text in zip(inputs, texts, strict=True)
        ]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for field in RUN_ROW_SCHEMA
            for column in (columns[field.name],)
        ]
        return pa.Table.from_arrays(arrays, schema=RUN_ROW_SCHEMA)

    def _sent(self, text: str) -> str:
        """The text as it is sent. One that the hook fails on now keeps its own, under whose key nothing
        was ever asked: its chunk stays in the index and isn't sent."""
        assert self._hook is not None
        try:
            (sent,) = self._hook.apply([text])
        except PresendFailed:
            return text
        return sent


def all_are_stored(connection: Connection, config: CorpusConfig) -> bool:
    """Whether each document's chunks are stored under this corpus's chunking, so that what isn't found
    among them is nowhere."""
    row = connection.execute(
        "select exists(select from documents where corpus = %s and not deleted and chunking <> %s) as other",
        (config.corpus, config.chunking.fingerprint),
    ).fetchone()
    return row is not None and not row["other"]
