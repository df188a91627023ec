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
    """One look at an index. `others` are ids of the documents' chunks that aren't among the rows."""

    def __init__(self, store: VectorStore, index: str, rows: RunRows, stamps: Numbers) -> None:
        """`stamps` are those that the rows are to have, shape (rows,)."""
        self._rows = rows
        self._times = np.zeros(len(rows), np.int32)
        self.same: Mask = np.zeros(len(rows), bool)
        """Which rows it holds once, with these stamps."""
        self._others: list[pa.Array[Any]] = [pa.array([], pa.string())]
        self._other_documents: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
        for part in store.ids_of(index, rows.documents):
            self._add(part.combine_chunks(), stamps)
        self.same &= self._times == 1

    def _add(self, part: pa.Table, stamps: Numbers) -> None:
        for batch in part.to_batches():
            names, usual = names_of_uuids(batch.column("chunk_id"))
            found = self._rows.ids.find(names)
            known = (found >= 0) & usual
            rows, _ = self._rows.ids.rows(found[known])
            np.add.at(self._times, rows, 1)
            self.same[rows] = batch.column("stamp").to_numpy()[known] == stamps[rows]
            if not known.all():
                other = batch.filter(pa.array(~known))
                self._others.append(other.column("chunk_id"))
                places = pc.index_in(other.column("document_id"), self._rows.documents)
                self._other_documents.append(places.to_numpy())

    @property
    def there(self) -> Mask:
        """Which rows it holds."""
        return self._times > 0

    @property
    def twice(self) -> Mask:
        """Which rows it holds more than once: someone wrote without our locks."""
        return self._times > 1

    def others_of(self, documents: Mask) -> pa.Array[Any]:
        """The chunks of these documents that aren't among the rows; `documents` has shape (documents,)."""
        where = documents[np.concatenate(self._other_documents)]
        return pa.concat_arrays(self._others).filter(pa.array(where))
