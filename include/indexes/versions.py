"""Index versions and what they cover: the only writer of `index_versions` and `coverage`.

A version is one physical index, named `{corpus}__{fingerprint}`. Ingest writes to every version
that is not retired: the live one, those being built, and one on standby, so that a rollback goes
back to today's documents.

    building ──▶ publishing ──▶ live ◀──▶ standby ──▶ retired
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import pendulum
from psycopg.types.json import Jsonb

from include.contracts import JSON, IndexSpec, Metric
from include.errors import ConfigError
from include.ledger.connect import Connection

State = Literal["building", "publishing", "live", "standby", "retired"]


@dataclass(frozen=True, slots=True)
class IndexVersion:
    """One physical index. `pointer` is what `live.json` says while this version is live."""

    version: str
    corpus: str
    store: str
    store_url: str
    space: str
    chunking: str
    metric: Metric
    dimensions: int
    state: State
    built_by: str
    pointer: dict[str, JSON] | None
    created_at: pendulum.DateTime
    published_at: pendulum.DateTime | None

    @property
    def spec(self) -> IndexSpec:
        """The physical index, as a store is asked to make it."""
        return IndexSpec(self.version, self.dimensions, self.metric)


def create(
    connection: Connection,
    *,
    version: str,
    corpus: str,
    store: str,
    store_url: str,
    space: str,
    chunking: str,
    metric: Metric | str,
    dimensions: int,
    run: str,
) -> IndexVersion:
    """The version of this name, made as `building` if it isn't there; a retired one is built anew.

    Raises ConfigError where one of that name was made otherwise.
    """
    connection.execute(
        "insert into index_versions (version, corpus, store, store_url, space, chunking, metric,"
        " dimensions, state, built_by, created_at)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, 'building', %s, batch_inference.now())"
        " on conflict (version) do nothing",
        (version, corpus, store, store_url, space, chunking, Metric(metric).value, dimensions, run),
    )
    with connection.transaction():
        row = connection.execute(
            "update index_versions set state = 'building', built_by = %s, pointer = null,"
            " created_at = batch_inference.now(), published_at = null"
            " where version = %s and state = 'retired' returning version",
            (run, version),
        ).fetchone()
        if row is not None:
            connection.execute("delete from coverage where version = %s", (version,))
    made = get(connection, version)
    wanted = (corpus, store, store_url, space, chunking, Metric(metric), dimensions)
    there = (
        made.corpus,
        made.store,
        made.store_url,
        made.space,
        made.chunking,
        made.metric,
        made.dimensions,
    )
    if wanted != there:
        names = ("corpus", "store", "store_url", "space", "chunking", "metric", "dimensions")
        differ = "; ".join(
            f"{name} is {old} there and {new} here"
            for name, old, new in zip(names, there, wanted, strict=True)
            if old != new
        )
        raise ConfigError(
            f"index version {version} is {made.state} with other values: {differ}. Give the corpus the old "
            "values, or retire that version first"
        )
    return made


def find(connection: Connection, version: str) -> IndexVersion | None:
    """The version of this name, or None."""
    found = _where(connection, "version = %s", (version,))
    return found[0] if found else None


def get(connection: Connection, version: str) -> IndexVersion:
    """The version of this name. Raises ConfigError when the ledger knows none."""
    found = find(connection, version)
    if found is None:
        raise ConfigError(f"the ledger knows no index version {version}; see `python -m include.cli indexes`")
    return found


def of_corpus(connection: Connection, corpus: str) -> list[IndexVersion]:
    """All versions of a corpus, oldest first."""
    return _where(connection, "corpus = %s", (corpus,))


def live(connection: Connection, corpus: str) -> IndexVersion | None:
    """The version that readers are sent to, or None while nothing is published."""
    found = _where(connection, "corpus = %s and state = 'live'", (corpus,))
    return found[0] if found else None


def standby(connection: Connection, corpus: str) -> IndexVersion | None:
    """The version a rollback goes to: of those on standby the one published last."""
    found = _where(connection, "corpus = %s and state = 'standby'", (corpus,))
    return max(found, key=lambda version: version.published_at or version.created_at, default=None)


def writable(connection: Connection, corpus: str) -> list[IndexVersion]:
    """The versions that ingest writes to: all but the retired, oldest first."""
    return _where(connection, "corpus = %s and state <> 'retired'", (corpus,))


def change(connection: Connection, version: str, *, was: Collection[State], to: State) -> bool:
    """Move a version to another state if it's in one of `was`; returns whether it was."""
    row = connection.execute(
        "update index_versions set state = %s where version = %s and state = any(%s) returning version",
        (to, version, list(was)),
    ).fetchone()
    return row is not None


def announce(connection: Connection, version: str, pointer: dict[str, JSON]) -> bool:
    """Move a version to `publishing` with the pointer it will be live with.

    A version that was left in `publishing` by a process that died goes back to `building`: the
    caller holds the corpus's publishing lock. Returns False where the version is in another state.
    """
    with connection.transaction():
        connection.execute(
            "update index_versions set state = 'building' where state = 'publishing' and version <> %s"
            " and corpus = (select corpus from index_versions where version = %s)",
            (version, version),
        )
        row = connection.execute(
            "update index_versions set state = 'publishing', pointer = %s"
            " where version = %s and state in ('building', 'publishing') returning version",
            (Jsonb(pointer), version),
        ).fetchone()
    return row is not None


def go_live(connection: Connection, version: str, *, was: State) -> bool:
    """Make a version live and the one that was on standby, in one transaction.

    Returns False, and changes nothing, where the version isn't in the state `was`.
    """
    with connection.transaction():
        row = connection.execute(
            "select corpus from index_versions where version = %s and state = %s for update", (version, was)
        ).fetchone()
        if row is None:
            return False
        connection.execute(
            "update index_versions set state = 'standby' where corpus = %s and state = 'live'",
            (row["corpus"],),
        )
        connection.execute(
            "update index_versions set state = 'live', published_at = batch_inference.now()"
            " where version = %s",
            (version,),
        )
    return True


def cover(connection: Connection, version: str, partitions: Iterable[str], run: str) -> None:
    """Record that a run loaded these partitions, whole, into a version."""
    connection.execute(
        "insert into coverage (version, partition, run, covered_at)"
        " select %s, partition, %s, batch_inference.now() from unnest(%s::text[]) as partition"
        " on conflict (version, partition) do update"
        " set run = excluded.run, covered_at = excluded.covered_at",
        (version, run, sorted(set(partitions))),
    )


def covered(connection: Connection, version: str) -> set[str]:
    """The partitions that a version covers."""
    rows = connection.execute("select partition from coverage where version = %s", (version,))
    return {row["partition"] for row in rows}


def complete(connection: Connection, version: str, partitions: Iterable[str]) -> bool:
    """Whether a version covers all of these partitions."""
    return not uncovered(connection, version, partitions)


def uncovered(connection: Connection, version: str, partitions: Iterable[str]) -> list[str]:
    """Those of the partitions that a version doesn't cover, sorted."""
    return sorted(set(partitions) - covered(connection, version))


def known_partitions(connection: Connection, corpus: str) -> set[str]:
    """The partitions that hold a document of the corpus now."""
    rows = connection.execute(
        "select distinct partition from documents where corpus = %s and not deleted", (corpus,)
    )
    return {row["partition"] for row in rows}


def _where(connection: Connection, condition: str, values: tuple[Any, ...]) -> list[IndexVersion]:
    rows = connection.execute(
        "select version, corpus, store, store_url, space, chunking, metric, dimensions, state, built_by,"
        f" pointer, created_at, published_at from index_versions where {condition}"
        " order by created_at, version",
        values,
    )
    return [
        IndexVersion(
            **{
                **row,
                "metric": Metric(row["metric"]),
                "created_at": pendulum.instance(row["created_at"]),
                "published_at": row["published_at"] and pendulum.instance(row["published_at"]),
            }
        )
        for row in rows
    ]
