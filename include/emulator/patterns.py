"""A string that a regular expression accepts, for schemas that demand one."""

from __future__ import annotations

import re
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

CATEGORIES = {
    "CATEGORY_DIGIT": "0",
    "CATEGORY_NOT_DIGIT": "a",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": "a",
    "CATEGORY_WORD": "a",
    "CATEGORY_NOT_WORD": "-",
}
CANDIDATES = "aA0 -_.,:/@#x1z9Z!?~é"


def example(pattern: str) -> str:
    """The simplest string that matches.

    Raises ValueError for a pattern that is wrong or beyond us (look-arounds).
    """
    try:
        compiled = re.compile(pattern)
        made = _sequence(parser.parse(pattern))
    except (re.error, KeyError, NotImplementedError) as error:
        raise ValueError(f"no example can be made for the pattern {pattern!r}: {error}") from error
    if not compiled.search(made):
        raise ValueError(f"no example can be made for the pattern {pattern!r}")
    return made


def _sequence(items: Any) -> str:
    return "".join(_item(str(operation), argument) for operation, argument in items)


def _item(operation: str, argument: Any) -> str:
    match operation:
        case "LITERAL":
            return chr(int(argument))
        case "NOT_LITERAL":
            return next(each for each in CANDIDATES if ord(each) != argument)
        case "ANY":
            return "a"
        case "IN":
            return _member(argument)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            low, _, inner = argument
            return _sequence(inner) * int(low)
        case "SUBPATTERN":
            return _sequence(argument[3])
        case "ATOMIC_GROUP":
            return _sequence(argument)
        case "BRANCH":
            return _sequence(argument[1][0])
        case "AT":
            return ""
        case _:
            raise NotImplementedError(operation)


def _member(choices: Any) -> str:
    kinds = [(str(operation), argument) for operation, argument in choices]
    if kinds[0][0] == "NEGATE":
        taken = kinds[1:]
        return next(each for each in CANDIDATES if not any(_covers(kind, arg, each) for kind, arg in taken))
    kind, argument = kinds[0]
    if kind == "RANGE":
        return chr(argument[0])
    return CATEGORIES[str(argument)] if kind == "CATEGORY" else chr(argument)


def _covers(kind: str, argument: Any, character: str) -> bool:
    if kind == "RANGE":
        return bool(argument[0] <= ord(character) <= argument[1])
    if kind == "CATEGORY":
        classes = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
        name = str(argument).removeprefix("CATEGORY_")
        inside = re.match(classes[name.removeprefix("NOT_")], character) is not None
        return inside != name.startswith("NOT_")
    return bool(ord(character) == argument)
