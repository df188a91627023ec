"""One run in which everything happens that a run can meet, as the tests that kill it need it.

Before it: an index is live, one letter is open, and a run that has not sent anything yet holds some of
the items. The run itself sees new, changed, deleted, equal and unchanged documents; an item whose first
attempt fails, one that always fails, one that can't succeed, and one whose letter closes.
"""

from __future__ import annotations

from tests.faults.world import Run, World

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
    "when": {"match": "^unlucky"},
    "do": "line_error",
    "status": 500,
    "code": "server_error",
}
FAULTS = (
    {
        "on": "line",
        "when": {"match": "^flaky", "times": 1},
        "do": "line_error",
        "status": 500,
        "code": "server_error",
    },
    {"on": "line", "when": {"match": "^hopeless"}, "do": "line_error", "status": 500, "code": "server_error"},
    {
        "on": "line",
        "when": {"match": "^poison"},
        "do": "line_error",
        "status": 400,
        "code": "content_policy_violation",
    },
)


def tell_the_beginning(world: World) -> Run:
    """All that is before the run; returns the other run, which has packed and not sent."""
    world.write(FIRST)
    world.emulator.faults(LETTERS_BEFORE)
    with world.worker() as worker:
        world.go(worker, world.run())
        world.emulator.faults()
        world.write({**FIRST, **SHARED})
        other = world.run()
        world.go(worker, other, "submit shard 1 of 1")
    world.write(SECOND)
    return other
