"""What an index holds of some rows' documents, told row by row as the store lists its ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import VectorStore
from include.indexes.run_rows import RunRows
from include.indexes.truth import Mask
from include.requests.lookup import Numbers, names_of_uuids


class Held:
    """One look at an index. `times` says how often it holds each row, `stamps` with which stamp (the last
    one seen); shape (rows,). The documents' other chunks are told by `others_of`."""

    def __init__(self, store: VectorStore, index: str, rows: RunRows) -> None:
        self._rows = rows
        self.times = np.zeros(len(rows), np.int32)
        self.stamps: Numbers = np.zeros(len(rows), np.int64)
        self._others: list[pa.Array[Any]] = [pa.array([], pa.string())]
        self._other_documents: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
        for part in store.ids_of(index, rows.documents):
            for batch in part.combine_chunks().to_batches():
                self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        names, usual = names_of_uuids(batch.column("chunk_id"))
        found = self._rows.ids.find(names)
        known = (found >= 0) & usual
        rows, _ = self._rows.ids.rows(found[known])
        np.add.at(self.times, rows, 1)
        self.stamps[rows] = batch.column("stamp").to_numpy()[known]
        if not known.all():
            other = batch.filter(pa.array(~known))
            self._others.append(other.column("chunk_id"))
            places = pc.index_in(other.column("document_id"), self._rows.documents)
            self._other_documents.append(places.to_numpy())

    def others_of(self, documents: Mask) -> pa.Array[Any]:
        """The chunks of these documents that aren't among the rows; `documents` has shape (documents,)."""
        where = documents[np.concatenate(self._other_documents)]
        return pa.concat_arrays(self._others).filter(pa.array(where))
