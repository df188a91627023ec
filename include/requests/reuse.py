"""What is still to be asked: the keys of a run's rows, minus those answered, in flight or blocked.

Every distinct key of the rows falls into exactly one of: own (listed by this run already), reused,
in flight, blocked, missing; in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pendulum
import pyarrow as pa

from include.errors import ConfigError
from include.requests.key_order import ItemColumns, in_key_order
from include.requests.key_sets import KeySets, Resources, opened
from include.storage import Storage

_ROW_COLUMNS = "key, input, text, tokens, document_id, chunk_id"


@dataclass(frozen=True, slots=True)
class Reuse:
    """Which answers count as given. The policy of a workload.

    - `always`: any answer there is (embeddings, extraction).
    - `max_age`: answers no older than `max_age_seconds` when the run started (generated answers,
      so that a provider's drift shows).
    - `run`: only answers to what this run lists.
    """

    policy: Literal["always", "max_age", "run"] = "always"
    max_age_seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.policy == "max_age") != (self.max_age_seconds is not None):
            raise ConfigError("reuse: max_age_seconds belongs to the policy max_age, and to no other")

    def since(self, started_at: pendulum.DateTime) -> pendulum.DateTime | None:
        """From when on answers count, for a run that started then. Fixed for the run's whole life,
        so that what `pack` took as answered is still so when the run reconciles."""
        if self.max_age_seconds is None:
            return None
        return started_at.subtract(seconds=self.max_age_seconds)


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that decide, all Parquet and relative to the storage root.

    `rows` have `RUN_ROW_SCHEMA`, `results` the results schema; `own` and `live` hold a column
    `key`. `blocked` and `only` are arrays of 16-byte keys; `only` restricts the rows. `since`
    leaves out results that landed before it.
    """

    rows: Sequence[str]
    results: Sequence[str] = ()
    own: Sequence[str] = ()
    live: Sequence[str] = ()
    blocked: pa.Array[Any] | None = None
    only: pa.Array[Any] | None = None
    since: pendulum.DateTime | None = None


@dataclass(slots=True)
class Plan:
    """How a run's distinct keys divide: `items = own + reused + in_flight + blocked + missing`.

    `rows` are those that want one of the items, so `rows - items` are duplicates. `tokens` are
    those of the missing items. `listed` and `joined` map the `own` and `live` files that hold
    wanted keys to how many.
    """

    rows: int = 0
    items: int = 0
    own: int = 0
    reused: int = 0
    in_flight: int = 0
    blocked: int = 0
    missing: int = 0
    tokens: int = 0
    listed: dict[str, int] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)


@contextmanager
def planning(storage: Storage, sources: Sources, resources: Resources | None = None) -> Iterator[Planned]:
    """Divide the keys of the rows. What is missing can be streamed only inside the block."""
    with opened(storage, resources) as sets:
        yield Planned(sets, sources)


class Planned:
    """A plan, and the items that it found missing. Made by `planning`."""

    def __init__(self, sets: KeySets, sources: Sources) -> None:
        self._sets = sets
        self.plan = self._divide(sources) if sources.rows else Plan()

    def missing_items(self) -> Iterator[ItemColumns]:
        """The missing items in key order, each key once: keys, inputs, token counts."""
        if self.plan.missing:
            yield from in_key_order(
                self._sets.stream(
                    "select key, coalesce(input, text) as input, tokens from rows semi join rest using (key)"
                ),
                self.plan.missing,
                self._sets.scratch,
            )

    def missing_documents(self, most: int) -> list[tuple[str, str]]:
        """The first of the missing items in key order: (key in hex, a document that wants it)."""
        if not self.plan.missing:
            return []
        query = (
            "select key, min(document_id) as document_id from rows semi join rest using (key)"
            f" group by key order by key limit {most:d}"
        )
        return [(key.hex(), document) for key, document in self._sets.rows(query)]

    def _divide(self, sources: Sources) -> Plan:
        """Subtract set after set. A set that is empty costs nothing."""
        sets, plan = self._sets, Plan()
        sets.files("rows", sources.rows, _ROW_COLUMNS)
        wanted = "rows"
        if sources.only is not None:
            sets.keys("only_these", sources.only)
            wanted = "rows semi join only_these using (key)"
        plan.rows = sets.number(f"select count(*) from {wanted}")
        plan.items = left = sets.table("rest", f"select key from {wanted} group by key")
        if sources.own:
            sets.files("own", sources.own, "key, filename")
            plan.listed = sets.holders("own", "rest", sources.own)
            plan.own, left = sets.subtract("rest", "own", left)
        if sources.results:
            sets.files("results", sources.results, "key", sources.since)
            plan.reused, left = sets.subtract("rest", "results", left)
        if sources.live:
            sets.files("live", sources.live, "key, filename")
            plan.joined = sets.holders("live", "rest", sources.live)
            plan.in_flight, left = sets.subtract("rest", "live", left)
        if sources.blocked is not None and len(sources.blocked):
            sets.keys("blocked", sources.blocked)
            plan.blocked, left = sets.subtract("rest", "blocked", left)
        plan.missing = left
        if left:
            plan.tokens = sets.number(
                "select sum(tokens) from (select any_value(tokens) as tokens from rows"
                " semi join rest using (key) group by key)"
            )
        return plan
