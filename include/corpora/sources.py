"""Documents of a source, streamed, partition by partition where they lie in files of their own.

Files are read newest partition first, so that where a document stands in several, its newest
version is met first. Records whose own field names their partition come in any order. Nothing
here raises for one bad record or file: it becomes a `BadInput`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from include.corpora.files import DAMAGED, Files, Foreign, SourceFile
from include.corpora.loaders import read_loader
from include.corpora.records import (
    LOST,
    SKIPPED,
    BadInput,
    Document,
    Fault,
    Found,
    Reason,
    Refused,
    document_of,
    partition_of,
)
from include.corpora.source_config import FILES, WHOLE, SourceConfig
from include.corpora.sql import Connect, read_sql
from include.corpora.tables import read_csv, read_jsonl, read_parquet
from include.corpora.texts import is_text, read_text
from include.errors import StorageError


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """A partition was read to its end. `whole`: each record in it is known by its id, so that what
    is missing from a snapshot is really gone."""

    partition: str
    whole: bool


Event = Document | BadInput | PartitionEnd


class Source:
    """One corpus's source; its files are those that were there when this was made.

    `sql` opens a connection by its name, for a source that is a query. Raises StorageError where the
    URL can't be listed.
    """

    def __init__(self, config: SourceConfig, sql: Connect | None = None) -> None:
        self.config = config
        self._sql = sql
        self._files = (
            Files(config, is_text if config.kind == "folder" else None) if config.kind in FILES else None
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read: files that match, where it reads files."""
        return self._files is not None and not self._files.by_partition

    def read(self, partitions: Sequence[str] | None = None) -> Iterator[Event]:
        """Every document and bad record of these partitions (None: of all), each closed by its end.

        Where paths name the partitions, only files of those asked for are opened. Where records do,
        all are read, but for what a query or a Parquet file's statistics leave out.
        """
        if self.config.fields.partition is None and self._files is not None:
            return self._by_path(self._files.by_partition, partitions)
        return self._by_record(partitions)

    def _by_path(
        self, files: dict[str, list[SourceFile]], partitions: Sequence[str] | None
    ) -> Iterator[Event]:
        wanted = files if partitions is None else set(partitions) & set(files)
        for partition in sorted(wanted, reverse=True):
            whole = True
            for file in files[partition]:
                for event in self._file(file, partition, None):
                    if isinstance(event, BadInput) and is_unknown(event):
                        whole = False
                    yield event
            yield PartitionEnd(partition, whole)

    def _by_record(self, partitions: Sequence[str] | None) -> Iterator[Event]:
        """A partition asked for that has no record is empty, and as whole as the others."""
        whole = True
        seen = {} if partitions is None else dict.fromkeys(partitions)
        for event in self._streams(partitions):
            if isinstance(event, Document):
                seen[event.partition] = None
            elif is_unknown(event):
                whole = False
            yield event
        for partition in sorted(seen, reverse=True):
            yield PartitionEnd(partition, whole)

    def _streams(self, partitions: Sequence[str] | None) -> Iterator[Document | BadInput]:
        if self._files is not None:
            for files in self._files.by_partition.values():
                for file in files:
                    yield from self._file(file, None, partitions)
        elif self.config.kind == "sql":
            name = f"sql:{self.config.connection}"
            yield from self._documents(read_sql(self.config, self._sql, partitions), name, None, partitions)
        else:
            found = read_loader(self.config, partitions)
            yield from self._documents(found, self.config.kind, None, partitions)

    def _file(
        self, file: SourceFile, partition: str | None, partitions: Sequence[str] | None
    ) -> Iterator[Document | BadInput]:
        """One file's events; what is wrong with the file as a whole is one more of them."""
        line: int | None = None
        fault: Fault
        try:
            for event in self._documents(self._records(file, partitions), file.url, partition, partitions):
                line = event.line or line
                yield event
            return
        except FileNotFoundError:
            fault = Fault(None, Reason.VANISHED_FILE, "it was listed and is gone", LOST)
        except (PermissionError, Foreign) as error:
            fault = Fault(None, Reason.UNREADABLE_FILE, str(error), LOST)
        except (OSError, *DAMAGED) as error:
            if getattr(error, "errno", None) is not None:
                raise StorageError(f"reading {file.url} failed: {error}; try again") from error
            detail = f"damaged {f'after line {line}' if line else 'from its start'}: {error}"
            fault = Fault(line, Reason.UNREADABLE_FILE, detail, f"the rest was {LOST}")
        yield BadInput(file.url, fault.line, partition or WHOLE, *fault[1:])

    def _records(self, file: SourceFile, partitions: Sequence[str] | None) -> Iterator[Found | Fault]:
        assert self._files is not None
        match self.config.kind:
            case "jsonl":
                return read_jsonl(self._files, file, self.config)
            case "csv":
                return read_csv(self._files, file, self.config)
            case "parquet":
                return read_parquet(self._files, file, self.config, partitions)
            case _:
                return read_text(self._files, file, self.config)

    def _documents(
        self,
        records: Iterator[Found | Fault],
        file: str,
        partition: str | None,
        partitions: Sequence[str] | None,
    ) -> Iterator[Document | BadInput]:
        """Each record as a document of `partition`, or of its own where that is None."""
        config, as_text = self.config, self.config.kind == "csv"
        field = config.fields.partition
        wanted = None if partitions is None else frozenset(partitions)
        for event in records:
            if isinstance(event, Fault):
                yield BadInput(file, event.line, partition or WHOLE, *event[1:])
                continue
            line, record = event
            where = partition or WHOLE
            try:
                if partition is None:
                    where = partition_of(record, field) if field is not None else WHOLE
                    if wanted is not None and where not in wanted:
                        continue
                document, mends = document_of(
                    record, config, partition=where, file=file, line=line, as_text=as_text
                )
            except Refused as refused:
                done = LOST if refused.document_id is None else SKIPPED
                yield BadInput(file, line, where, refused.reason, refused.detail, done, refused.document_id)
                continue
            for mend in mends:
                yield BadInput(file, line, where, mend.reason, mend.detail, mend.done, document.id, kept=True)
            yield document


def is_unknown(bad: BadInput) -> bool:
    """Whether a document may hide behind this row without our knowing its id."""
    return bad.document_id is None and bad.reason is not Reason.BLANK_LINE
