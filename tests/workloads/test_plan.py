"""Which partitions a run may see."""

from __future__ import annotations

import pytest

from include.workloads.plan import Request, Window


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        ("2026-01-01T02:00:00+00:00", "2026-01-02T02:00:00+00:00", ("2026-01-01",)),
        ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", ("2026-01-01",)),
        ("2026-01-01T02:00:00+00:00", "2026-01-03T02:00:00+00:00", ("2026-01-01", "2026-01-02")),
        ("2026-01-01T05:00:00+00:00", "2026-01-01T06:00:00+00:00", ("2026-01-01",)),
        ("2026-01-31T23:00:00-05:00", "2026-02-01T23:00:00-05:00", ("2026-02-01",)),
    ],
)
def test_a_window_sees_the_days_that_begin_in_it(start: str, end: str, days: tuple[str, ...]) -> None:
    assert Window(start, end).days() == days


def test_named_partitions_beat_the_window_and_an_undated_source_is_read_whole() -> None:
    window = Window("2026-01-01T02:00:00+00:00", "2026-01-02T02:00:00+00:00")
    assert Request(window=window).wanted_partitions(dated=True) == ("2026-01-01",)
    assert Request(window=window).wanted_partitions(dated=False) is None
    assert Request(window=window, partitions=("x",)).wanted_partitions(dated=True) == ("x",)
    assert Request().wanted_partitions(dated=True) is None
