"""The guard against poison: a run whose answers are mostly refusals stops sending the rest.

Counted are items that failed by themselves (`permanent`, `invalid`), not those that were unlucky. A batch
of which the account refuses more than half stops the run whatever its share.
"""

from __future__ import annotations

from collections import Counter

from include.batches import failures, submissions
from include.contracts import OutcomeClass
from include.ledger.connect import Connection
from include.storage import Storage

FROM_ITEMS = 100
"""So many items must have landed before their share means anything."""
_POISON = (OutcomeClass.PERMANENT, OutcomeClass.INVALID)
_NAMED = 3


def check(connection: Connection, storage: Storage, run: str, max_failed_share: float | None) -> str:
    """Why the run must stop sending, by what it has landed so far; "" where it needn't.

    `max_failed_share` None means that any share may fail.
    """
    landed = [row for row in submissions.listed_by(connection, run) if row.state == submissions.LANDED]
    for row in landed:
        refused = _count(row, OutcomeClass.ACCOUNT)
        if refused * 2 > _count(row, *OutcomeClass):
            codes = _codes(storage, [row], (OutcomeClass.ACCOUNT,))
            return f"the account refused {refused:,} requests of batch {row.batch_id} ({codes})"
    items = sum(_count(row, *OutcomeClass) for row in landed)
    failed = sum(_count(row, *_POISON) for row in landed)
    if max_failed_share is None or items < FROM_ITEMS or failed <= max_failed_share * items:
        return ""
    return (
        f"{failed:,} of the first {items:,} items failed, more than max_failed_share {max_failed_share:g}"
        f" allows; most often {_codes(storage, landed, _POISON)}"
    )


def _count(row: submissions.SubmissionRow, *classes: OutcomeClass) -> int:
    return sum(int(str(row.counts.get(cls.value) or 0)) for cls in classes)


def _codes(storage: Storage, rows: list[submissions.SubmissionRow], classes: tuple[OutcomeClass, ...]) -> str:
    """The most frequent codes of these classes, with an example's message."""
    counts: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for row in rows:
        for failure in failures.read(storage, failures.of_attempt(row.shard, row.attempt)):
            if failure.cls in classes:
                counts[failure.code] += 1
                messages.setdefault(failure.code, failure.message)
    return ", ".join(
        f"{code} {count:,} times: {messages[code][:200]}" for code, count in counts.most_common(_NAMED)
    )
