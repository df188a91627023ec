"""Dead letters: what still fails, one row an item, until somebody mends, replays or discards it.

The only writer of the table `dead_letters`. A letter of class `retryable` or `account` is asked
again by the next run; any other, open or discarded, blocks its item until it is replayed or its
content changes.

A replay takes letters (`replaying`), and holds them until each is answered (`resolved`) or has failed
again (`open`). What a replay leaves undecided when it ends goes back to what it was, and what a
replay that died left is taken by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import pendulum
import pyarrow as pa

from include.contracts import OutcomeClass, RunRef
from include.errors import LedgerError
from include.ledger.connect import Connection
from include.requests.results import keys_array

LetterState = Literal["open", "replaying", "resolved", "discarded"]

_SCOPE = "workload = %(workload)s and corpus = %(corpus)s and space = %(space)s"
BLOCKS = "(state = 'discarded' or (state in ('open', 'replaying') and class not in ('retryable', 'account')))"
"""Which letters keep their item from being asked again, as SQL: what was only unlucky isn't among
them, nor what failed for want of credit or a key, which says nothing against the item."""
_WAS = "case when reason = '' then 'open' else 'discarded' end"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One item that failed. `attempts` counts how often the run that opened it asked; `reason` is
    why it was discarded; `body_uri` is where its input lies (`letter_bodies.read`); `replay` is the
    run that asks it again, or last did."""

    id: int
    workload: str
    corpus: str
    space: str
    key: str
    document_id: str
    cls: OutcomeClass
    code: str
    message: str
    attempts: int
    state: LetterState
    reason: str
    body_uri: str
    run: str
    replay: str
    opened_at: pendulum.DateTime
    changed_at: pendulum.DateTime


@dataclass(frozen=True, slots=True)
class Which:
    """Which letters a replay is for, all of what is given; ages are hours since the letter was opened.

    `limit` takes only so many, the oldest first.
    """

    state: Literal["open", "discarded"] = "open"
    cls: OutcomeClass | None = None
    code: str | None = None
    document: str | None = None
    run: str | None = None
    min_age_hours: float | None = None
    max_age_hours: float | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class NewLetter:
    """A letter to be opened. `document_id` is the first of the documents that wanted the answer,
    `body` the byte range of its body in the bodies' file."""

    key: bytes
    document_id: str
    cls: OutcomeClass
    code: str
    message: str
    attempts: int
    body: str


# --------------------------------------------------------------------------- writing


def open_letters(
    connection: Connection,
    run: RunRef,
    space_id: str,
    letters: Iterable[NewLetter],
    bodies: Callable[[], str],
) -> int:
    """Open letters in bulk; returns how many. One that is open for the item already is brought up
    to date, one that was discarded stays so.

    `bodies` is called when all letters were read, and returns the path of the file that by then
    holds their bodies: no row points to a body that isn't there.
    """
    count = 0
    with connection.transaction():
        connection.execute(
            "create temp table new_letters (key text, document_id text, class text, code text,"
            " message text, attempts integer, body text) on commit drop"
        )
        with connection.cursor().copy("copy new_letters from stdin") as copy:
            for letter in letters:
                copy.write_row(
                    (
                        letter.key.hex(),
                        _storable(letter.document_id),
                        letter.cls.value,
                        _storable(letter.code),
                        _storable(letter.message),
                        letter.attempts,
                        letter.body,
                    )
                )
                count += 1
        if count == 0:
            return 0
        connection.execute(
            "insert into dead_letters (workload, corpus, space, key, document_id, class, code, message,"
            " attempts, state, body_uri, run, opened_at, changed_at)"
            " select %(workload)s, %(corpus)s, %(space)s, key, document_id, class, code, message,"
            " attempts, 'open', %(bodies)s || '#' || body, %(run)s, batch_inference.now(),"
            " batch_inference.now()"
            " from new_letters"
            " on conflict (workload, corpus, space, key) where state in ('open', 'replaying', 'discarded')"
            " do update set document_id = excluded.document_id, class = excluded.class,"
            " code = excluded.code, message = excluded.message, attempts = excluded.attempts,"
            " state = 'open', reason = '', replay = '', body_uri = excluded.body_uri, run = excluded.run,"
            " changed_at = excluded.changed_at where dead_letters.state <> 'discarded'",
            {**_scope(run, space_id), "bodies": bodies()},
        )
    return count


def resolve(connection: Connection, run: RunRef, space_id: str, keys: Sequence[bytes]) -> int:
    """Close the letters of items that have an answer by now; returns how many."""
    return connection.execute(
        "update dead_letters set state = 'resolved', changed_at = batch_inference.now()"
        f" where {_SCOPE} and state in ('open', 'replaying') and key = any(%(keys)s)",
        {**_scope(run, space_id), "keys": [key.hex() for key in keys]},
    ).rowcount


def choose(connection: Connection, run: RunRef, space_id: str, which: Which) -> list[bytes]:
    """The keys of the letters that a replay would take now, oldest letter first. Takes none."""
    query, values = _chosen(run, space_id, which)
    rows = connection.execute(f"select key from dead_letters where id in ({query}) order by id", values)
    return [bytes.fromhex(row["key"]) for row in rows]


def in_other_spaces(connection: Connection, run: RunRef, space_id: str, which: Which) -> dict[str, int]:
    """How many letters of this workload and corpus are in that state, but of other spaces, by model."""
    rows = connection.execute(
        "select description ->> 'model' as model, count(*) as letters"
        " from dead_letters join spaces using (space)"
        " where workload = %s and corpus = %s and space <> %s and state = %s group by 1 order by 1",
        (run.workload, run.corpus, space_id, which.state),
    )
    return {str(row["model"]): int(row["letters"]) for row in rows}


def take(connection: Connection, run: RunRef, space_id: str, which: Which) -> list[bytes]:
    """Take letters for the replay `run`; returns their keys, oldest letter first.

    No other replay gets them until it is over. What this run, or one that doesn't work any more, took
    before goes back first.
    """
    query, values = _chosen(run, space_id, which)
    with connection.transaction():
        connection.execute(
            f"update dead_letters set state = {_WAS} where {_SCOPE} and state = 'replaying'"
            " and (replay = %(run)s or not exists"
            " (select from runs where runs.run = replay and runs.state = 'running'))",
            values,
        )
        rows = connection.execute(
            "update dead_letters set state = 'replaying', replay = %(run)s"
            f" where id in ({query} for update skip locked) returning id, key",
            values,
        ).fetchall()
    return [bytes.fromhex(row["key"]) for row in sorted(rows, key=lambda row: int(row["id"]))]


def take_again(connection: Connection, run: str) -> int:
    """A replay that had ended works again: what it left undecided, and nobody else took, is its own."""
    return connection.execute(
        "update dead_letters set state = 'replaying'"
        " where replay = %(run)s and state in ('open', 'discarded')"
        " and exists (select from runs where runs.run = %(run)s and runs.state = 'running')",
        {"run": run},
    ).rowcount


def put_back(connection: Connection, run: str) -> int:
    """A replay is over: what it didn't decide is what it was before; returns how many."""
    return connection.execute(
        f"update dead_letters set state = {_WAS} where replay = %s and state = 'replaying'", (run,)
    ).rowcount


def let_go(connection: Connection, run: RunRef, space_id: str, keys: Sequence[bytes]) -> int:
    """A replay can't ask these letters, now or when it is run again; returns how many."""
    return connection.execute(
        f"update dead_letters set state = {_WAS}, replay = ''"
        f" where {_SCOPE} and replay = %(run)s and state = 'replaying' and key = any(%(keys)s)",
        {**_scope(run, space_id), "keys": [key.hex() for key in keys]},
    ).rowcount


def resolve_unwanted(connection: Connection, run: RunRef, space_id: str, keys: Sequence[bytes]) -> int:
    """Close letters of a replay that no document's text is the input of any more; returns how many."""
    return connection.execute(
        "update dead_letters set state = 'resolved', changed_at = batch_inference.now(),"
        " reason = 'no document holds this text any more'"
        f" where {_SCOPE} and replay = %(run)s and state = 'replaying' and key = any(%(keys)s)",
        {**_scope(run, space_id), "keys": [key.hex() for key in keys]},
    ).rowcount


def discard(connection: Connection, ids: Sequence[int], reason: str) -> int:
    """Give up on letters: their items stay blocked. Returns how many were open.

    Raises LedgerError without a reason: whoever meets the gap later must find out why.
    """
    if not reason.strip():
        raise LedgerError("a dead letter is discarded for a reason: say which")
    return connection.execute(
        "update dead_letters set state = 'discarded', reason = %s, changed_at = batch_inference.now()"
        " where id = any(%s) and state in ('open', 'replaying')",
        (reason, list(ids)),
    ).rowcount


# --------------------------------------------------------------------------- reading


def known_state(text: str) -> LetterState:
    """The state that a person typed. Raises LedgerError where there is none of that name."""
    for state in get_args(LetterState):
        if state == text:
            return cast(LetterState, state)
    raise LedgerError(f"a dead letter is {', '.join(get_args(LetterState))}, and never {text!r}")


def get(connection: Connection, id: int) -> DeadLetter:
    """One letter. Raises LedgerError when there is none of this id."""
    row = connection.execute("select * from dead_letters where id = %s", (id,)).fetchone()
    if row is None:
        raise LedgerError(f"no dead letter {id} in the ledger")
    return _letter(row)


def find(
    connection: Connection,
    *,
    workload: str | None = None,
    corpus: str | None = None,
    state: LetterState | None = "open",
    cls: OutcomeClass | None = None,
    code: str | None = None,
    run: str | None = None,
    limit: int = 100,
) -> list[DeadLetter]:
    """Letters that match all that is given, newest first; `state` None means any."""
    wanted = {"workload": workload, "corpus": corpus, "state": state, "code": code, "run": run}
    wanted["class"] = cls.value if cls else None
    given = {name: value for name, value in wanted.items() if value is not None}
    where = " and ".join(f"{name} = %({name})s" for name in given) or "true"
    rows = connection.execute(
        f"select * from dead_letters where {where} order by id desc limit %(limit)s",
        {**given, "limit": limit},
    )
    return [_letter(row) for row in rows]


def blocked_keys(connection: Connection, run: RunRef, space_id: str) -> pa.Array[Any]:
    """The keys that this workload doesn't ask in this space, as 16-byte binaries."""
    return _keys(connection, BLOCKS, run, space_id)


def accounted_keys(connection: Connection, run: RunRef, space_id: str) -> pa.Array[Any]:
    """The keys that stand in this run's accounts as dead-lettered: those blocked, and its own.

    Its own are also those that another run, which shared the item, buried while this one worked.
    """
    own = (
        "(state in ('open', 'replaying', 'discarded') and (run = %(run)s or changed_at >="
        " (select started_at from runs where run = %(run)s)))"
    )
    undecided = "(state = 'replaying' and replay = %(run)s)"
    return _keys(connection, f"({BLOCKS} or {own}) and not {undecided}", run, space_id)


def held_keys(connection: Connection, run: RunRef, space_id: str) -> pa.Array[Any]:
    """The keys of the letters that this replay holds."""
    return _keys(connection, "state = 'replaying' and replay = %(run)s", run, space_id)


def unsettled_keys(connection: Connection, run: RunRef, space_id: str) -> pa.Array[Any]:
    """The keys of letters that an answer would resolve."""
    return _keys(connection, "state in ('open', 'replaying')", run, space_id)


def _chosen(run: RunRef, space_id: str, which: Which) -> tuple[str, dict[str, Any]]:
    """A query of ids, and its values."""
    values: dict[str, Any] = {**_scope(run, space_id), "state": which.state, "limit": which.limit}
    where = [_SCOPE, "state = %(state)s"]
    for column, wanted in (
        ("class", which.cls.value if which.cls else None),
        ("code", which.code),
        ("document_id", which.document),
        ("run", which.run),
    ):
        if wanted is not None:
            values[f"wanted_{column}"] = wanted
            where.append(f"{column} = %(wanted_{column})s")
    age = "opened_at {} batch_inference.now() - make_interval(secs => 3600 * %({})s)"
    for name, compare in (("min_age_hours", "<="), ("max_age_hours", ">=")):
        if getattr(which, name) is not None:
            values[name] = getattr(which, name)
            where.append(age.format(compare, name))
    query = f"select id from dead_letters where {' and '.join(where)} order by id limit %(limit)s"
    return query, values


def _keys(connection: Connection, where: str, run: RunRef, space_id: str) -> pa.Array[Any]:
    rows = connection.execute(
        f"select key from dead_letters where {_SCOPE} and {where}", _scope(run, space_id)
    )
    return keys_array(b"".join(bytes.fromhex(row["key"]) for row in rows))


def _scope(run: RunRef, space_id: str) -> dict[str, str]:
    return {"workload": run.workload, "corpus": run.corpus, "space": space_id, "run": run.run}


def _letter(row: Mapping[str, Any]) -> DeadLetter:
    values = {name: value for name, value in row.items() if name != "class"}
    values["opened_at"] = pendulum.instance(row["opened_at"])
    values["changed_at"] = pendulum.instance(row["changed_at"])
    return DeadLetter(cls=OutcomeClass(row["class"]), **values)


def _storable(text: str) -> str:
    """PostgreSQL's text has no null byte; a provider's message may."""
    return text.replace("\0", "")
