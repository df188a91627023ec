"""Results: what was paid for is found again by key, and stored once."""

from __future__ import annotations

import numpy as np
import pendulum
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts import results_schema
from include.requests import results
from include.requests.keys import item_keys
from include.storage import Storage

SPACE = "00" * 16
MOMENT = pendulum.datetime(2026, 11, 30, 12)


def write(storage: Storage, name: str, texts: list[str], dimensions: int = 4) -> None:
    with results.writing(storage, results.path(SPACE, name), dimensions, MOMENT) as writer:
        for start in range(0, len(texts), 7):
            part = texts[start : start + 7]
            vectors = np.array([[len(text)] * dimensions for text in part], np.float32)
            writer.write(
                b"".join(item_keys(SPACE, part)), vectors, [1] * len(part), [0] * len(part), ["m"] * len(part)
            )


class TestWritingAndReading:
    def test_what_is_written_has_the_schema_and_is_read_by_key(self, storage: Storage) -> None:
        texts = ["x" * length for length in range(50)]
        write(storage, "one", texts[:30])
        write(storage, "two", texts[30:])
        wanted = [texts[3], texts[29], texts[30], texts[49]]
        keys = results.keys_array(b"".join(item_keys(SPACE, [*wanted, "never asked"])))
        tables = list(results.read(storage, results.files(storage, SPACE), keys))
        found = pa.concat_tables(tables)
        assert found.schema == results_schema(4)
        lengths = {row["key"]: np.frombuffer(row["vector"], "<f4")[0] for row in found.to_pylist()}
        assert lengths == {
            key: float(len(text)) for key, text in zip(item_keys(SPACE, wanted), wanted, strict=True)
        }
        assert found["landed_at"][0].as_py() == MOMENT
        assert found["produced_by"].to_pylist() == found["key"].to_pylist()

    def test_a_file_is_named_after_its_submission_and_written_over(self, storage: Storage) -> None:
        write(storage, "one", ["a", "b"])
        write(storage, "one", ["c"])
        (path,) = results.files(storage, SPACE)
        assert results.submission_of(path) == "one"
        with storage.parquet_file(path) as file:
            assert file.metadata.num_rows == 1

    def test_a_file_that_breaks_off_is_not_there(self, storage: Storage) -> None:
        path = results.path(SPACE, "one")
        with pytest.raises(RuntimeError), results.writing(storage, path, 4, MOMENT):
            raise RuntimeError("killed")
        assert results.files(storage, SPACE) == []

    def test_a_space_without_results_has_none(self, storage: Storage) -> None:
        assert results.files(storage, SPACE) == []

    def test_texts_are_stored_with_their_keys(self, storage: Storage) -> None:
        texts = ["b", "a", "c"]
        with results.writing(storage, results.path(SPACE, "one"), None, MOMENT) as writer:
            writer.write(b"".join(item_keys(SPACE, texts)), texts, [1] * 3, [2] * 3, ["m", "n", "m"])
        keys = results.keys_array(b"".join(item_keys(SPACE, texts)))
        (table,) = results.read(storage, results.files(storage, SPACE), keys)
        outputs = dict(zip(table["key"].to_pylist(), table["output"].to_pylist(), strict=True))
        assert outputs == dict(zip(item_keys(SPACE, texts), texts, strict=True))


class TestKeyOrder:
    @given(st.lists(st.binary(min_size=16, max_size=16)))
    def test_numbers_order_keys_as_bytes_do(self, keys: list[bytes]) -> None:
        matrix = results.keys_matrix(results.keys_array(b"".join(keys)))
        order = results.key_order(matrix)
        ordered = keys if order is None else [keys[position] for position in order]
        assert ordered == sorted(keys)
        if order is None:
            assert keys == sorted(keys)

    def test_a_slice_of_keys_is_read_from_its_own_place(self) -> None:
        keys = [bytes([number]) * 16 for number in range(5)]
        part = results.keys_array(b"".join(keys)).slice(2, 2)
        assert results.keys_matrix(part).tobytes() == keys[2] + keys[3]
