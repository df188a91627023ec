"""Publishing: what readers read changes only when the new index is whole, and can be changed back.

The ledger decides (building → publishing → live, by compare-and-swap under the corpus's lock) and
the pointer follows; a process that dies between the two is repaired by the next publish or rollback.
Verify before you publish: this file only switches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from include.errors import PublishRefused
from include.indexes import versions
from include.indexes.live import LivePointer, find_pointer, write_pointer
from include.ledger import clock
from include.ledger.connect import Connection
from include.ledger.locks import held
from include.storage import Storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What became of a request to publish, and why, in a sentence for people.

    `published`: readers were sent to this version now. `already_live`: they were before.
    `partial`: the run saw a sample or a limited number of documents. `incomplete`: partitions are
    still to be loaded; `missing` names them. `standby`: the version was live once and was put aside,
    and a run that outlived that doesn't undo it; `rollback` does.
    """

    state: Literal["published", "already_live", "partial", "incomplete", "standby"]
    reason: str
    missing: tuple[str, ...] = ()


def publish(
    connection: Connection,
    storage: Storage,
    *,
    corpus: str,
    version: str,
    pointer: LivePointer,
    covered: Iterable[str],
    whole: bool,
    known: Iterable[str] = (),
    unaccounted: int = 0,
) -> PublishReport:
    """Record the partitions that a run loaded whole, and go live where that completes the version.

    `covered` are the partitions this run read whole; `known` are those its source has, beside those
    that hold documents already. `unaccounted` is verify's count of chunks that are missing without a
    dead letter: others are still loading them. `whole` is False for a run with a sample or a limit,
    which covers and publishes nothing. Idempotent. Raises PublishRefused for a version that is retired.
    """
    if not whole:
        return PublishReport(
            "partial", "a run with a sample or a limit publishes nothing: run it again without"
        )
    versions.cover(connection, version, covered, pointer.run)
    with held(connection, f"publish/{corpus}"):
        row = versions.get(connection, version)
        if row.state == "live":
            _follow(connection, storage, corpus)
            return PublishReport("already_live", f"{version} was live already and holds this run's documents")
        if row.state == "standby":
            return PublishReport("standby", f"{version} is on standby and holds this run's documents")
        wanted = versions.known_partitions(connection, corpus) | set(known)
        missing = versions.uncovered(connection, version, wanted)
        if missing:
            return PublishReport(
                "incomplete",
                f"{version} holds {len(wanted) - len(missing)} of {len(wanted)} partitions; "
                f"still to be loaded: {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}",
                tuple(missing),
            )
        if unaccounted:
            return PublishReport(
                "incomplete",
                f"{version} still lacks {unaccounted:,} chunks of documents that changed since they were "
                "read, or that another run is loading: the next whole run publishes it",
            )
        stamped = replace(pointer, index=version, published_at=clock.now(connection).to_iso8601_string())
        if not versions.announce(connection, version, stamped.as_json()):
            raise PublishRefused(
                f"index version {version} is {row.state}: run the ingest again to rebuild it"
            )
        if not versions.go_live(connection, version, was="publishing"):
            raise PublishRefused(f"index version {version} was changed by another process; publish again")
        _follow(connection, storage, corpus)
    log.info("%s is live", version)
    return PublishReport("published", f"{version} is live")


def rollback(connection: Connection, storage: Storage, corpus: str) -> LivePointer:
    """Send readers back to the version on standby; returns the pointer they now read.

    Where an earlier switch was cut short before the pointer was written, finishes that one instead.
    Raises PublishRefused when there is nothing to go back to.
    """
    with held(connection, f"publish/{corpus}"):
        finished = _follow(connection, storage, corpus)
        if finished is not None:
            return finished
        target = versions.standby(connection, corpus)
        if target is None or target.pointer is None:
            raise PublishRefused(f"{corpus} has no index on standby to go back to")
        if not versions.go_live(connection, target.version, was="standby"):
            raise PublishRefused(f"index version {target.version} was changed by another process; try again")
        _follow(connection, storage, corpus)
    log.info("%s is rolled back to %s", corpus, target.version)
    return LivePointer.from_json(target.pointer)


def _follow(connection: Connection, storage: Storage, corpus: str) -> LivePointer | None:
    """Make the pointer say what the ledger says; returns the pointer where it didn't, else None."""
    live = versions.live(connection, corpus)
    if live is None or live.pointer is None:
        return None
    wanted = LivePointer.from_json(live.pointer)
    there = find_pointer(storage, corpus)
    if there is not None and there.index == wanted.index:
        return None
    write_pointer(storage, corpus, wanted)
    return wanted
