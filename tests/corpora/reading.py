"""What tests of sources share: reading one whole, and telling its events apart."""

from __future__ import annotations

from collections.abc import Sequence

from include.corpora.config import CorpusConfig
from include.corpora.records import BadInput, Document
from include.corpora.sources import Event, PartitionEnd, Source
from include.corpora.sql import Connect


def read(
    corpus: CorpusConfig, partitions: Sequence[str] | None = None, sql: Connect | None = None
) -> list[Event]:
    """All events of a corpus's source."""
    return list(Source(corpus.source, sql).read(partitions))


def documents(events: list[Event]) -> list[Document]:
    """The documents among them."""
    return [event for event in events if isinstance(event, Document)]


def faults(events: list[Event]) -> list[BadInput]:
    """The bad input among them."""
    return [event for event in events if isinstance(event, BadInput)]


def ends(events: list[Event]) -> dict[str, bool]:
    """Whether each partition was read whole, in the order of their ends."""
    return {event.partition: event.whole for event in events if isinstance(event, PartitionEnd)}
