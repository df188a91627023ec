"""A small corpus on a real ledger and emulator, and runs over it, without Airflow in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include.batches import dead_letters, runs
from include.batches.dead_letters import DeadLetter, LetterState, Which
from include.contracts import Limits, RunRef
from include.indexes.live import find_pointer
from include.ledger import clock
from include.settings import Settings
from include.workloads import steps
from include.workloads.clients import services as environment_services
from include.workloads.plan import Plan, Request
from include.workloads.replay import Change, Replay
from include.workloads.report import Report
from include.workloads.services import Services
from include.workloads.steps import batching
from tests.emulators import Tenant

YAML = """\
corpus: letters
source: {kind: jsonl, url: "{storage_root}/sources/*.jsonl"}
chunking: {tokens: 60, overlap: 8}
embedding: {model: text-embedding-3-small, dimensions: 32}
"""


@pytest.fixture
def world(
    tmp_path: Path, ledger_url: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    corpora = tmp_path / "corpora"
    corpora.mkdir()
    (corpora / "letters.yaml").write_text(YAML)
    settings = Settings(
        storage_root=f"file://{tmp_path}/storage", ledger_url=ledger_url, corpora_dir=str(corpora)
    )
    world = World(environment_services(settings), tenant, corpora, monkeypatch)
    world.use_key("k")
    yield world


class World:
    """A corpus of a few documents, and runs over it."""

    def __init__(
        self, services: Services, emulator: Tenant, corpora: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self.services = services
        self._patch = patch
        self.emulator = emulator
        self.corpora = corpora
        self.runs = 0

    def write(self, texts: dict[str, str]) -> None:
        rows = "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())
        self.services.storage.write_bytes("sources/all.jsonl", rows.encode())

    def limit(self, **limits: int) -> None:
        """Give the account limits of its own, as `limits.yaml` would."""
        usual = {"requests_per_batch": 50_000, "bytes_per_batch": 200_000_000}
        allowed = Limits(**{**usual, **limits})
        self._patch.setattr(batching, "limits_for", lambda *_, **__: allowed)

    def use_key(self, key: str) -> None:
        """Put another key into the connection."""
        project = {"project": self.emulator.project}
        self._connect("openai", self.emulator.openai_url, key, openai_client_kwargs=project)

    def use_claude(self) -> None:
        """Add a connection to the same emulator's Anthropic."""
        headers = {"default_headers": {"anthropic-workspace-id": self.emulator.project}}
        self._connect("anthropic", self.emulator.anthropic_url, "k", anthropic_client_kwargs=headers)

    def _connect(self, kind: str, host: str, key: str, **extra: Any) -> None:
        given = {"host": host, "password": key, "extra": {"service": "emulator", **extra}}
        self._patch.setenv(f"AIRFLOW_CONN_{kind.upper()}_DEFAULT", json.dumps(given))

    def advance(self, seconds: float) -> None:
        """Move the ledger's clock and the emulator's together."""
        with self.services.ledger() as ledger:
            clock.advance(ledger, seconds)
        self.emulator.advance(seconds)

    def put(self, name: str, *records: dict[str, Any] | bytes) -> None:
        """Write these records, or raw lines, as `sources/{name}.jsonl`."""
        lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
        self.services.storage.write_bytes(f"sources/{name}.jsonl", b"".join(line + b"\n" for line in lines))

    def configure(self, yaml: str) -> None:
        """Replace the corpus's YAML."""
        (self.corpora / "letters.yaml").write_text(yaml)

    def run(self, **request: Any) -> Report:
        """A whole run."""
        ref, ranges = self.begin(**request)
        self.send(ref)
        return self.end(ref, ranges)

    def charges(self) -> dict[str, int]:
        """How often each line was paid for, by its custom_id, as the emulator has it."""
        return dict(self.emulator.state()["charges"])

    def rows(self, ref: RunRef) -> list[dict[str, Any]]:
        """All rows of the index that a run writes to, metadata read."""
        plan = Plan.load(self.services.storage, ref.uri)
        index = plan.corpus_config().index
        store = self.services.store(index.store, index.url)
        ids = [str(name) for part in store.ids(plan.version) for name in part["chunk_id"].to_pylist()]
        found = store.fetch(plan.version, ids).to_pylist()
        return [{**row, "metadata": json.loads(row["metadata"])} for row in found]

    def begin(self, workload: str = "initial_ingest", **request: Any) -> tuple[RunRef, list[str]]:
        """A run up to its estimate: an ingest, with `replay` a replay, or one of another workload."""
        self.runs += 1
        name = f"run-{self.runs}"
        workload = "dead_letter_replay" if request.get("replay") else workload
        uri = f"runs/{workload}/letters/{name}"
        ref = self.ref = RunRef(f"{workload}__letters/{name}", workload, "letters", uri)
        ranges = steps.prepare(self.services, ref, Request(**request))
        steps.estimate(self.services, ref)
        return ref, ranges

    def packed(self, **request: Any) -> tuple[RunRef, list[str], list[str]]:
        """A run that is about to submit: the run, the parts of `upsert`, the parts to submit."""
        ref, ranges = self.begin(**request)
        steps.probe(self.services, ref)
        return ref, ranges, steps.pack(self.services, ref)

    def send(self, ref: RunRef) -> None:
        """Probe, pack, submit, wait and land, and once more what failed."""
        steps.probe(self.services, ref)
        for pack in (steps.pack, steps.pack_retry):
            for part in pack(self.services, ref):
                self.process(ref, part)
        steps.dead_letters(self.services, ref)

    def process(self, ref: RunRef, part: str) -> None:
        """Submit a part, let its batches end, and land them."""
        assert steps.submit(self.services, ref, part) is None
        self.emulator.advance(3600)
        assert steps.watch(self.services, ref, part) is None
        steps.land(self.services, ref, part)

    def end(self, ref: RunRef, ranges: list[str]) -> Report:
        """Upsert, reconcile, publish, report."""
        for part in ranges:
            steps.upsert(self.services, ref, part)
        steps.reconcile(self.services, ref)
        steps.publish(self.services, ref)
        report = steps.report(self.services, ref)
        assert report is not None
        return report

    def replay(self, change: Change | None = None, **which: Any) -> Report:
        """A whole replay of the letters described."""
        return self.run(replay=Replay(Which(**which), change or Change()))

    def letters(self, state: LetterState | None = None) -> list[DeadLetter]:
        """The dead letters in this state, or all, the newest first."""
        with self.services.ledger() as ledger:
            return dead_letters.find(ledger, state=state, limit=10_000)

    def counts(self, ref: RunRef, step: str) -> dict[str, Any]:
        """What a step of a run recorded."""
        with self.services.ledger() as ledger:
            return dict(runs.get(ledger, ref.run).counts[step])

    @property
    def published(self) -> bool:
        return find_pointer(self.services.storage, "letters") is not None
