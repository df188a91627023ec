"""One record of a source becomes a document, or a row that says what is wrong with it and what was done."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson
import pendulum
from pendulum.parsing.exceptions import ParserError

from include.contracts import JSON
from include.corpora.config import Fields

MAX_ID_BYTES = 1024  # PostgreSQL's index entries end at 2.7 kB, and stores have their own limits
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reason(StrEnum):
    """What is wrong with a record or file."""

    BLANK_LINE = "blank_line"
    BLANK_TEXT = "blank_text"
    UNDECODABLE = "undecodable"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_ID = "missing_id"
    MISSING_TEXT = "missing_text"
    WRONG_TYPE = "wrong_type"
    BAD_ID = "bad_id"
    BAD_DATE = "bad_date"
    DUPLICATE_ID = "duplicate_id"
    NULL_BYTES = "null_bytes"
    LONE_SURROGATES = "lone_surrogates"
    TOO_LONG = "too_long"
    EMPTY_FILE = "empty_file"
    VANISHED_FILE = "vanished_file"
    UNREADABLE_FILE = "unreadable_file"


@dataclass(frozen=True, slots=True)
class Document:
    """One document as its source has it. `line` is 1-based, None where the file is the document."""

    id: str
    text: str
    partition: str
    file: str
    line: int | None = None
    title: str | None = None
    url: str | None = None
    updated_at: datetime | None = None
    metadata: dict[str, JSON] = field(default_factory=dict)
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class BadInput:
    """One row of `bad_input.jsonl`. `kept` says whether the document went on, mended."""

    file: str
    line: int | None
    partition: str
    reason: Reason
    detail: str
    done: str
    document_id: str | None = None
    kept: bool = False

    def as_dict(self) -> dict[str, JSON]:
        """JSON-ready, file and line first."""
        return {
            "file": self.file,
            "line": self.line,
            "document_id": self.document_id,
            "partition": self.partition,
            "reason": self.reason.value,
            "detail": self.detail,
            "done": self.done,
        }


class Refused(Exception):
    """A record that can't be used; carries what is known of it."""

    def __init__(self, reason: Reason, detail: str, document_id: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.document_id = document_id


@dataclass(frozen=True, slots=True)
class Mend:
    """Something in a record that was put right."""

    reason: Reason
    detail: str
    done: str


def parse_line(line: bytes) -> dict[str, Any]:
    """A JSONL line as an object. Raises Refused."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        record = _second_look(line, error)
    if not isinstance(record, dict):
        raise Refused(Reason.NOT_AN_OBJECT, f"a {_kind(record)}, not an object")
    return record


def _second_look(line: bytes, error: orjson.JSONDecodeError) -> Any:
    """Tell apart why orjson refused: bytes, JSON, or an escape of half a character, which json reads."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as undecodable:
        raise Refused(Reason.UNDECODABLE, f"byte {undecodable.start} of the line isn't UTF-8") from None
    try:
        record = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused(Reason.NOT_JSON, f"not JSON: {error}") from None
    if not _SURROGATE.search(json.dumps(record, ensure_ascii=False)):
        raise Refused(Reason.NOT_JSON, f"not JSON: {error}")
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} isn't JSON")


def document_of(
    record: dict[str, Any],
    fields: Fields,
    metadata: Sequence[str],
    *,
    partition: str,
    file: str,
    line: int | None,
) -> tuple[Document, list[Mend]]:
    """The document a record describes, and what had to be mended. Raises Refused."""
    document_id = _id(record.get(fields.id), fields.id)
    mends: dict[Reason, Mend] = {}

    def text_field(name: str | None) -> str | None:
        value = record.get(name) if name is not None else None
        if value is None:
            return None
        if not isinstance(value, str):
            raise Refused(Reason.WRONG_TYPE, f"{name} is a {_kind(value)}, not text", document_id)
        return _clean(value, str(name), mends)

    deleted = False
    if fields.deleted is not None and record.get(fields.deleted) is not None:
        deleted = record[fields.deleted]
        if not isinstance(deleted, bool):
            raise Refused(
                Reason.WRONG_TYPE, f"{fields.deleted} is a {_kind(deleted)}, not true or false", document_id
            )
    text = text_field(fields.text)
    if text is None and not deleted:
        raise Refused(Reason.MISSING_TEXT, f"there is no {fields.text}", document_id)
    if not deleted and not (text or "").strip():
        raise Refused(Reason.BLANK_TEXT, f"{fields.text} is blank", document_id)
    document = Document(
        id=document_id,
        text=text or "",
        partition=partition,
        file=file,
        line=line,
        title=text_field(fields.title),
        url=text_field(fields.url),
        updated_at=_date(record.get(fields.updated_at), fields.updated_at, document_id)
        if fields.updated_at is not None
        else None,
        metadata={
            name: _clean_value(record[name], name, mends) for name in metadata if record.get(name) is not None
        },
        deleted=deleted,
    )
    return document, list(mends.values())


def _id(value: Any, name: str) -> str:
    if value is None or value == "":
        raise Refused(Reason.MISSING_ID, f"there is no {name}")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise Refused(Reason.WRONG_TYPE, f"{name} is a {_kind(value)}, not text or a whole number")
    # An id is never mended: two ids could become one.
    if not value.strip() or "\x00" in value or _SURROGATE.search(value):
        raise Refused(Reason.BAD_ID, f"{name} {value[:80]!r} is blank or has characters no store takes")
    if len(value.encode()) > MAX_ID_BYTES:
        raise Refused(Reason.BAD_ID, f"{name} {value[:40]!r}… is longer than {MAX_ID_BYTES} bytes")
    return value


def _clean(value: str, name: str, mends: dict[Reason, Mend]) -> str:
    """Without what neither PostgreSQL, nor UTF-8, nor a provider takes."""
    if "\x00" in value:
        detail = f"{value.count(chr(0))} null bytes in {name}"
        mends.setdefault(
            Reason.NULL_BYTES, Mend(Reason.NULL_BYTES, detail, "removed them; kept the document")
        )
        value = value.replace("\x00", "")
    if not value.isascii() and (count := len(_SURROGATE.findall(value))):
        mends.setdefault(
            Reason.LONE_SURROGATES,
            Mend(
                Reason.LONE_SURROGATES,
                f"{count} halves of characters in {name}",
                "put U+FFFD in their place; kept the document",
            ),
        )
        value = _SURROGATE.sub("\ufffd", value)
    return value


def _clean_value(value: Any, name: str, mends: dict[Reason, Mend]) -> JSON:
    if isinstance(value, str):
        return _clean(value, name, mends)
    if isinstance(value, list):
        return [_clean_value(entry, name, mends) for entry in value]
    if isinstance(value, dict):
        return {_clean(key, name, mends): _clean_value(entry, name, mends) for key, entry in value.items()}
    plain: JSON = value
    return plain


def _date(value: Any, name: str, document_id: str) -> datetime | None:
    """A time from ISO 8601 text, or seconds since 1970; without a zone it's UTC."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return pendulum.from_timestamp(value)
        if isinstance(value, str):
            parsed = pendulum.parse(value)
            if isinstance(parsed, pendulum.DateTime):
                return parsed
    except (ParserError, ValueError, OverflowError, OSError):
        pass
    else:
        if not isinstance(value, str):
            raise Refused(Reason.WRONG_TYPE, f"{name} is a {_kind(value)}, not a time", document_id)
    raise Refused(Reason.BAD_DATE, f"{name} {str(value)[:40]!r} is no ISO 8601 time", document_id)


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    return names.get(type(value), "null")
