"""Prepare a run: read the source once, and write its rows, chunk parts and document table.

Streams: a batch of documents is read, compared with the table, chunked, keyed and written before
the next one. The rows hold all chunks of every document in view, not only of changed ones, so no
work hangs on what an earlier run, or a killed try of this one, did with its own. Order of writes:
files first, then the document table in one transaction; a kill at any point loses nothing, and
preparing the same run again writes the same files and reports the same.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from include.contracts import Limits, RunRef
from include.corpora.chunking import Chunker
from include.corpora.columns import ChunkRows, content_hash, metadata_of, version_of
from include.corpora.config import CorpusConfig
from include.corpora.documents import Change, Judgement, Taken, View, replaces, viewing
from include.corpora.inputs import Inputs, TooLong
from include.corpora.parts import StoredChunks, by_partition
from include.corpora.presend import PresendFailed
from include.corpora.records import SKIPPED, BadInput, Document, Reason
from include.corpora.rows import BadInputLog, DeletedRows, RangeRows, range_of
from include.corpora.sources import Event, PartitionEnd, Source
from include.corpora.sql import Connect
from include.errors import StorageError, TooMuchBadInput
from include.ledger.connect import Connection
from include.storage import Storage

log = logging.getLogger(__name__)

_BATCH_DOCUMENTS = 1_000
_BATCH_CHARACTERS = 4_000_000
_LOG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What a run found in its source.

    `read` counts usable documents: new + changed + moved + metadata + unchanged + stale + those of
    `deleted` that a source of changes told. `bad` counts records and files left out, `mended` those
    kept with a correction; `bad_input` has both by reason. `partitions` says of each whether it was
    read whole; `partial` is a limited or sampled run, which deletes nothing. `tokens` are those of
    all `chunks`, see `tokens.estimate`.
    """

    read: int = 0
    new: int = 0
    changed: int = 0
    moved: int = 0
    metadata: int = 0
    unchanged: int = 0
    deleted: int = 0
    stale: int = 0
    bad: int = 0
    mended: int = 0
    chunks: int = 0
    tokens: int = 0
    partial: bool = False
    partitions: dict[str, bool] = field(default_factory=dict)
    bad_input: dict[str, int] = field(default_factory=dict)


def prepare(
    connection: Connection,
    storage: Storage,
    config: CorpusConfig,
    *,
    run: RunRef,
    space_id: str,
    partitions: list[str] | None = None,
    sample: int | None = None,
    limit: int | None = None,
    ranges: int = 16,
    limits: Limits | None = None,
    sql: Connect | None = None,
    dry_run: bool = False,
) -> PrepareReport:
    """Write `rows/range-NN.parquet`, `rows/deleted.parquet` and `bad_input.jsonl` of a run, the chunk
    parts of what changed, and the document table.

    `config` is resolved. `sql` opens the connection of a source that is a query. `partitions` None
    means all. `limit` stops after so many documents; `sample` takes so many, spread over the corpus
    by the hash of their ids, always the same ones, and holds them in memory. `limits` are
    those of the model, None where they aren't known. A `dry_run` counts the same and leaves
    the document table as it was. Raises StorageError where the source has no files, TooMuchBadInput
    where more of it is unusable than the corpus allows, ConfigError where its chunks can't be sent.
    """
    sending = Inputs(config, limits)
    source = Source(config.source, sql)
    if partitions is None and source.is_empty:
        raise StorageError(f"source.url {config.source.url} matches no file; check it and its glob")
    events = source.read(partitions)
    if sample is not None:
        events = _sampled(events, sample)
    if limit is not None:
        events = _limited(events, limit)
    changes = config.source.mode == "changes"
    with viewing(connection, config.corpus, run.run, config.chunking.fingerprint, changes=changes) as view:
        work = _Preparation(storage, config, run, space_id, ranges, sending, view)
        work.partial = sample is not None or limit is not None
        work.read(events)
        if partitions is None:
            work.close_emptied()
        with DeletedRows(storage, run, ranges) as gone:
            work.changes[Change.DELETED] = view.merge(gone.write, keep=not dry_run)
    report = work.report()
    log.info("prepared %s: %s", run.run, report)
    return report


class _Preparation:
    """One pass over a source's events."""

    def __init__(
        self,
        storage: Storage,
        config: CorpusConfig,
        run: RunRef,
        space_id: str,
        ranges: int,
        sending: Inputs,
        view: View,
    ) -> None:
        self._storage = storage
        self._config = config
        self._run = run
        self._space_id = space_id
        self._ranges = ranges
        self._view = view
        self._chunker = Chunker(config.chunking)
        self._sending = sending
        self._tells_changes = config.source.mode == "changes"
        self._untimed = False
        self._batch: dict[str, Document] = {}
        self._characters = 0
        self._unread: list[tuple[str, str]] = []
        self._started = self._logged = time.monotonic()
        self.partial = False
        self.changes: Counter[Change] = Counter()
        self.bad_input: Counter[str] = Counter()
        self.partitions: dict[str, bool] = {}
        self.documents = self.bad = self.mended = self.chunks = self.tokens = 0

    def read(self, events: Iterator[Event]) -> None:
        """Take every event; the row files are whole when this returns."""
        with ExitStack() as files:
            with BadInputLog(self._storage, self._run) as self._log:
                self._rows = files.enter_context(RangeRows(self._storage, self._run, self._ranges))
                with StoredChunks(
                    self._storage, self._config.corpus, self._config.chunking.fingerprint, self._run.run
                ) as self._parts:
                    for event in events:
                        if isinstance(event, Document):
                            self._document(event)
                        elif isinstance(event, BadInput):
                            self._bad(event)
                        else:
                            self._end(event)
                    self._flush()
                    self._protect()
            # The log is whole before this raises, the rows never will be.
            self._check_bad_share()
        self.tokens -= self._rows.dropped_tokens

    def close_emptied(self) -> None:
        """After all records of all partitions: one without a record is empty, as no file can tell.

        A source that gave nothing at all is more likely broken than empty: nothing is deleted.
        """
        by_record = self._config.source.fields.partition is not None
        whole = bool(self.partitions) and all(self.partitions.values())
        if by_record and whole and not self.partial and self._config.source.mode == "snapshot":
            self._view.close_all()

    def report(self) -> PrepareReport:
        """The counts."""
        return PrepareReport(
            read=self.documents,
            new=self.changes[Change.NEW],
            changed=self.changes[Change.CHANGED],
            moved=self.changes[Change.MOVED],
            metadata=self.changes[Change.METADATA],
            unchanged=self.changes[Change.UNCHANGED],
            deleted=self.changes[Change.DELETED],
            stale=self.changes[Change.STALE],
            bad=self.bad,
            mended=self.mended,
            chunks=self.chunks,
            tokens=self.tokens,
            partial=self.partial,
            partitions=self.partitions,
            bad_input=dict(sorted(self.bad_input.items())),
        )

    def _document(self, document: Document) -> None:
        self.partitions.setdefault(document.partition, False)
        earlier = self._batch.get(document.id)
        self._untimed = self._untimed or document.updated_at is None
        if earlier is not None and not self._can_choose(document, earlier):
            self._flush()
        elif earlier is not None and not self._is_newest(document, earlier):
            return
        self._batch[document.id] = document
        self._characters += len(document.text)
        if len(self._batch) >= _BATCH_DOCUMENTS or self._characters >= _BATCH_CHARACTERS:
            self._flush()

    def _can_choose(self, document: Document, earlier: Document) -> bool:
        """Whether which of the two is newer can't depend on what the run read of the document before.

        It can where one of them tells no time: a third one may be newer than that, and older than the other.
        """
        timed = document.updated_at is not None
        if timed and not self._untimed:
            return True
        return timed == (earlier.updated_at is not None) and document.partition == earlier.partition

    def _is_newest(self, document: Document, earlier: Document) -> bool:
        """Of two versions in one batch only the newer goes further; says whether that is `document`."""
        newer = replaces(document, earlier, changes=self._tells_changes)
        if document.partition == earlier.partition and not self._tells_changes:
            self._bad(_replacing(document) if newer else _duplicate(document))
            if not newer:
                return False
        if newer:
            self._characters -= len(earlier.text)
        self.documents += 1
        self.changes[Change.STALE] += 1
        return newer

    def _bad(self, bad: BadInput) -> None:
        self._log.write(bad)
        self.bad_input[bad.reason.value] += 1
        if bad.kept:
            self.mended += 1
        elif bad.reason is not Reason.BLANK_LINE:
            self.bad += 1
            if bad.document_id is not None and bad.reason is not Reason.DUPLICATE_ID:
                self._unread.append((bad.document_id, bad.partition))
                if len(self._unread) >= _BATCH_DOCUMENTS:
                    self._protect()

    def _end(self, end: PartitionEnd) -> None:
        self._flush()
        self.partitions[end.partition] = end.whole
        if self.partial or self._config.source.mode != "snapshot":
            return
        if end.whole:
            self._view.close_partition(end.partition)
        else:
            log.warning(
                "partition %s has records that couldn't be told apart: nothing is deleted from it; see "
                "bad_input.jsonl of run %s",
                end.partition,
                self._run.run,
            )

    def _flush(self) -> None:
        """Compare, chunk, key and write the batch."""
        self._protect()
        documents, self._batch, self._characters = list(self._batch.values()), {}, 0
        if not documents:
            return
        heads = [metadata_of(document) for document in documents]
        versions = [version_of(document, head) for document, head in zip(documents, heads, strict=True)]
        judgements = self._view.judge(versions)
        rows = ChunkRows(self._config, self._space_id, self._ranges, self._chunker, self._sending)
        taken: list[Taken] = []
        places = list(self._rows.counts)
        for document, head, version, judgement in zip(documents, heads, versions, judgements, strict=True):
            if judgement.change is Change.DUPLICATE:
                self._bad(_duplicate(document))
                continue
            if judgement.change is not Change.STALE:
                chunks, cut = 0, ""
                try:
                    if not document.deleted:
                        chunks, cut = rows.add(document, head, version, store=judgement.store)
                except (PresendFailed, TooLong) as failed:
                    reason = Reason.TOO_LONG if isinstance(failed, TooLong) else Reason.PRESEND_FAILED
                    self._bad(_fault(document, reason, str(failed), SKIPPED))
                    continue
                if cut:
                    self._bad(_fault(document, Reason.TOO_LONG, cut, "cut it smaller", kept=True))
                number = range_of(document.id, self._ranges)
                self._take_back(number, document, judgement)
                taken.append(Taken(version, judgement, chunks, places[number]))
                places[number] += chunks
            self.documents += 1
            self.changes[judgement.change] += 1
        self._view.add(taken)
        self._write(rows)

    def _take_back(self, number: int, document: Document, judgement: Judgement) -> None:
        """What an earlier version in this run left is not to be paid for: its rows go."""
        before = judgement.replaced
        if before is None:
            return
        self._rows.drop(number, before.place, before.chunks)
        self.chunks -= before.chunks
        self.changes[before.change] -= 1
        self.changes[Change.STALE] += 1
        if before.partition == document.partition and not self._tells_changes:
            self._bad(_replacing(document))

    def _protect(self) -> None:
        """What is there and can't be used is not missing."""
        if self._unread:
            self._view.protect(self._unread)
            self._unread = []

    def _write(self, rows: ChunkRows) -> None:
        table, ranges, stored = rows.table()
        self.chunks += table.num_rows
        self.tokens += int(np.sum(table["tokens"].to_numpy()))
        self._rows.write(table, ranges)
        for partition, part in by_partition(stored):
            self._parts.write(partition, part)
        now = time.monotonic()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.info(
                "%s documents, %s chunks, %.0f chunks/s, in %d partitions",
                f"{self.documents:,}",
                f"{self.chunks:,}",
                self.chunks / (now - self._started),
                len(self.partitions),
            )

    def _check_bad_share(self) -> None:
        allowed = self._config.source.max_bad_share
        total = self.documents + self.bad
        if allowed is not None and total and self.bad > allowed * total:
            where = self._storage.url(f"{self._run.uri}/bad_input.jsonl")
            kinds = ", ".join(f"{number:,} {reason}" for reason, number in sorted(self.bad_input.items()))
            raise TooMuchBadInput(
                f"{self.bad:,} of {total:,} records of {self._config.source.where} are unusable, more than "
                f"source.max_bad_share {allowed:g} allows ({kinds}); mend them, see {where}, "
                "or raise the share"
            )


def _fault(document: Document, reason: Reason, detail: str, done: str, *, kept: bool = False) -> BadInput:
    return BadInput(
        document.file, document.line, document.partition, reason, detail, done, document.id, kept=kept
    )


def _duplicate(document: Document) -> BadInput:
    detail = "this id was read before in this partition, and this version isn't newer"
    return _fault(document, Reason.DUPLICATE_ID, detail, "skipped; the first one stays")


def _replacing(document: Document) -> BadInput:
    detail = "this id was read before in this partition, and this version is newer"
    return _fault(document, Reason.DUPLICATE_ID, detail, "taken in the place of the first one", kept=True)


def _limited(events: Iterator[Event], limit: int) -> Iterator[Event]:
    """Events up to the last document allowed; nothing is read beyond it."""
    left = limit
    for event in events:
        yield event
        left -= isinstance(event, Document)
        if left <= 0:
            return


def _sampled(events: Iterator[Event], size: int) -> Iterator[Event]:
    """All that isn't a document, then the `size` documents whose ids hash lowest, in reading order."""
    chosen: list[tuple[int, int, Document]] = []
    for order, event in enumerate(events):
        if not isinstance(event, Document):
            yield event
            continue
        rank = -int.from_bytes(content_hash(event.id.encode()), "little")
        if len(chosen) < size:
            heapq.heappush(chosen, (rank, -order, event))
        elif size and (rank, -order) > chosen[0][:2]:
            heapq.heapreplace(chosen, (rank, -order, event))
    yield from (document for _, _, document in sorted(chosen, key=lambda entry: -entry[1]))
