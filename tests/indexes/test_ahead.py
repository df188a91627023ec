"""Items made ahead come as they would have come otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from include.indexes.ahead import ahead


def test_all_of_them_come_in_their_order() -> None:
    for count in (0, 1, 3, 50):
        assert list(ahead(iter(range(count)), 4)) == list(range(count))


def test_what_making_one_raises_is_raised_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("the third")

    seen = []
    with pytest.raises(LookupError, match="the third"):
        seen.extend(ahead(items(), 4))
    made = ahead(items(), 4)
    assert [next(made), next(made)] == [1, 2]


def test_no_more_are_made_than_may_wait_and_none_after_the_reader_stops() -> None:
    made: list[int] = []
    three = threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 3:
                three.set()
            yield number

    reader = ahead(items(), 3)
    assert next(reader) == 0
    assert three.wait(timeout=60), "three wait beside the one that was read"
    reader.close()
    assert made == [0, 1, 2, 3]
