"""Random sequences of everything that can happen to runs, from a seed that tells them again.

What it does is chosen from `ACTIONS` by their weights: runs begin, go on, are killed at a call, cleared
back to an earlier task, or work at the same time as another; documents change; the provider has faults;
time passes. `settle` then does what a person does at the end: no more faults, failed tasks run again or
cleared as their errors say, one last run over all documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httpx

from include.errors import ProviderError
from tests.faults.workers import Killed, StepFailed, Worker
from tests.faults.world import REPLAY, STAGES, Run, World

NAMES = [f"document-{number}" for number in range(10)]
TEXTS = [f"the text of number {number}, in some words" for number in range(24)]
CALLS = {
    "probe": ("embeddings",),
    "submit": ("batches.create", "batches.create", "files.create", "batches.list", "files.retrieve"),
    "watch": ("batches.retrieve",),
    "land": ("files.content", "batches.retrieve", "files.retrieve", "files.delete"),
}
"""What the steps ask the provider; the paid call more often."""
MOST_RUNS = 2
REPLAYING = {"workload": REPLAY}
CLEARED = {
    "ItemsTaken": "pack",
    "LedgerError": "pack",
    "PlanMissing": "prepare",
    "PublishRefused": "upsert",
    "ReconcileError": "pack_retry",
}
"""The task that a person clears for an error, as its message says."""
TRIES = 12
"""So often a task may fail, without faults, before the driver gives up on it."""


def _call_faults(chance: random.Random) -> dict[str, Any]:
    """A fault of a call, for a few times."""
    call = chance.choice([call for calls in CALLS.values() for call in calls])
    rule: dict[str, Any] = {"on": call, "when": {"times": chance.randint(1, 4)}}
    kinds: list[dict[str, Any]] = [
        {"do": "status", "status": 500},
        {"do": "status", "status": 503, "body": "<html>unavailable</html>"},
        {"do": "status", "status": 429, "headers": {"retry-after": "3600"}},
        {"do": "status", "status": 404},
        {"do": "status", "status": 409},
        {"do": "status", "status": 401},
        {"do": "drop_before"},
        {"do": "drop_after"},
        {"do": "alter", "fields": {"status": "pondering"}},
        {"do": "cut", "bytes": chance.randint(0, 400)},
        {"do": "shorten", "bytes": chance.randint(0, 400)},
    ]
    return {**rule, **chance.choice(kinds)}


def _line_faults(chance: random.Random) -> dict[str, Any]:
    """A fault of the requests that ask about some texts."""
    rule: dict[str, Any] = {"on": "line", "when": {"match": f"number \\d?{chance.randint(0, 9)},"}}
    if chance.random() < 0.6:
        rule["when"]["times"] = chance.randint(1, 3)
    kinds: list[dict[str, Any]] = [
        {"do": "line_error", "status": 500, "code": "server_error"},
        {"do": "line_error", "status": 429, "code": "rate_limit_exceeded"},
        {"do": "line_error", "status": 400, "code": "content_policy_violation"},
        {"do": "line_error", "code": "batch_expired"},
        {"do": "line_omit"},
        {"do": "line_duplicate"},
        {"do": "line_foreign"},
        {"do": "line_body", "body": {"data": []}},
    ]
    return {**rule, **chance.choice(kinds)}


def _batch_faults(chance: random.Random) -> dict[str, Any]:
    """A fault of the next batches."""
    rule: dict[str, Any] = {"on": "batch", "when": {"times": chance.randint(1, 2)}}
    kinds: list[dict[str, Any]] = [
        {"do": "expire_at", "fraction": chance.choice([0.0, 0.3, 0.7])},
        {"do": "fail_batch", "code": "token_limit_exceeded", "message": "Enqueued token limit reached"},
        {"do": "fail_batch", "code": "invalid_request"},
        {"do": "pace", "validating_seconds": 200_000},
        {"do": "pace", "batch_seconds": 20_000},
    ]
    return {**rule, **chance.choice(kinds)}


class Driver:
    """Drives one world. `story` says what was done, for whoever must understand a failure."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.story: list[str] = []
        self.texts: dict[str, str] = {}
        self.history: dict[str, list[str]] = {}
        self.active: list[Run] = []
        self.runs = 0
        self.long_waits = 3

    def play(self, actions: int) -> None:
        """Do so many random things, and settle."""
        self.change()
        self.begin()
        for _ in range(actions):
            (action,) = self.chance.choices([act for act, _ in ACTIONS], [weight for _, weight in ACTIONS])
            action(self)
        self.settle()

    # ----------------------------------------------------------------- what can happen

    def change(self) -> None:
        """Documents appear, change, go, come back; texts are shared, and return."""
        for name in self.chance.sample(NAMES, self.chance.randint(1, 5)):
            text = "" if self.chance.random() < 0.25 else self.chance.choice(TEXTS)
            if text:
                self.texts[name] = text
            else:
                self.texts.pop(name, None)
            self.history.setdefault(name, []).append(text)
        if not self.texts:
            # A source that gives nothing at all is taken for broken.
            self.texts[NAMES[0]] = TEXTS[0]
            self.history.setdefault(NAMES[0], []).append(TEXTS[0])
        self._tell(f"change to {self.texts}")
        self.world.write(self.texts)

    def begin(self) -> None:
        """A new run, over all documents or some."""
        if len(self.active) == MOST_RUNS:
            return
        request = self.chance.choice([{}, {}, {}, {"limit": 3}, {"sample": 4}, REPLAYING])
        self.active.append(self.world.run(**request))
        self.runs += 1
        self._tell(f"begin {self.active[-1].ref.run} {request}")

    def step(self) -> None:
        """A run's next task, with nobody in its way but the provider's faults."""
        run = self._any()
        if run is not None:
            with self.world.worker() as worker:
                self._do(worker, run)

    def kill(self) -> None:
        """A run's next task, killed at some call if it comes to it."""
        run = self._any()
        if run is None:
            return
        assert run.next is not None
        calls = CALLS.get(run.next.step, ())
        kind = self.chance.choice(["ledger", "storage", "index", *["provider"] * 2 * bool(calls)])
        when = self.chance.choice(["before", "after"])
        nth = self.chance.randint(1, 12)
        with self.world.gated_worker() as (worker, gate):
            caught: Callable[[], bool]
            if kind == "provider":
                caught = self._hold(self.chance.choice(calls), when)
            else:
                gate.stop(kind, nth, when)

                def caught() -> bool:
                    return gate.caught is not None

            here = run.here
            self.world.begin(worker, run)
            worker.wait(caught)
            if caught():
                self._tell(f"kill {run.ref.run} {here} at {gate.caught or kind} {when}")
                worker.kill()
                gate.open()
                self.world.release()
            else:
                self.world.release()
                self._take(worker, run, here)
                self._drop_ended()

    def both(self) -> None:
        """The next tasks of two runs at the same time."""
        if len(self.active) < MOST_RUNS:
            return
        with self.world.worker() as one, self.world.worker() as two:
            pairs = list(zip((one, two), self.active, strict=True))
            for worker, run in pairs:
                self.world.begin(worker, run)
            for worker, run in pairs:
                self._take(worker, run, run.here)
        self._drop_ended()

    def clear(self) -> None:
        """A person clears a task and all downstream of it."""
        run = self._any()
        if run is not None and run.stage > 1:
            stage = self.chance.choice(STAGES[: run.stage])
            self._tell(f"clear {run.ref.run} to {stage}")
            run.clear(stage)

    def cancel(self) -> None:
        """A person cancels a run: its tasks do nothing more."""
        run = self._any()
        if run is not None and run.stage > STAGES.index("pack"):
            self._tell(f"cancel {run.ref.run}")
            try:
                self.world.cancel(run)
            except ProviderError as error:
                self._tell(f"it can't be cancelled: {error}")
            else:
                self.active.remove(run)

    def discard(self) -> None:
        """A person gives up on a few dead letters."""
        self._tell("discard letters")
        self.world.discard(2)

    def fault(self) -> None:
        """The provider has other faults than before."""
        makers = [_call_faults, _line_faults, _batch_faults]
        rules = [self.chance.choice(makers)(self.chance) for _ in range(self.chance.randint(1, 3))]
        self._tell(f"faults {rules}")
        self.world.emulator.faults(*rules)

    def calm(self) -> None:
        """The provider has no faults."""
        self._tell("no faults")
        self.world.emulator.faults()

    def wait(self) -> None:
        """Time passes: minutes, or a few times more than any batch may take."""
        seconds = self.chance.choice([30, 300, 1000, 4000, 40_000])
        if seconds > 10_000:
            self.long_waits -= 1
            if self.long_waits < 0:
                return
        self._tell(f"{seconds} s pass")
        self.world.advance(seconds)

    # ----------------------------------------------------------------- the end

    def settle(self) -> None:
        """No more faults, every run to its end, and one last run over all documents."""
        self.calm()
        for run in [*self.active, self.world.run()]:
            self._tell(f"finish {run.ref.run}")
            self._finish(run)
        self.active = []

    def _finish(self, run: Run) -> None:
        failed = 0
        while run.next is not None:
            with self.world.worker() as worker:
                try:
                    self.world.go(worker, run)
                except StepFailed as failure:
                    failed += 1
                    self._tell(f"{run.ref.run} {failure}")
                    if failed > TRIES:
                        raise
                    self._mend(run, failure)

    def _mend(self, run: Run, failure: StepFailed) -> None:
        """What a person does about a failed task: what its error says, or run it again a while later."""
        if failure.kind == "RunStopped":
            self.world.resume(run)
        elif failure.kind in CLEARED:
            run.clear(CLEARED[failure.kind])
        else:
            self.world.advance(120)

    # ----------------------------------------------------------------- helpers

    def _any(self) -> Run | None:
        return self.chance.choice(self.active) if self.active else None

    def _do(self, worker: Worker, run: Run) -> None:
        here = run.here
        self.world.begin(worker, run)
        self._take(worker, run, here)
        self._drop_ended()

    def _take(self, worker: Worker, run: Run, here: str) -> None:
        try:
            self.world.end(worker, run)
            self._tell(f"{run.ref.run} {here}")
        except StepFailed as failure:
            self._tell(f"{run.ref.run} {failure}")
        except Killed:
            self._tell(f"{run.ref.run} {here} ended by itself")
            raise

    def _drop_ended(self) -> None:
        self.active = [run for run in self.active if run.next is not None]

    def _hold(self, operation: str, when: str) -> Callable[[], bool]:
        """Hold the next call of this operation; whether one is held."""
        control = f"{self.world.emulator.url}/_control/hold"
        orphans = self.chance.choice(["drop", "run"])
        given = {"on": operation, "point": when, "times": 1, "orphans": orphans}
        number = httpx.post(control, json=given).raise_for_status().json()["id"]
        return lambda: bool(httpx.get(f"{control}/{number}").raise_for_status().json()["waiting"])

    def _tell(self, what: str) -> None:
        self.story.append(what)


ACTIONS: tuple[tuple[Callable[[Driver], None], int], ...] = (
    (Driver.step, 40),
    (Driver.kill, 20),
    (Driver.both, 10),
    (Driver.begin, 8),
    (Driver.change, 6),
    (Driver.fault, 8),
    (Driver.calm, 3),
    (Driver.clear, 4),
    (Driver.wait, 5),
    (Driver.cancel, 1),
    (Driver.discard, 1),
)
