"""Bury: what a run could get no answer for becomes dead letters, and answered letters close.

What is buried is what failed in the second attempt, what no attempt can mend, and what no request
could carry; only items that this run's rows want, and that have no answer by now.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from include.batches import dead_letters, failures, letter_bodies, runs, shards
from include.batches.dead_letters import NewLetter
from include.batches.pack import answers, round_failures
from include.contracts import OutcomeClass, RunRef, Space, iter_batches
from include.ledger.connect import Connection
from include.requests.key_sets import KeySets, Resources, opened
from include.requests.reuse import Reuse
from include.storage import Storage

log = logging.getLogger(__name__)

_ROUNDS = (shards.FIRST_ROUND, shards.SECOND_ROUND)
_RESOLVE_AT_ONCE = 10_000
_ASKED_AGAIN = ", ".join(f"'{cls.value}'" for cls in sorted(failures.ASKED_AGAIN))


@dataclass(frozen=True, slots=True)
class BuryReport:
    """How many letters were opened, by class, and how many of older ones have an answer by now."""

    opened: Mapping[str, int]
    resolved: int

    @property
    def total(self) -> int:
        """Letters that this run opened."""
        return sum(self.opened.values())


def bury(
    connection: Connection,
    storage: Storage,
    space: Space,
    *,
    run: RunRef,
    rows: Sequence[str],
    asked: str | None = None,
    only_asked: bool = True,
    given_up: bool = False,
    reuse: Reuse | None = None,
    resources: Resources | None = None,
) -> BuryReport:
    """Open the letters of a run whose second attempt is over. Doing it again changes nothing.

    `rows` are Parquet files of `RUN_ROW_SCHEMA`, relative to the storage root. `asked` is one of
    columns (key, asked), where the run asked something else for its rows' keys; `only_asked` that it asked
    nothing else. `given_up` says that no second attempt follows to what failed in the first.
    """
    reuse = reuse or Reuse()
    # Bodies are grouped by key, texts and all, which needs more room than keys alone.
    with opened(storage, resources or Resources(memory_limit="1GB")) as sets:
        given = answers(connection, storage, space.id, run, reuse)
        if given:
            since = reuse.since(runs.get(connection, run.run).started_at)
            sets.files("results", given, "key", since)
        else:
            sets.table("results", "select ''::blob as key where false")
        resolved = _resolve(connection, sets, run, space.id)
        counts: Counter[str] = Counter()
        if rows and _failed(connection, storage, sets, run, asked, only_asked, given_up):
            sets.files("rows", rows, "key, input, text, document_id, chunk_id")
            _open(connection, storage, sets, run, space.id, counts)
    log.info("Run %s: %d dead letters opened, %d resolved", run.run, counts.total(), resolved)
    return BuryReport(dict(counts), resolved)


def _resolve(connection: Connection, sets: KeySets, run: RunRef, space_id: str) -> int:
    """Close the letters whose items have an answer."""
    unsettled = dead_letters.unsettled_keys(connection, run, space_id)
    if not len(unsettled):
        return 0
    sets.keys("unsettled", unsettled)
    answered = sets.rows("select key from unsettled semi join (select key from results) using (key)")
    return sum(
        dead_letters.resolve(connection, run, space_id, [key for (key,) in rows])
        for rows in iter_batches(answered, _RESOLVE_AT_ONCE)
    )


def _failed(
    connection: Connection,
    storage: Storage,
    sets: KeySets,
    run: RunRef,
    asked: str | None,
    only_asked: bool,
    given_up: bool,
) -> int:
    """Gather into the table `failed` what no later attempt of this run mends; returns how many."""
    sets.table(
        "failed",
        "select ''::blob as key, '' as class, '' as code, '' as message, 0 as attempts where false",
    )
    for round in _ROUNDS:
        paths = round_failures(connection, storage, run, round)
        if not paths:
            continue
        view = f"failures_{round}"
        sets.json_lines(view, paths, failures.COLUMNS)
        last = "" if given_up or round == _ROUNDS[-1] else f" where class not in ({_ASKED_AGAIN}) and alone"
        sets.insert("failed", f"select unhex(key), class, code, message, {round:d} from {view}{last}")
    if asked is not None:
        sets.files("asked", [asked], "key, asked")
        others = "" if only_asked else " union all select f.* from failed f anti join asked on asked = f.key"
        sets.table(
            "failed",
            "select a.key, class, code, message, attempts from failed f join asked a on a.asked = f.key"
            + others,
        )
    return sets.number("select count(*) from failed")


def _open(
    connection: Connection,
    storage: Storage,
    sets: KeySets,
    run: RunRef,
    space_id: str,
    counts: Counter[str],
) -> None:
    """Open the letters of the table `failed`, bodies first."""
    query = (
        "with last as (select key, max_by(class, attempts) as class, max_by(code, attempts) as code,"
        " max_by(message, attempts) as message, max(attempts) as attempts from failed"
        " anti join (select key from results) using (key) group by key)"
        " select key, any_value(class), any_value(code), any_value(message), any_value(attempts),"
        " min(document_id), min_by(chunk_id, document_id), any_value(coalesce(input, text))"
        " from rows join last using (key) group by key order by key"
    )
    with letter_bodies.writing() as bodies:

        def letters() -> Iterator[NewLetter]:
            for key, cls, code, message, attempts, document, chunk, text in sets.rows(query):
                counts[cls] += 1
                span = bodies.add(
                    {
                        "key": key.hex(),
                        "space": space_id,
                        "document_id": document,
                        "chunk_id": chunk,
                        "class": cls,
                        "code": code,
                        "message": message,
                        "input": text,
                    }
                )
                yield NewLetter(key, document, OutcomeClass(cls), code, message, attempts, span)

        dead_letters.open_letters(connection, run, space_id, letters(), lambda: bodies.keep(storage, run))
