"""What is true now: which rows are still their document's newest version, and who may change them.

A batch returns up to a day after its documents were read. Whoever writes or deletes in an index
holds the locks of its documents, and asks the document table within them; then a late batch can't
overwrite a newer document or revive a deleted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.rows import tuple_row

from include.corpora.rows import range_of
from include.ledger.connect import Connection
from include.ledger.locks import held

LOCKS = 64
"""Locks of an index version. Fixed, so that runs that split into different numbers of ranges still
exclude each other; a multiple of the usual 16 ranges, so that ranges don't wait for each other."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Truth:
    """For each row, shape (rows,): whether it's its document's newest version, whether that is deleted."""

    current: Mask
    deleted: Mask


def locks_of_range(number: int, ranges: int) -> list[int]:
    """The locks of all documents that may be in range `number` of `ranges`."""
    if LOCKS % ranges == 0:
        return list(range(number, LOCKS, ranges))
    return list(range(LOCKS))


def locks_of(document_ids: Iterable[str]) -> list[int]:
    """The locks of these documents."""
    return sorted({range_of(document, LOCKS) for document in document_ids})


@contextmanager
def locked(connection: Connection, version: str, locks: Iterable[int]) -> Iterator[None]:
    """Hold these locks of an index version through the block; always taken in the same order."""
    with ExitStack() as stack:
        for number in sorted(locks):
            stack.enter_context(held(connection, f"upsert/{version}/{number}"))
        yield


def documents(connection: Connection, corpus: str, document_ids: list[str]) -> pa.Table:
    """Those of the documents that the table knows: document_id, content_hash, metadata_hash, deleted."""
    with connection.cursor(row_factory=tuple_row, binary=True) as cursor:
        cursor.execute(
            "select document_id, content_hash, metadata_hash, deleted from documents"
            " where corpus = %s and document_id = any(%s)",
            (corpus, document_ids),
        )
        columns: list[Any] = list(zip(*cursor.fetchall(), strict=True)) or [(), (), (), ()]
    return pa.table(
        {
            "document_id": pa.array(columns[0], pa.string()),
            "content_hash": pa.array(columns[1], pa.binary(16)),
            "metadata_hash": pa.array(columns[2], pa.binary(16)),
            "deleted": pa.array(columns[3], pa.bool_()),
        }
    )


def judge(connection: Connection, corpus: str, rows: pa.RecordBatch) -> Truth:
    """Which rows are current now. A row needs document_id, content_hash and metadata_hash.

    A row with the newest text but older metadata isn't current either: the run that read the
    newer metadata writes it.
    """
    names = rows.column("document_id").unique()
    known = documents(connection, corpus, [str(name) for name in names.to_pylist()])
    places = pc.index_in(rows.column("document_id"), known["document_id"].combine_chunks())
    there = known.take(places)
    deleted = _mask(there["deleted"])
    same = _mask(pc.equal(there["content_hash"], rows.column("content_hash")))
    same &= _mask(pc.equal(there["metadata_hash"], rows.column("metadata_hash")))
    return Truth(same & ~deleted, deleted)


def _mask(column: Any) -> Mask:
    """A column of booleans as NumPy has them; null is false."""
    mask: Mask = pc.fill_null(column, False).to_numpy()
    return mask
