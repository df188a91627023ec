"""Records of JSONL, CSV and Parquet files, streamed; what is no record is a named fault."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from include.corpora.files import Files, Lines, LongLine, SourceFile, refuse_foreign
from include.corpora.records import LOST, Fault, Found, Reason, Refused, parse_line
from include.corpora.source_config import CsvConfig, SourceConfig

# Few, because a row may hold a text of megabytes.
_PARQUET_ROWS = 256
_PARQUET_BUFFER = 1 << 20


def read_jsonl(files: Files, file: SourceFile, config: SourceConfig) -> Iterator[Found | Fault]:
    """An object a line."""
    blank = True
    with files.open(file) as handle:
        refuse_foreign(handle)
        lines = Lines(handle, config.max_document_bytes)
        while True:
            try:
                line = next(lines)
            except StopIteration:
                break
            except LongLine as long:
                blank = False
                yield _too_long(long, config)
                continue
            if not line.strip():
                yield _blank(lines.number)
                continue
            blank = False
            try:
                record = parse_line(line)
            except Refused as refused:
                yield Fault(lines.number, refused.reason, refused.detail, LOST)
            else:
                yield Found(lines.number, record)
    if blank:
        yield _empty()


class _Text:
    """Lines as text for the csv module: bytes that aren't in the encoding become lone surrogates."""

    def __init__(self, lines: Lines, encoding: str) -> None:
        self._lines = lines
        self._encoding = encoding

    def __iter__(self) -> _Text:
        return self

    def __next__(self) -> str:
        return next(self._lines).decode(self._encoding, "surrogateescape")


def read_csv(files: Files, file: SourceFile, config: SourceConfig) -> Iterator[Found | Fault]:
    """A record a row, named by the first row; empty cells are left out.

    By the csv module and not Arrow's reader, which stops at the first byte that isn't UTF-8 and at a
    row longer than its block, and doesn't say on which line.
    """
    limit = config.max_document_bytes
    # The setting is the whole process's: never lowered, so that nobody else's reading breaks.
    csv.field_size_limit(max(csv.field_size_limit(), limit))
    blank = True
    with files.open(file) as handle:
        refuse_foreign(handle)
        lines = Lines(handle, limit)
        rows = _csv_rows(_Text(lines, config.csv.encoding), config.csv)
        names: list[str] | None = None
        while True:
            start = lines.number + 1
            try:
                row = next(rows)
            except StopIteration:
                break
            except LongLine as long:
                blank = False
                yield _too_long(long, config)
                continue
            except csv.Error as error:
                blank = False
                detail = f"a row that can't be read, to line {lines.number}: {error}"
                yield Fault(start, Reason.NOT_A_ROW, detail, LOST)
                continue
            if not any(row):
                yield _blank(start)
            elif names is None:
                blank = False
                names = [name.strip() for name in row]
                if unfit := _unfit(names, config):
                    yield unfit
                    return
            else:
                yield _csv_record(start, names, row, config.csv.encoding)
    if blank:
        yield _empty()


def _csv_rows(text: _Text, config: CsvConfig) -> Iterator[list[str]]:
    return csv.reader(text, delimiter=config.delimiter, quotechar=config.quote, strict=True)


def _csv_record(line: int, names: list[str], row: list[str], encoding: str) -> Found | Fault:
    if len(row) != len(names):
        return Fault(line, Reason.NOT_A_ROW, f"{len(row)} cells for {len(names)} columns", LOST)
    record = {name: cell for name, cell in zip(names, row, strict=True) if cell}
    for name, cell in record.items():
        if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
            return Fault(line, Reason.UNDECODABLE, f"{name} has bytes that aren't {encoding}", LOST)
    return Found(line, record)


def read_parquet(
    files: Files, file: SourceFile, config: SourceConfig, days: Sequence[str] | None
) -> Iterator[Found | Fault]:
    """A record a row, only the columns that are mapped; `line` is the row's number.

    Row groups whose statistics say that none of `days` (partitions by a date column) is in them are
    passed over.
    """
    with files.seekable(file) as handle:
        if not handle.read(1):
            yield _empty()
            return
        handle.seek(0)
        # Without pre-buffering, pages are read as they are needed, not whole row groups.
        with pq.ParquetFile(handle, pre_buffer=False, buffer_size=_PARQUET_BUFFER) as table:
            there = table.schema_arrow.names
            if unfit := _unfit(there, config):
                yield unfit
                return
            columns = [name for name in there if name in set(_mapped(config))]
            row = 0
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if days is not None and not _may_hold(table, group, config, days):
                    row += rows
                    continue
                for batch in table.iter_batches(_PARQUET_ROWS, row_groups=[group], columns=columns):
                    for record in _rows(batch):
                        row += 1
                        yield Found(row, record) if isinstance(record, dict) else record._replace(line=row)


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Fault]:
    """A batch's rows; a value that Python has no form for spoils its own row only."""
    batch = _in_microseconds(batch)
    try:
        rows = batch.to_pylist()
    # Text that isn't UTF-8, nanoseconds, the year 10000: each has an exception of its own.
    except (ValueError, ArithmeticError, TypeError, pa.ArrowException):
        for row in range(batch.num_rows):
            yield _row(batch.slice(row, 1))
    else:
        yield from rows


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as fine as Python's: data frames write nanoseconds, which it has no form for."""
    for place, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            times = batch.column(place).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(place, field.name, times)
    return batch


def _row(row: pa.RecordBatch) -> dict[str, Any] | Fault:
    record: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            record[name] = column[0].as_py()
        except UnicodeDecodeError as error:
            detail = f"{name} has a text whose byte {error.start} isn't UTF-8"
            return Fault(None, Reason.UNDECODABLE, detail, LOST)
        except (ValueError, ArithmeticError, TypeError, pa.ArrowException) as error:
            return Fault(None, Reason.WRONG_TYPE, f"{name} can't be read: {error}", LOST)
    return record


def _may_hold(table: pq.ParquetFile, group: int, config: SourceConfig, days: Sequence[str]) -> bool:
    """Whether a row group may have a row of these days, by the least and greatest time in it."""
    columns = table.metadata.row_group(group)
    for index in range(columns.num_columns):
        column = columns.column(index)
        if column.path_in_schema != config.fields.partition:
            continue
        found = column.statistics
        if found is None or not found.has_min_max or found.null_count != 0:
            return True
        least, greatest = found.min, found.max
        if not isinstance(least, datetime | date) or not isinstance(greatest, datetime | date):
            return True
        return any(least.isoformat()[:10] <= day <= greatest.isoformat()[:10] for day in days)
    return True


def _mapped(config: SourceConfig) -> list[str]:
    return [*(name for name in config.fields.model_dump().values() if name is not None), *config.metadata]


def _unfit(names: Sequence[str], config: SourceConfig) -> Fault | None:
    """A file that lacks a column that every record needs, or has one twice, is one fault, not one a row."""
    fields = config.fields
    needed = (fields.id, fields.text, fields.tenant, fields.partition)
    missing = [name for name in needed if name is not None and name not in names]
    twice = [name for name in dict.fromkeys(_mapped(config)) if names.count(name) > 1]
    if not missing and not twice:
        return None
    said = f"there is no column {', '.join(missing)}" if missing else f"{', '.join(twice)} is there twice"
    return Fault(None, Reason.MISSING_COLUMN, f"{said}; there are {', '.join(names[:20])}", LOST)


def _too_long(long: LongLine, config: SourceConfig) -> Fault:
    detail = f"a line of {long.size:,} bytes; source.max_document_bytes is {config.max_document_bytes:,}"
    return Fault(long.number, Reason.TOO_LONG, detail, LOST)


def _blank(line: int) -> Fault:
    return Fault(line, Reason.BLANK_LINE, "nothing on it", "skipped")


def _empty() -> Fault:
    return Fault(None, Reason.EMPTY_FILE, "no bytes in it", LOST)
