"""Rules that make chosen calls, lines and batches go wrong, in the ways real services do.

A rule is JSON: `{"on": ..., "when": {...}, "do": ..., ...}`.

- `on`: an operation (`batches.create`, `files.content`, `embeddings`, ...), `line` (a request of a
  batch when it runs) or `batch` (a batch when it is created). A list of them is fine.
- `when` (all of it must hold): `nth`: only the nth match; `times`: only the first n matches;
  `custom_id`: only this line; `match`: a regular expression that must be found in the subject: the
  JSON body of a call (its path, if it has none), the text that a line asks about, a batch's metadata.
- `do`, for calls: `status` (`status`, `body`, `headers`), `drop_before` (connection lost, nothing
  done), `drop_after` (all done, answer lost), `delay` (`seconds`, real ones), `cut` (connection lost
  after `bytes` of the answer's body), `shorten` (the answer ends after `bytes`, as if that were all),
  `alter` (`fields` replace those of a JSON object in the answer).
- `do`, for lines: `line_error` (`status`, `code`, `message`, `type`; without a status the line counts
  as not run), `line_omit`, `line_duplicate`, `line_foreign` (one more line with an unknown custom_id),
  `line_body` (`body`: fields that replace those of a good answer's body).
- `do`, for batches: `expire_at` (`fraction` of the requests done, then expired), `fail_batch` (`code`,
  `message`, `line`), `pace` (`validating_seconds`, `batch_seconds`, `finalizing_seconds`).
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from include.emulator.store import Store

CALL_ACTIONS = {"status", "drop_before", "drop_after", "delay", "cut", "shorten", "alter"}
LINE_ACTIONS = {"line_error", "line_omit", "line_duplicate", "line_foreign", "line_body"}
BATCH_ACTIONS = {"expire_at", "fail_batch", "pace"}
REQUIRED = {
    "delay": "seconds",
    "cut": "bytes",
    "shorten": "bytes",
    "alter": "fields",
    "expire_at": "fraction",
    "line_body": "body",
}
CONDITIONS = {"nth", "times", "custom_id", "match"}


@dataclass(slots=True)
class Rule:
    """One fault, with how often it was looked at and matched (`seen`) and struck (`hits`)."""

    id: str
    on: frozenset[str]
    do: str
    when: dict[str, Any]
    options: dict[str, Any]
    seen: int = 0
    hits: int = 0
    pattern: re.Pattern[str] | None = field(default=None, repr=False)

    def describe(self) -> dict[str, Any]:
        """The rule as it was given, with its id and counts."""
        given = {"on": sorted(self.on), "when": self.when, "do": self.do, **self.options}
        return {"id": self.id, **given, "seen": self.seen, "hits": self.hits}

    def strikes(self, subject: str, custom_id: str | None) -> bool:
        """Whether the fault happens now; counts the match."""
        if "custom_id" in self.when and self.when["custom_id"] != custom_id:
            return False
        if self.pattern is not None and not self.pattern.search(subject):
            return False
        self.seen += 1
        if "nth" in self.when and self.seen != self.when["nth"]:
            return False
        if "times" in self.when and self.hits >= self.when["times"]:
            return False
        self.hits += 1
        return True


def parse_rule(given: dict[str, Any]) -> Rule:
    """A rule from JSON. Raises ValueError saying what is wrong with it."""
    rest = dict(given)
    on = rest.pop("on", None)
    do = rest.pop("do", None)
    when = rest.pop("when", None) or {}
    seen, hits = int(rest.pop("seen", 0)), int(rest.pop("hits", 0))
    identity = str(rest.pop("id", "") or f"fault_{uuid.uuid4().hex[:12]}")
    points = frozenset([on] if isinstance(on, str) else on or [])
    if not points:
        raise ValueError(f"a fault says `on` which operation it strikes: {given}")
    if do not in CALL_ACTIONS | LINE_ACTIONS | BATCH_ACTIONS:
        raise ValueError(
            f"`do` must be one of {sorted(CALL_ACTIONS | LINE_ACTIONS | BATCH_ACTIONS)}, not {do!r}"
        )
    if do in LINE_ACTIONS and points != {"line"}:
        raise ValueError(f"{do!r} happens to a line: it needs `on: line`")
    if do in CALL_ACTIONS and points & {"line", "batch"}:
        raise ValueError(f"{do!r} happens to a call, not to a line or a batch")
    if do in BATCH_ACTIONS and not points <= {"batch", "batches.create"}:
        raise ValueError(f"{do!r} happens to a batch: it needs `on: batch`")
    if unknown := set(when) - CONDITIONS:
        raise ValueError(f"`when` knows {sorted(CONDITIONS)}, not {sorted(unknown)}")
    if (needed := REQUIRED.get(do)) and needed not in rest:
        raise ValueError(f"{do!r} needs {needed!r}: {given}")
    try:
        pattern = re.compile(when["match"]) if "match" in when else None
    except re.error as error:
        raise ValueError(f"`match` is no regular expression: {error}") from None
    return Rule(identity, points, do, when, rest, seen, hits, pattern)


class Faults:
    """The rules in force, in the order given; kept over a restart with their counts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._rules = [parse_rule(each) for each in json.loads(store.get_meta("faults") or "[]")]

    def replace(self, given: list[dict[str, Any]]) -> None:
        """Put these rules in force instead of the old ones.

        Raises ValueError, and changes nothing, if one is wrong.
        """
        rules = [parse_rule(each) for each in given]
        with self._lock:
            self._rules = rules
            self._save()

    def describe(self) -> list[dict[str, Any]]:
        """The rules in force with their counts."""
        with self._lock:
            return [each.describe() for each in self._rules]

    def watches(self, point: str) -> bool:
        """Whether any rule is about this operation: a cheap look before a subject is put together."""
        return any(point in each.on for each in self._rules)

    def strike(
        self, point: str, subject: str, *, actions: set[str], custom_id: str | None = None
    ) -> list[Rule]:
        """The rules that strike now, in order; counted."""
        with self._lock:
            struck = [
                each
                for each in self._rules
                if point in each.on and each.do in actions and each.strikes(subject, custom_id)
            ]
            # Lines come by the thousand: their counts are saved with each chunk, by `save`.
            if struck and point != "line":
                self._save()
            return struck

    def save(self) -> None:
        """Keep the counts."""
        with self._lock:
            self._save()

    def _save(self) -> None:
        self._store.set_meta("faults", json.dumps([each.describe() for each in self._rules]))
