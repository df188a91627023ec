"""A small corpus on a real ledger and emulator, and runs over it, without Airflow in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include.contracts import RunRef
from include.indexes.live import find_pointer
from include.settings import Settings
from include.workloads import steps
from include.workloads.clients import services as environment_services
from include.workloads.plan import Plan, Request
from include.workloads.report import Report
from include.workloads.services import Services
from tests.conftest import Emulator

YAML = """\
corpus: letters
source: {kind: jsonl, url: "{storage_root}/sources/*.jsonl"}
chunking: {tokens: 60, overlap: 8}
embedding: {model: text-embedding-3-small, dimensions: 32}
"""


@pytest.fixture
def world(
    tmp_path: Path, ledger_url: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    corpora = tmp_path / "corpora"
    corpora.mkdir()
    (corpora / "letters.yaml").write_text(YAML)
    connection = {"host": emulator.openai_url, "password": "k", "extra": {"service": "emulator"}}
    monkeypatch.setenv("AIRFLOW_CONN_OPENAI_DEFAULT", json.dumps(connection))
    settings = Settings(
        storage_root=f"file://{tmp_path}/storage", ledger_url=ledger_url, corpora_dir=str(corpora)
    )
    yield World(environment_services(settings), emulator, corpora)


class World:
    """A corpus of a few documents, and runs over it."""

    def __init__(self, services: Services, emulator: Emulator, corpora: Path) -> None:
        self.services = services
        self.emulator = emulator
        self.corpora = corpora
        self.runs = 0

    def write(self, texts: dict[str, str]) -> None:
        rows = "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())
        self.services.storage.write_bytes("sources/all.jsonl", rows.encode())

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

    def begin(self, **request: Any) -> tuple[RunRef, list[str]]:
        """A run up to its estimate."""
        self.runs += 1
        name = f"run-{self.runs}"
        uri = f"runs/initial_ingest/letters/{name}"
        ref = self.ref = RunRef(f"initial_ingest__letters/{name}", "initial_ingest", "letters", uri)
        ranges = steps.prepare(self.services, ref, Request(**request))
        steps.estimate(self.services, ref)
        return ref, ranges

    def send(self, ref: RunRef) -> None:
        """Probe, pack, submit, wait and land, and once more what failed."""
        steps.probe(self.services, ref)
        for pack in (steps.pack, steps.pack_retry):
            for part in pack(self.services, ref):
                assert steps.submit(self.services, ref, part) is None
                self.emulator.advance(3600)
                assert steps.watch(self.services, ref, part) is None
                steps.land(self.services, ref, part)
        steps.dead_letters(self.services, ref)

    def end(self, ref: RunRef, ranges: list[str]) -> Report:
        """Upsert, reconcile, publish, report."""
        for part in ranges:
            steps.upsert(self.services, ref, part)
        steps.reconcile(self.services, ref)
        steps.publish(self.services, ref)
        report = steps.report(self.services, ref)
        assert report is not None
        return report

    @property
    def published(self) -> bool:
        return find_pointer(self.services.storage, "letters") is not None
