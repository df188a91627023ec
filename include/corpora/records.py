"""One record of a source becomes a document, or a row that says what is wrong with it and what was done."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

import orjson
import pendulum

from include.contracts import JSON
from include.corpora.source_config import WHOLE, Fields, SourceConfig
from include.corpora.values import NoTime, WrongType, is_missing, kind_of, plain, time_of, typed

MAX_ID_BYTES = 1024  # PostgreSQL's index entries end at 2.7 kB, and stores have their own limits
_SURROGATE = re.compile("[\ud800-\udfff]")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?!\d)")
SKIPPED = "skipped; a version indexed earlier stays"
LOST = "skipped; nothing of this partition is deleted in this run"


class Reason(StrEnum):
    """What is wrong with a record or file."""

    BLANK_LINE = "blank_line"
    BLANK_TEXT = "blank_text"
    UNDECODABLE = "undecodable"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    NOT_A_ROW = "not_a_row"
    MISSING_COLUMN = "missing_column"
    MISSING_ID = "missing_id"
    MISSING_TEXT = "missing_text"
    MISSING_TENANT = "missing_tenant"
    WRONG_TYPE = "wrong_type"
    BAD_ID = "bad_id"
    BAD_DATE = "bad_date"
    DUPLICATE_ID = "duplicate_id"
    NULL_BYTES = "null_bytes"
    LONE_SURROGATES = "lone_surrogates"
    TOO_LONG = "too_long"
    PRESEND_FAILED = "presend_failed"
    EMPTY_FILE = "empty_file"
    VANISHED_FILE = "vanished_file"
    UNREADABLE_FILE = "unreadable_file"


class Found(NamedTuple):
    """A record as a reader finds it. `line` is the line, row or record number, 1-based, or None."""

    line: int | None
    record: dict[str, Any]


class Fault(NamedTuple):
    """What a reader finds that is no record; a `BadInput` but for the file and partition."""

    line: int | None
    reason: Reason
    detail: str
    done: str
    document_id: str | None = None
    kept: bool = False


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
        """JSON-ready, file and line first; also of a file whose name is no text."""
        told: dict[str, JSON] = {
            "file": self.file,
            "line": self.line,
            "document_id": self.document_id,
            "partition": self.partition,
            "reason": self.reason.value,
            "detail": self.detail,
            "done": self.done,
        }
        return {
            name: _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value
            for name, value in told.items()
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
        raise Refused(Reason.NOT_AN_OBJECT, f"a {kind_of(record)}, not an object")
    return record


def _second_look(line: bytes, error: orjson.JSONDecodeError) -> Any:
    """Tell apart why orjson refused: bytes, JSON, or an escape of half a character, which json reads."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as undecodable:
        raise Refused(Reason.UNDECODABLE, f"byte {undecodable.start} of the line isn't UTF-8") from None
    try:
        record = json.loads(text, parse_constant=_no_constant)
        halves = _SURROGATE.search(json.dumps(record, ensure_ascii=False))
    except (ValueError, RecursionError):
        raise Refused(Reason.NOT_JSON, f"not JSON: {error}") from None
    if not halves:
        raise Refused(Reason.NOT_JSON, f"not JSON: {error}")
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} isn't JSON")


def partition_of(record: dict[str, Any], field: str) -> str:
    """The partition that a record's field names: the day of a time (UTC), else its text as it is.

    Raises Refused.
    """
    value = record.get(field)
    if value is None or value == "":
        return WHOLE
    try:
        if isinstance(value, str):
            # Text that begins like a date and isn't one is a name like any other.
            name = _day(time_of(value)) if _DAY.match(value) and len(value) > 10 else value
        elif isinstance(value, int) and not isinstance(value, bool):
            name = str(value)
        else:
            name = _day(time_of(value))
    except NoTime:
        name = str(value)
    except WrongType as error:
        raise Refused(Reason.WRONG_TYPE, f"{field} {error}") from None
    return partition_name(name)


def partition_name(value: str) -> str:
    """A partition is also a folder's name in storage."""
    name = quote(value or WHOLE, safe=" =+@,", errors="replace")
    return name if name.strip(".") else name.replace(".", "%2E")


def document_of(
    record: dict[str, Any],
    source: SourceConfig,
    *,
    partition: str,
    file: str,
    line: int | None,
    as_text: bool = False,
) -> tuple[Document, list[Mend]]:
    """The document a record describes, and what had to be mended. Raises Refused.

    `as_text` where the source knows nothing but text (CSV), so that "7" is a number too.
    """
    fields = source.fields
    document_id = _id(record.get(fields.id), fields.id)
    mends: dict[Reason, Mend] = {}

    def text_field(name: str | None) -> str | None:
        value = record.get(name) if name is not None else None
        if value is None:
            return None
        if not isinstance(value, str):
            raise Refused(Reason.WRONG_TYPE, f"{name} is a {kind_of(value)}, not text", document_id)
        return _clean(value, str(name), mends)

    text = text_field(fields.text)
    deleted = _deleted(record, fields, document_id, as_text)
    if text is None and not deleted:
        raise Refused(Reason.MISSING_TEXT, f"there is no {fields.text}", document_id)
    if not deleted and not (text or "").strip():
        raise Refused(Reason.BLANK_TEXT, f"{fields.text} is blank", document_id)
    limit = source.max_document_bytes
    if text is not None and len(text) * 4 > limit and (size := len(text.encode())) > limit:
        detail = f"{fields.text} has {size:,} bytes; source.max_document_bytes is {limit:,}"
        raise Refused(Reason.TOO_LONG, detail, document_id)
    document = Document(
        id=document_id,
        text=text or "",
        partition=partition,
        file=file,
        line=line,
        title=text_field(fields.title),
        url=text_field(fields.url),
        updated_at=_updated_at(record, fields, document_id),
        metadata=_metadata(record, source, document_id, mends, as_text=as_text),
        deleted=deleted,
    )
    return document, list(mends.values())


def _deleted(record: dict[str, Any], fields: Fields, document_id: str, as_text: bool) -> bool:
    value = record.get(fields.deleted) if fields.deleted is not None else None
    if value is None:
        return False
    try:
        return bool(typed(value, "boolean", as_text=as_text))
    except WrongType as error:
        raise Refused(Reason.WRONG_TYPE, f"{fields.deleted} {error}", document_id) from None


def _updated_at(record: dict[str, Any], fields: Fields, document_id: str) -> datetime | None:
    """The time of the last change; where a record tells none, its partition's, if that is a time."""
    name = fields.updated_at
    try:
        if name is not None and (moment := time_of(record.get(name))) is not None:
            return moment
    except WrongType as error:
        raise Refused(Reason.WRONG_TYPE, f"{name} {error}", document_id) from None
    except NoTime as error:
        raise Refused(Reason.BAD_DATE, f"{name} {error}", document_id) from None
    dated = record.get(fields.partition) if fields.partition is not None else None
    if isinstance(dated, int | float) or (isinstance(dated, str) and not _DAY.match(dated)):
        return None
    try:
        return time_of(dated)
    except (WrongType, NoTime):
        return None


def _metadata(
    record: dict[str, Any],
    source: SourceConfig,
    document_id: str,
    mends: dict[Reason, Mend],
    *,
    as_text: bool,
) -> dict[str, JSON]:
    found: dict[str, JSON] = {}
    types = source.metadata if isinstance(source.metadata, dict) else {}
    for name in source.metadata:
        value = record.get(name)
        if is_missing(value):
            continue
        try:
            value = typed(value, types[name], as_text=as_text) if name in types else plain(value)
        except WrongType as error:
            raise Refused(Reason.WRONG_TYPE, f"{name} {error}", document_id) from None
        found[name] = _clean_value(value, name, mends)
    tenant = source.fields.tenant
    if tenant is not None:
        value = record.get(tenant)
        if value is None or value == "":
            raise Refused(Reason.MISSING_TENANT, f"there is no {tenant}", document_id)
        if isinstance(value, bool) or not isinstance(value, str | int | UUID):
            detail = f"{tenant} is a {kind_of(value)}, not text or a whole number"
            raise Refused(Reason.WRONG_TYPE, detail, document_id)
        found["tenant"] = _clean(str(value), tenant, mends)
    return found


def _id(value: Any, name: str) -> str:
    if value is None or value == "":
        raise Refused(Reason.MISSING_ID, f"there is no {name}")
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise Refused(Reason.WRONG_TYPE, f"{name} is a {kind_of(value)}, not text or a whole number")
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


def _day(moment: datetime | None) -> str:
    if moment is None:
        return WHOLE
    try:
        return pendulum.instance(moment).in_timezone("UTC").to_date_string()
    except (ValueError, OverflowError):
        raise NoTime(f"{moment} is no day in UTC") from None
