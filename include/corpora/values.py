"""Values of a record, whatever kind of source they come from, as JSON of the type that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pendulum
from pendulum.parsing.exceptions import ParserError

from include.contracts import JSON

MOST_LEVELS = 32
"""How deep lists and objects may nest in metadata; JSON writers and stores give up at some depth."""

_KINDS: tuple[tuple[type[Any], str], ...] = (
    (bool, "boolean"),
    (int, "number"),
    (float, "number"),
    (Decimal, "number"),
    (str, "string"),
    (list, "list"),
    (tuple, "list"),
    (dict, "object"),
    (datetime, "time"),
    (date, "date"),
    (bytes, "binary"),
)


class WrongType(Exception):
    """A value isn't of the type asked for; the message says what it is and what it must be."""


class NoTime(Exception):
    """A value isn't a time that can be read."""


def kind_of(value: Any) -> str:
    """What a value is, in the words of a person who reads JSON."""
    if value is None:
        return "null"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: null, and not-a-number, as data frames write it."""
    if isinstance(value, Decimal):
        return value.is_nan()
    return value is None or (isinstance(value, float) and value != value)


def plain(value: Any, level: int = 0) -> JSON:
    """A value of a database or a Parquet file as JSON. Raises WrongType for what has no such form.

    A whole number beyond 64 bits becomes the nearest float, as it does where JSON is read.
    """
    if level > MOST_LEVELS:
        raise WrongType(f"nests deeper than {MOST_LEVELS} levels")
    if is_missing(value):
        return None
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int | float | Decimal):
        return _plain_number(value)
    if isinstance(value, list | tuple):
        return [plain(entry, level + 1) for entry in value]
    if isinstance(value, dict):
        return {str(key): plain(entry, level + 1) for key, entry in value.items()}
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise WrongType(f"is a {kind_of(value)}, which JSON has no form for")


def _plain_number(value: int | float | Decimal) -> int | float:
    try:
        if isinstance(value, int) or (isinstance(value, Decimal) and value == value.to_integral_value()):
            whole = int(value)
            return whole if -(2**63) <= whole < 2**64 else float(whole)
        number = float(value)
    except (OverflowError, ArithmeticError):
        number = math.inf
    if not math.isfinite(number):
        raise WrongType(f"is {str(value)[:40]}, which JSON has no form for")
    return number


def time_of(value: Any) -> datetime | None:
    """A time from ISO 8601 text, a date, or seconds since 1970; without a zone it's UTC.

    Raises WrongType for a value of another kind, NoTime for text or a number that is no time.
    """
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else pendulum.instance(value, tz="UTC")
    if isinstance(value, date):
        return pendulum.datetime(value.year, value.month, value.day)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise WrongType(f"is a {kind_of(value)}, not a time")
    try:
        if not isinstance(value, str):
            return pendulum.from_timestamp(float(value))
        # `now`, and the time of a day without its date, would be read as today's.
        parsed = pendulum.parse(value, exact=True) if value != "now" else None
    except (ParserError, ValueError, OverflowError, OSError):
        parsed = None
    if isinstance(parsed, pendulum.DateTime):
        return parsed
    if isinstance(parsed, pendulum.Date):
        return pendulum.datetime(parsed.year, parsed.month, parsed.day)
    raise NoTime(f"{str(value)[:40]!r} is no ISO 8601 time")


def typed(value: Any, wanted: str, *, as_text: bool) -> JSON:
    """A value as `wanted`, a key of `TYPES`; `as_text` where the source knows nothing but text.

    Raises WrongType where it's of another type.
    """
    try:
        return TYPES[wanted](value, as_text)
    except (NoTime, ValueError, ArithmeticError):
        raise WrongType(f"{str(value)[:40]!r} is no {wanted}") from None


def _string(value: Any, as_text: bool) -> JSON:
    if not isinstance(value, str | UUID):
        raise WrongType(f"is a {kind_of(value)}, not text")
    return str(value)


def _integer(value: Any, as_text: bool) -> JSON:
    if isinstance(value, str) and as_text:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != int(value):
        raise WrongType(f"is {_shown(value)}, not a whole number")
    if not -(2**63) <= value < 2**63:
        raise WrongType(f"is {str(value)[:40]}, a whole number beyond 64 bits")
    return int(value)


def _number(value: Any, as_text: bool) -> JSON:
    if isinstance(value, str) and as_text:
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise WrongType(f"is a {kind_of(value)}, not a number")
    return _plain_number(value)


def _boolean(value: Any, as_text: bool) -> JSON:
    if isinstance(value, str) and as_text and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise WrongType(f"is a {kind_of(value)}, not true or false")
    return value


def _date(value: Any, as_text: bool) -> JSON:
    moment = time_of(value)
    return moment.date().isoformat() if moment is not None else None


def _time(value: Any, as_text: bool) -> JSON:
    moment = time_of(value)
    return pendulum.instance(moment).in_timezone("UTC").isoformat() if moment is not None else None


def _strings(value: Any, as_text: bool) -> JSON:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise WrongType(f"is a {kind_of(value)}, not a list of text")
    return list(value)


def _shown(value: Any) -> str:
    return f"{value!r}" if isinstance(value, int | float | Decimal) else f"a {kind_of(value)}"


TYPES: dict[str, Callable[[Any, bool], JSON]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
    "time": _time,
    "strings": _strings,
}
"""What a metadata field may be. A `date` is kept as YYYY-MM-DD, a `time` as ISO 8601 in UTC."""
