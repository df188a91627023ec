"""Two runs at once over overlapping, unequal texts, their packs forced to interleave: each item is paid once.

The first run's `pack` is stopped at each of its calls while the second run packs, or even sends, waits
and lands; then it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.emulators import Emulator
from tests.faults.gate import Call
from tests.faults.promises import broken
from tests.faults.workers import wait_until
from tests.faults.world import Run, Saved, World

FIRST = {name: f"the text of {name}" for name in ("alone", "leaving", "shared", "sharing")}
SECOND = {
    **{name: FIRST[name] for name in ("alone", "shared", "sharing")},
    "alone": "another text of alone",
    "late": "the text of late",
    "copy": FIRST["leaving"],
}
DOCUMENTS = {
    name: [texts[name] for texts in (FIRST, SECOND) if name in texts] + ([] if name in SECOND else [""])
    for name in {**FIRST, **SECOND}
}
SAMPLE = 4


@dataclass
class Begun:
    """Two runs before their packs, kept, and the calls of the first one's pack."""

    world: World
    saved: Saved
    first: Run
    second: Run
    calls: list[Call]


@pytest.fixture(scope="module")
def begun(
    tmp_path_factory: pytest.TempPathFactory,
    warm: Path,
    shared_emulator: Emulator,
    postgres_url: str,
    ledger_template: str,
) -> Iterator[Begun]:
    shared_emulator.faults()
    world = World(tmp_path_factory.mktemp("two"), warm, shared_emulator, postgres_url)
    first, second = world.run(), world.run()
    with world.worker() as worker:
        for run, texts in ((first, FIRST), (second, SECOND)):
            world.write(texts)
            world.go(worker, run, until="pack")
    saved = world.save()
    with world.gated_worker() as (worker, gate):
        world.begin(worker, first.copy())
        worker.finish()
        calls = list(gate.calls)
    yield Begun(world, saved, first, second, calls)
    world.close()


@pytest.mark.parametrize("until", ["submit shard 1 of 1", "pack_retry"])
def test_a_pack_that_is_overtaken_leaves_out_what_the_other_run_asks(begun: Begun, until: str) -> None:
    step = max(1, len(begun.calls) // SAMPLE)
    judge(begun, begun.calls[step // 2 :: step], until)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("until", ["submit shard 1 of 1", "pack_retry"])
def test_a_pack_that_is_overtaken_anywhere_leaves_out_what_the_other_run_asks(
    begun: Begun, until: str
) -> None:
    judge(begun, begun.calls, until)


def judge(begun: Begun, calls: list[Call], until: str) -> None:
    assert calls
    wrong = {str(call): found for call in calls if (found := overtaken(begun, call, until))}
    assert wrong == {}, f"{len(wrong)} of {len(calls)} calls"


def overtaken(begun: Begun, call: Call, until: str) -> list[str]:
    """What is broken after the second run overtook the first one's pack at this call."""
    world, first, second = begun.world, begun.first.copy(), begun.second.copy()
    world.restore(begun.saved)
    with world.gated_worker() as (slow, gate), world.worker() as fast:
        gate.stop(call.kind, call.nth, "before")
        world.begin(slow, first)
        slow.wait(lambda: gate.caught is not None)
        assert gate.caught == call, slow.log
        world.begin(fast, second)
        # Where the first run holds the row that both must change, the second can only wait for it.
        wait_until(lambda: fast.ended() or waits_for_a_lock(world), "the second run's pack comes on")
        if fast.ended():
            world.end(fast, second)
            world.go(fast, second, until=until)
            gate.open()
            world.end(slow, first)
        else:
            gate.open()
            world.end(slow, first)
            world.end(fast, second)
        world.go(slow, first)
        world.go(fast, second)
    return broken(world, DOCUMENTS)


def waits_for_a_lock(world: World) -> bool:
    """Whether a process waits for another in this ledger."""
    found = world.rows(
        "select count(*) as waiting from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    return bool(found[0]["waiting"])
