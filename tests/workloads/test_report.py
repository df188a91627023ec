"""A report tells of a workload what it does, and nothing of another's."""

from __future__ import annotations

import pytest

from include.workloads.report import Report, markdown


@pytest.mark.parametrize(
    ("workload", "told", "untold"),
    [
        ("initial_ingest", {"3 new", "2 refused", "| chunks | 7 |"}, {"windows", "letters' documents"}),
        (
            "metadata_extraction",
            {"of them left out | 2", "windows of their text | 7"},
            {" new,", "letters' documents"},
        ),
        (
            "dead_letter_replay",
            {"chunks of the letters' documents | 7"},
            {" new,", "documents read", "windows"},
        ),
    ],
)
def test_each_workload_is_told_in_its_own_terms(workload: str, told: set[str], untold: set[str]) -> None:
    report = Report("r", "docs", workload, "succeeded", documents_new=3, documents_bad=2, chunks=7)
    text = markdown(report)
    assert [part for part in told if part not in text] == []
    assert [part for part in untold if part in text] == []
