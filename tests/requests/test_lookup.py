"""Names of 16 bytes are found among any others, however alike they are."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from include.requests.lookup import Lookup, keys_of_names, names_of_keys, names_of_uuids, uuids_of_names

# Few different halves, so that many names share their first one.
HALVES = st.sampled_from([b"\0" * 8, b"\0" * 7 + b"\1", b"\1" + b"\0" * 7, b"\xff" * 8])
KEYS = st.lists(st.builds(bytes.__add__, HALVES, HALVES))


def looked_up(keys: list[bytes]) -> Lookup:
    return Lookup(names_of_keys(pa.array(keys, pa.binary(16))))


class TestLookup:
    @given(KEYS, KEYS)
    def test_finds_every_row_of_a_name_and_nothing_else(self, keys: list[bytes], asked: list[bytes]) -> None:
        lookup = looked_up(keys)
        numbers = lookup.find(names_of_keys(pa.array(asked, pa.binary(16))))
        assert [number >= 0 for number in numbers.tolist()] == [key in keys for key in asked]
        rows, places = lookup.rows(numbers[numbers >= 0])
        there = [key for key in asked if key in keys]
        found: list[set[int]] = [set() for _ in there]
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            found[place].add(row)
        assert found == [{row for row, own in enumerate(keys) if own == key} for key in there]

    @given(KEYS)
    def test_tells_names_and_rows_apart(self, keys: list[bytes]) -> None:
        lookup = looked_up(keys)
        distinct = sorted(set(keys))
        assert keys_of_names(lookup.names(np.arange(len(lookup)))) == distinct
        assert lookup.spread(np.arange(len(lookup))).tolist() == [distinct.index(key) for key in keys]
        assert sorted({keys[row] for row in lookup.repeated()}) == [k for k in distinct if keys.count(k) > 1]

    @given(st.lists(st.tuples(st.builds(bytes.__add__, HALVES, HALVES), st.booleans())))
    def test_says_which_names_some_rows_have(self, rows: list[tuple[bytes, bool]]) -> None:
        lookup = looked_up([key for key, _ in rows])
        which = lookup.any_of(np.array([chosen for _, chosen in rows], bool))
        chosen = keys_of_names(lookup.names(np.flatnonzero(which)))
        assert chosen == sorted({key for key, chosen in rows if chosen})


class TestUuids:
    @given(st.lists(st.uuids() | st.text(max_size=40)), st.integers(0, 3))
    def test_are_named_by_their_bytes_and_anything_else_is_not(
        self, ids: list[uuid.UUID | str], skipped: int
    ) -> None:
        names, usual = names_of_uuids(pa.array(map(str, ids), pa.string()).slice(skipped))
        ids = ids[skipped:]
        assert usual.tolist() == [isinstance(each, uuid.UUID) for each in ids]
        assert uuids_of_names(names[usual]).to_pylist() == [str(i) for i in ids if isinstance(i, uuid.UUID)]
        told = [key for key, good in zip(keys_of_names(names), usual.tolist(), strict=True) if good]
        assert told == [each.bytes for each in ids if isinstance(each, uuid.UUID)]

    def test_in_another_writing_are_other_texts(self) -> None:
        usual = str(uuid.UUID(int=2**128 - 1))
        others = [usual.upper(), usual.replace("-", "_"), f"{{{usual[1:-1]}}}", f"{usual[:-1]}g", usual[:-1]]
        _, good = names_of_uuids(pa.array([*others, usual]))
        assert good.tolist() == [False] * len(others) + [True]
