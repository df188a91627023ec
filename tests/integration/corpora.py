"""Small corpora for the tests that run on a real Airflow: each test has one, with documents of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from include.storage import Storage
from tests.stack import IntegrationStack

YAML = """\
corpus: {name}
source:
  kind: jsonl
  url: "{{storage_root}}/sources/{name}/*.jsonl"
  partition: '(?P<partition>\\d{{4}}-\\d{{2}}-\\d{{2}})'
  metadata: [topic]
chunking: {{tokens: 60, overlap: 8}}
embedding: {{connection: {connection}, model: text-embedding-3-small, dimensions: 64}}
index: {{store: lancedb, url: "{{storage_root}}/lancedb"}}
budget: {{run_usd: {budget}}}
schedules: {{initial_ingest: {cron}}}
"""
EXTRACTION = "extraction: {provider: anthropic, model: claude-haiku-4-5, max_tokens: 300}\n"
PARTITIONS = ("2026-01-01", "2026-01-02", "2026-01-03")


def document(number: int, **fields: Any) -> dict[str, Any]:
    """A document of a few sentences that no other corpus holds."""
    words = " ".join(f"word{number * 31 + n}" for n in range(40))
    return {"id": f"doc-{number}", "title": f"Document {number}", "text": f"{words}.", **fields}


@dataclass
class Corpus:
    """A corpus on the running stack. Its documents lie in dated partitions."""

    stack: IntegrationStack
    name: str
    dag_id: str
    documents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def storage(self) -> Storage:
        return Storage(self.stack.storage_root)

    def write(self, documents: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Write these partitions of the source."""
        for partition, rows in documents.items():
            self.documents[partition] = [dict(row) for row in rows]
            text = "".join(f"{json.dumps(row)}\n" for row in self.documents[partition])
            self.storage.write_bytes(f"sources/{self.name}/{partition}.jsonl", text.encode())

    def run(self, conf: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Run its ingest, as from the page, and return the report."""
        run_id = self.stack.run(self.dag_id, conf, **options)
        return self.stack.report(self.dag_id, run_id)

    def charges(self) -> dict[str, int]:
        """What the emulator was paid for, by custom_id, over all corpora of the session."""
        return dict(self.stack.emulator_state()["charges"])

    def charges_since(self, before: Mapping[str, int]) -> dict[str, int]:
        """What was charged anew."""
        return {key: times for key, times in self.charges().items() if times != before.get(key)}

    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows of the live index, by chunk id."""
        from include.indexes.live import read_pointer
        from include.stores.registry import open_store

        pointer = read_pointer(self.storage, self.name)
        store = open_store(pointer.store, pointer.store_url)
        ids = [str(one) for table in store.ids(pointer.index) for one in table["chunk_id"].to_pylist()]
        return {row["chunk_id"]: row for row in store.fetch(pointer.index, ids).to_pylist()}


def make_corpus(
    stack: IntegrationStack,
    *,
    connection: str = "openai_default",
    budget: str = "5.0",
    per_partition: int = 4,
    scheduled: bool = False,
    extracts: bool = False,
) -> Corpus:
    """A corpus of three partitions, its DAG parsed. A `scheduled` one runs for last night at once; one that
    `extracts` has a metadata extraction."""
    name = f"c{uuid.uuid4().hex[:8]}"
    base = int(name[1:], 16) % 1_000_000 * 1000
    corpus = Corpus(stack, name, "")
    corpus.write(
        {
            partition: [document(base + index * 100 + n, topic=partition) for n in range(per_partition)]
            for index, partition in enumerate(PARTITIONS)
        }
    )
    yaml = YAML.format(
        name=name, connection=connection, budget=budget, cron='"0 2 * * *"' if scheduled else "null"
    )
    corpus.dag_id = stack.add_corpus(name, yaml + (EXTRACTION if extracts else ""))
    return corpus


@contextmanager
def batches_take(stack: IntegrationStack, seconds: float) -> Iterator[None]:
    """Batches created in this block take so many seconds of the emulator's clock."""
    url = f"{stack.emulator_url}/_control/settings"
    usual = httpx.get(url).raise_for_status().json()["batch_seconds"]
    httpx.patch(url, json={"batch_seconds": seconds}).raise_for_status()
    try:
        yield
    finally:
        httpx.patch(url, json={"batch_seconds": usual}).raise_for_status()
