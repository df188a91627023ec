"""One corpus on a ledger, storage, index and account of its own, and runs over it as Airflow has them.

Every document is short enough to be one chunk, so that what the index must hold is known without our
own code: a document's text, and the vector that the emulator gives for it.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
from openai import OpenAI

import tests.faults.held_files  # noqa: F401  registers held://
from include.batches import dead_letters, runs
from include.batches.cancel import cancel_run
from include.contracts import RunRef
from include.ledger import clock
from include.ledger.connect import connect
from include.providers.openai import OpenAIBatches
from include.storage import Storage
from tests.conftest import database_url
from tests.emulators import Emulator
from tests.faults.gate import Gate
from tests.faults.held_ledger import LedgerProxy
from tests.faults.warm import CHUNK_OVERLAP, CHUNK_TOKENS, Place
from tests.faults.workers import Worker

CORPUS = "letters"
INGEST, REPLAY, EXTRACTION = "initial_ingest", "dead_letter_replay", "metadata_extraction"
ACCOUNT = "letters"
DIMENSIONS = 16
YAML = """\
corpus: letters
source: {{kind: jsonl, url: "{{storage_root}}/sources/*.jsonl"}}
chunking: {{tokens: {tokens}, overlap: {overlap}}}
embedding: {{model: text-embedding-3-small, dimensions: {dimensions}}}
index: {{store: {store}, url: "file://{folder}/index"}}
extraction: {{provider: anthropic, model: claude-haiku-4-5, max_tokens: 400}}
"""
BATCH_SECONDS = 600.0
"""What passes when a run waits for batches: by then each that isn't told otherwise has ended. Doubled
where it hasn't."""

WAITS = 200
"""So often a task may come back because it waits, before a test says that it waits for ever."""

Books = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A task of a run: a step and, where it is mapped, its part."""

    step: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        part = "" if self.step == "prepare" else " ".join(map(str, self.arguments))
        return f"{self.step} {part}".strip()


STAGES = (
    "prepare",
    "estimate",
    "probe",
    "pack",
    "submit",
    "watch",
    "land",
    "pack_retry",
    "submit again",
    "watch again",
    "land again",
    "dead_letters",
    "upsert",
    "reconcile",
    "publish",
    "report",
)
"""The tasks of the DAG in their order. Mapped ones are several; the second group is `… again`."""
_MAPPED_OVER = {"upsert": "prepare"} | {
    f"{step}{round}": pack
    for step in ("submit", "watch", "land")
    for round, pack in (("", "pack"), (" again", "pack_retry"))
}


@dataclass
class Run:
    """A run on its way: what is next, how often that came back because it waits, and what tasks returned."""

    ref: RunRef
    request: dict[str, Any] = field(default_factory=dict)
    stage: int = 0
    part: int = 0
    waited: int = 0
    returned: dict[str, list[str]] = field(default_factory=dict)

    def copy(self) -> Run:
        """The same run at the same place."""
        return replace(self, returned=dict(self.returned))

    @property
    def next(self) -> Task | None:
        """The task that is due; None when the run is over."""
        while self.stage < len(STAGES):
            stage = STAGES[self.stage]
            over = _MAPPED_OVER.get(stage)
            if over is None:
                return Task(stage, (self.request,) if stage == "prepare" else ())
            parts = self.returned[over]
            if self.part < len(parts):
                return Task(stage.removesuffix(" again"), (parts[self.part],))
            self.stage, self.part = self.stage + 1, 0
        return None

    @property
    def here(self) -> str:
        """Where the run is: the task that is due, and which time it is begun where it waited before."""
        return f"{self.next}{f', time {self.waited + 1}' if self.waited else ''}"

    def done(self, result: Any) -> None:
        """The task that was due has succeeded."""
        self.waited = 0
        stage = STAGES[self.stage]
        if isinstance(result, list):
            self.returned[stage] = result
        if stage in _MAPPED_OVER:
            self.part += 1
        else:
            self.stage += 1

    def clear(self, stage: str) -> None:
        """Begin again from this stage, as a person does who clears a task with all downstream."""
        if STAGES.index(stage) <= self.stage:
            self.stage, self.part, self.waited = STAGES.index(stage), 0, 0


class World:
    """A corpus, its runs, and the processes that work on them."""

    def __init__(
        self, folder: Path, warm: Path, emulator: Emulator, postgres_url: str, *, protocol: str = "held"
    ) -> None:
        self.folder = folder
        self.warm = warm
        self.emulator = emulator
        self.project = f"proj_{uuid.uuid4().hex[:12]}"
        self.storage = Storage(f"{protocol}://{folder}/storage")
        self._postgres_url = postgres_url
        self._database = f"world_{uuid.uuid4().hex[:12]}"
        self.ledger_url = database_url(postgres_url, self._database)
        self._databases = {self._database}
        self._runs = 0
        for name in ("corpora", "storage", "index", "scratch"):
            (folder / name).mkdir(parents=True)
        store = "tests.faults.held_index.HeldLance"
        cut = {"tokens": CHUNK_TOKENS, "overlap": CHUNK_OVERLAP}
        yaml = YAML.format(dimensions=DIMENSIONS, folder=folder, store=store, **cut)
        (folder / "corpora" / "letters.yaml").write_text(yaml)
        self._create(self._database, "ledger_template")

    # ----------------------------------------------------------------- documents and runs

    def write(self, texts: Mapping[str, str]) -> None:
        """What the source holds now: the documents' texts by their ids."""
        rows = "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())
        self.storage.write_bytes("sources/all.jsonl", rows.encode())

    def run(self, workload: str = INGEST, **request: Any) -> Run:
        """A new run, nothing of it done. A replay asks all open dead letters again."""
        self._runs += 1
        name = f"run-{self._runs}"
        uri = f"runs/{workload}/{CORPUS}/{name}"
        return Run(RunRef(f"{workload}__{CORPUS}/{name}", workload, CORPUS, uri), request)

    def begin(self, worker: Worker, run: Run) -> None:
        """Begin the task that is due."""
        task = run.next
        assert task is not None
        worker.start(task.step, run.ref, *task.arguments)

    def end(self, worker: Worker, run: Run) -> bool:
        """Take what the task came to. False where it waits: its time must pass, and it comes again."""
        result = worker.finish()
        task = run.next
        assert task is not None
        if task.step in ("submit", "watch") and result is not None:
            self.advance(result["seconds"] or BATCH_SECONDS * 2 ** min(run.waited, 5))
            run.waited += 1
            return False
        run.done(result)
        return True

    def go(self, worker: Worker, run: Run, until: str | Container[str] = ()) -> None:
        """Do a run's tasks until it is there, or at one of several places (`Run.here`), or to its end."""
        places = (until,) if isinstance(until, str) else until
        while run.next is not None and run.here not in places:
            self.begin(worker, run)
            self.end(worker, run)
            assert run.waited < WAITS, f"{run.ref.run} waits for ever at {run.next}:\n{worker.log[-3000:]}"

    def resume(self, run: Run) -> None:
        """What a person does once that is mended for which a run stopped sending."""
        with connect(self.ledger_url) as ledger:
            runs.resume(ledger, run.ref.run)

    def cancel(self, run: Run) -> None:
        """What the command `cancel` does."""
        with connect(self.ledger_url) as ledger:
            cancel_run(ledger, self.storage, self.provider, run.ref.run)

    def discard(self, letters: int) -> None:
        """A person gives up on some open dead letters."""
        with connect(self.ledger_url) as ledger:
            found = dead_letters.find(ledger, corpus=CORPUS, limit=letters)
            dead_letters.discard(ledger, [letter.id for letter in found], "a test gave up on it")

    def advance(self, seconds: float) -> None:
        """Let time pass, for the ledger and for the provider."""
        with connect(self.ledger_url) as ledger:
            clock.advance(ledger, seconds)
        self.emulator.advance(seconds)

    # ----------------------------------------------------------------- processes

    def worker(
        self, gate: Gate | None = None, ledger_url: str | None = None, most_bytes: int | None = None
    ) -> Worker:
        """A process for some steps, at a gate or at none."""
        settings = {
            "storage_root": self.storage.root,
            "ledger_url": ledger_url or self.ledger_url,
            "corpora_dir": str(self.folder / "corpora"),
            "poll_seconds": 10,
            "admission_seconds": 10,
            "unknown_grace_seconds": 100,
            "file_wait_seconds": 0.01,
        }
        workspace = {"anthropic-workspace-id": self.project}
        openai = self._connection(
            self.emulator.openai_url,
            openai_client_kwargs={"project": self.project, "max_retries": 0},
        )
        anthropic = self._connection(
            self.emulator.anthropic_url,
            anthropic_client_kwargs={"default_headers": workspace, "max_retries": 0},
        )
        return Worker(
            self.warm,
            Place(
                settings=settings,
                environment={
                    "AIRFLOW_CONN_OPENAI_DEFAULT": openai,
                    "AIRFLOW_CONN_ANTHROPIC_DEFAULT": anthropic,
                },
                folder=str(self.folder / "scratch"),
                gate=str(gate.path) if gate else "",
                most_bytes=most_bytes,
            ),
        )

    def _connection(self, host: str, **extra: Any) -> str:
        given = {"service": "emulator", "account": ACCOUNT, **extra}
        return json.dumps({"host": host, "password": "k", "extra": given})

    @contextmanager
    def gated_worker(self) -> Iterator[tuple[Worker, Gate]]:
        """A process whose changes of storage, index and ledger pass a gate."""
        folder = self.folder / "scratch" / uuid.uuid4().hex[:8]
        folder.mkdir()
        gate = Gate(folder)
        proxy = LedgerProxy(self.ledger_url, gate)
        try:
            with self.worker(gate, proxy.url) as worker:
                yield worker, gate
        finally:
            gate.close()
            proxy.close()

    def release(self) -> None:
        """Let go on whatever the emulator holds."""
        httpx.delete(f"{self.emulator.url}/_control/hold").raise_for_status()

    # ----------------------------------------------------------------- the books

    def books(self) -> Books:
        """The emulator's books of this account; `requests` counts everybody's calls."""
        url = f"{self.emulator.url}/_control/state"
        return dict(httpx.get(url, params={"project": self.project}, timeout=30).raise_for_status().json())

    @property
    def provider(self) -> OpenAIBatches:
        """This account, for a test that looks at it as our code does."""
        client = OpenAI(base_url=self.emulator.openai_url, api_key="k", project=self.project)
        return OpenAIBatches(client, None, account=ACCOUNT)

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """What a query of the ledger gives."""
        with connect(self.ledger_url) as ledger:
            return ledger.execute(sql.encode(), parameters).fetchall()

    # ----------------------------------------------------------------- going back

    def save(self) -> Saved:
        """Keep ledger, storage and index as they are. Nothing may be on its way at the provider."""
        name = f"{self._database}_saved"
        self._databases.add(name)
        self._create(name, self._database)
        copy = self.folder / "saved"
        for part in ("storage", "index"):
            shutil.copytree(self.folder / part, copy / part)
        return Saved(name, copy, self._runs)

    def restore(self, saved: Saved) -> None:
        """Be again as when it was saved, in a new project at the provider."""
        self._create(self._database, saved.database)
        for part in ("storage", "index"):
            shutil.rmtree(self.folder / part)
            shutil.copytree(saved.folder / part, self.folder / part)
        self._runs = saved.runs
        self.project = f"proj_{uuid.uuid4().hex[:12]}"

    def close(self) -> None:
        """Drop the databases."""
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            for name in self._databases:
                connection.execute(f"drop database if exists {name} with (force)".encode())

    def _create(self, database: str, template: str) -> None:
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            connection.execute(f"drop database if exists {database} with (force)".encode())
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (template,)
            )
            connection.execute(f"create database {database} template {template}".encode())


@dataclass(frozen=True)
class Saved:
    """A world that was kept."""

    database: str
    folder: Path
    runs: int
