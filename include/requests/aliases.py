"""Answers under the key of the question that they stand in for.

A corrected retry asks something else than what failed: less of the text, or another model. Its answer
is stored under its own key, and here under the original one too, `produced_by` telling them apart: the
next run finds its question answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from include.requests import results
from include.storage import Storage

Originals = Mapping[bytes, Sequence[bytes]]
"""The key of each item that was asked → the keys of the questions that it stands in for."""


def stand_in(storage: Storage, *, space_id: str, asked_space_id: str, asked: Originals, run: str) -> int:
    """Store the answers to what `run` asked in `asked_space_id` under the original keys in `space_id`.

    Returns how many of those have one. Files are named after the submission that was paid for and the
    run: doing it again writes the same files.
    """
    wanted = results.keys_array(b"".join(asked))
    mark = hashlib.blake2b(run.encode(), digest_size=8).hexdigest()
    found: set[bytes] = set()
    for submission, paths in groupby(results.files(storage, asked_space_id), results.submission_of):
        own = f"{submission}.{mark}.parquet"
        sources = [path for path in paths if not path.endswith(own)]
        with ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for table in _renamed(storage, sources, wanted, asked):
                if writer is None:
                    target = f"{results.folder(space_id)}/{own}"
                    writer = stack.enter_context(storage.parquet_writer(target, table.schema))
                writer.write_table(table)
                found.update(results.key_list(table["key"]))
    return len(found)


def _renamed(
    storage: Storage, paths: Sequence[str], wanted: pa.Array[Any], asked: Originals
) -> Iterator[pa.Table]:
    """The answers to what was asked, under the original keys; sorted by those within each table."""
    for answered in results.read(storage, paths, wanted):
        rows: list[int] = []
        keys: list[bytes] = []
        for row, key in enumerate(results.key_list(answered["key"])):
            rows += [row] * len(asked[key])
            keys += asked[key]
        column = results.keys_array(b"".join(keys))
        table = answered.take(rows).set_column(0, answered.schema.field("key"), column)
        order = results.key_order(results.keys_matrix(column))
        yield table if order is None else table.take(order)
