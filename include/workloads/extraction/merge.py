"""One answer out of several: the windows of a long document, each described by itself.

No second model call: lists are united in the order of the document, texts follow one another, and
of anything else the first answer counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def merge(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answers to a document's windows, in their order, as one."""
    merged: dict[str, Any] = {}
    for answer in answers:
        for name, value in answer.items():
            merged[name] = _join(merged[name], value) if name in merged else value
    return merged


def _join(before: Any, after: Any) -> Any:
    if before is None:
        return after
    if isinstance(before, str) and isinstance(after, str):
        return before if after in before else f"{before.rstrip()} {after.lstrip()}"
    if isinstance(before, list) and isinstance(after, list):
        known = {_same(each) for each in before}
        return [*before, *_fresh(after, known)]
    if isinstance(before, dict) and isinstance(after, dict):
        return merge([before, after])
    return before


def _fresh(values: list[Any], known: set[str]) -> list[Any]:
    kept = []
    for value in values:
        if _same(value) not in known:
            known.add(_same(value))
            kept.append(value)
    return kept


def _same(value: Any) -> str:
    """Equal for what a reader takes for the same: case and blanks don't count in text."""
    return " ".join(value.split()).casefold() if isinstance(value, str) else repr(value)
