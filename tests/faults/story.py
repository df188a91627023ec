"""One run in which everything happens that a run can meet, as the tests that kill it need it.

Before it: an index is live, one letter is open, and a run that has not sent anything yet holds some of
the items. The run itself sees new, changed, deleted, equal and unchanged documents; an item whose first
attempt fails, one that always fails, one that can't succeed, and one whose letter closes.
"""

from __future__ import annotations

from tests.faults.world import INGEST, Run, World

FIRST = {
    "kept": "a text that stays as it is",
    "changing": "the first text of a document that changes",
    "going": "a text whose document is deleted",
    "unlucky": "unlucky at first, and answered in the next run",
}
SHARED = {
    "shared": "a text that two runs want at once",
    "sharing": "another text that two runs want at once",
}
SECOND = {
    "kept": FIRST["kept"],
    "changing": "the second text of a document that changes",
    "unlucky": FIRST["unlucky"],
    **SHARED,
    "new": "a text that is new",
    "twin": "one text that two documents have",
    "other twin": "one text that two documents have",
    "flaky": "flaky: fails once and is answered then",
    "hopeless": "hopeless: never answered",
    "poison": "poison: refused for what it is",
}
DOCUMENTS = {
    name: [text for text in (FIRST.get(name), SECOND.get(name, "")) if text is not None]
    for name in {**FIRST, **SECOND}
}
LETTERS_BEFORE = {
    "on": "line",
    "when": {"match": r"\bunlucky\b"},
    "do": "line_error",
    "status": 500,
    "code": "server_error",
}
FAULTS = (
    {
        "on": "line",
        "when": {"match": r"\bflaky\b", "times": 1},
        "do": "line_error",
        "status": 500,
        "code": "server_error",
    },
    {
        "on": "line",
        "when": {"match": r"\bhopeless\b"},
        "do": "line_error",
        "status": 500,
        "code": "server_error",
    },
    {
        "on": "line",
        "when": {"match": r"\bpoison\b"},
        "do": "line_error",
        "status": 400,
        "code": "content_policy_violation",
    },
)


def tell_the_beginning(world: World, workload: str = INGEST) -> Run:
    """All that is before the run; returns the other run, which has packed and not sent.

    An ingest reads what is written; any other workload reads what an ingest has brought in.
    """

    def write(texts: dict[str, str]) -> None:
        world.write(texts)
        if workload != INGEST:
            world.go(worker, world.run())

    with world.worker() as worker:
        write(FIRST)
        world.emulator.faults(LETTERS_BEFORE)
        world.go(worker, world.run(workload))
        world.emulator.faults()
        write({**FIRST, **SHARED})
        other = world.run(workload)
        world.go(worker, other, "submit shard 1 of 1")
        write(SECOND)
    return other
