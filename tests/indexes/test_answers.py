"""Every row gets the newest answer to its own key, whatever lies around it."""

from __future__ import annotations

import itertools

import numpy as np
import pendulum
import pyarrow as pa
import pytest

from include.errors import IndexMismatch
from include.indexes import readback
from include.indexes.answers import NEVER, Answers
from include.requests import results
from include.requests.lookup import Lookup, names_of_keys
from include.storage import Storage

SPACE = "e" * 32
KEYS = [bytes([a, b]) + bytes(14) for a, b in itertools.product(range(1, 9), range(8))]
"""Keys that end in zero bytes, as any may."""


def land(storage: Storage, name: str, keys: list[bytes], value: float, day: int, group: int = 5) -> None:
    when = pendulum.datetime(2026, 1, day)
    with results.writing(storage, results.path(SPACE, name), 2, when) as writer:
        for start in range(0, len(keys), group):
            part = keys[start : start + group]
            zeros, vectors = (
                [0] * len(part),
                np.array([[value, key[0] * 10 + key[1]] for key in part], np.float32),
            )
            writer.write(b"".join(part), vectors, zeros, zeros, ["model"] * len(part))


def looked_up(keys: list[bytes]) -> Lookup:
    return Lookup(names_of_keys(pa.array(keys, pa.binary(16))))


def asked(storage: Storage, keys: list[bytes], most: int = 7) -> dict[int, tuple[float, float]]:
    """Each answered row's vector."""
    answers = Answers(storage, SPACE, 2, looked_up(keys))
    found: dict[int, tuple[float, float]] = {}
    for rows, vectors in answers.stream(np.ones(len(keys), bool), most):
        assert len(rows) == len(vectors) <= most
        for row, vector in zip(rows.tolist(), readback.matrix(vectors).tolist(), strict=True):
            assert row not in found
            found[row] = (vector[0], vector[1])
    assert np.flatnonzero(answers.landed() != NEVER).tolist() == sorted(found)
    return found


def test_rows_in_any_order_and_repeated_each_get_their_key_s_vector(storage: Storage) -> None:
    land(storage, "a", KEYS[::2], 1, day=1)
    land(storage, "b", KEYS[1::4], 2, day=1)
    rows = [KEYS[number] for number in np.random.default_rng(0).integers(0, len(KEYS), 200)]
    there = {*KEYS[::2], *KEYS[1::4]}
    assert asked(storage, rows) == {
        row: (1.0 if KEYS.index(key) % 2 == 0 else 2.0, key[0] * 10 + key[1])
        for row, key in enumerate(rows)
        if key in there
    }


def test_of_several_answers_the_newest_counts_in_whatever_file_it_is(storage: Storage) -> None:
    land(storage, "a", KEYS, 1, day=2)
    land(storage, "b", KEYS[:20], 2, day=3)
    land(storage, "c", KEYS[10:30], 3, day=1)
    found = asked(storage, KEYS)
    assert [found[row][0] for row in range(len(KEYS))] == [2.0] * 20 + [1.0] * (len(KEYS) - 20)


def test_only_wanted_rows_come(storage: Storage) -> None:
    land(storage, "a", KEYS, 1, day=1)
    answers = Answers(storage, SPACE, 2, looked_up(KEYS))
    wanted = np.arange(len(KEYS)) % 3 == 0
    rows = np.concatenate([numbers for numbers, _ in answers.stream(wanted, 100)])
    assert sorted(rows.tolist()) == np.flatnonzero(wanted).tolist()


def test_no_rows_and_no_results_are_no_error(storage: Storage) -> None:
    assert asked(storage, KEYS) == {}
    land(storage, "a", KEYS, 1, day=1)
    assert asked(storage, []) == {}


def test_results_of_another_width_are_refused(storage: Storage) -> None:
    land(storage, "a", KEYS, 1, day=1)
    with pytest.raises(IndexMismatch):
        Answers(storage, SPACE, 3, looked_up(KEYS))
