"""An answer that stands in for another question is found under that question's key."""

from __future__ import annotations

from typing import Any

import pendulum

from include.requests import results
from include.requests.aliases import stand_in
from include.requests.results import keys_array, submission_of
from include.storage import Storage

FIRST, SECOND = "a" * 32, "b" * 32
ASKED, OTHER, ONE, TWO = (bytes([number]) * 16 for number in (9, 8, 2, 1))
LANDED = pendulum.datetime(2026, 11, 1)


def land(storage: Storage, space: str, submission: str, *keys: bytes) -> None:
    with results.writing(storage, results.path(space, submission), None, LANDED) as writer:
        texts = [f"answer to {key[0]}" for key in keys]
        writer.write(b"".join(keys), texts, [3] * len(keys), [4] * len(keys), ["m"] * len(keys))


def found(storage: Storage, space: str, *keys: bytes) -> list[dict[str, Any]]:
    tables = results.read(storage, results.files(storage, space), keys_array(b"".join(keys)))
    return [row for table in tables for row in table.to_pylist()]


def test_it_is_copied_to_each_question_with_the_request_that_was_paid_for(storage: Storage) -> None:
    land(storage, SECOND, "submission", ASKED, OTHER)
    asked = {ASKED: [ONE, TWO]}
    assert stand_in(storage, space_id=FIRST, asked_space_id=SECOND, asked=asked, run="run") == 2
    rows = found(storage, FIRST, ONE, TWO, ASKED, OTHER)
    assert [row["key"] for row in rows] == [TWO, ONE], "sorted by key"
    for row in rows:
        assert (row["produced_by"], row["output"], row["landed_at"]) == (ASKED, "answer to 9", LANDED)
        assert (row["input_tokens"], row["output_tokens"], row["model"]) == (3, 4, "m")
    (path,) = results.files(storage, FIRST)
    assert submission_of(path) == "submission", "whoever paid for it is known"


def test_in_one_space_doing_it_again_changes_nothing(storage: Storage) -> None:
    land(storage, FIRST, "submission", ASKED)
    for _ in range(2):
        assert stand_in(storage, space_id=FIRST, asked_space_id=FIRST, asked={ASKED: [ONE]}, run="run") == 1
    assert len(results.files(storage, FIRST)) == 2
    assert [row["produced_by"] for row in found(storage, FIRST, ONE, ASKED)] == [ASKED, ASKED]


def test_an_answer_that_stands_in_itself_leads_to_the_request_that_was_paid_for(storage: Storage) -> None:
    land(storage, FIRST, "submission", ASKED)
    stand_in(storage, space_id=FIRST, asked_space_id=FIRST, asked={ASKED: [ONE]}, run="run")
    stand_in(storage, space_id=FIRST, asked_space_id=FIRST, asked={ONE: [TWO]}, run="another")
    assert [row["produced_by"] for row in found(storage, FIRST, TWO)] == [ASKED]


def test_without_an_answer_nothing_is_written(storage: Storage) -> None:
    land(storage, FIRST, "submission", OTHER)
    assert stand_in(storage, space_id=FIRST, asked_space_id=FIRST, asked={ASKED: [ONE]}, run="run") == 0
    assert len(results.files(storage, FIRST)) == 1
