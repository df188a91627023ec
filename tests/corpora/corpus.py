"""A small corpus on disk that tests change between runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from include.contracts import RunRef
from include.corpora.config import CorpusConfig
from include.corpora.prepare import PrepareReport, prepare
from include.corpora.sql import Connect
from include.ledger.connect import Connection
from include.storage import Storage

SPACE = "0123456789abcdef0123456789abcdef"
DATES = r"(?P<partition>\d{4}-\d{2}-\d{2})"


def config(url: str | None, **source: Any) -> CorpusConfig:
    """A corpus of JSONL files; `source` changes its source section."""
    return CorpusConfig.model_validate(
        {
            "corpus": "small",
            "source": {"kind": "jsonl", "url": url, "partition": DATES, "metadata": ["topic"], **source},
            "chunking": {"tokens": 32, "overlap": 4},
            "embedding": {"model": "text-embedding-3-small", "dimensions": 8},
        }
    )


def document(id: str, text: str = "", **fields: Any) -> dict[str, Any]:
    """A record with some text of its own."""
    return {"id": id, "text": text or f"What {id} says. " * 20, "title": f"About {id}", **fields}


@dataclass
class Corpus:
    """Files of records, and runs over them."""

    folder: Path
    storage: Storage
    ledger: Connection
    source: dict[str, Any]
    config: CorpusConfig | None = None
    """Instead of the files in the folder."""
    sql: Connect | None = None

    def write(self, partition: str, *records: dict[str, Any] | bytes) -> Path:
        """Put these records, or raw lines, in a partition's file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{partition}.jsonl"
        lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    def run(self, name: str, **options: Any) -> PrepareReport:
        """Prepare a run of this name."""
        return prepare(
            self.ledger,
            self.storage,
            self.config or config(f"{self.folder}/*.jsonl", **self.source),
            run=self.ref(name),
            space_id=SPACE,
            sql=self.sql,
            **{"ranges": 4, **options},
        )

    def ref(self, name: str) -> RunRef:
        """The run of this name."""
        return RunRef(run=f"dag/{name}", workload="initial_ingest", corpus="small", uri=f"runs/{name}")

    def rows(self, name: str) -> pa.Table:
        """All rows that a run wrote, in any order."""
        paths = [path for path in self.storage.list(f"runs/{name}/rows") if "/range-" in path]
        return pa.concat_tables(self.table(path) for path in paths)

    def deleted(self, name: str) -> list[str]:
        """The documents that a run deleted."""
        return [str(id) for id in self.table(f"runs/{name}/rows/deleted.parquet")["document_id"].to_pylist()]

    def bad_input(self, name: str) -> list[dict[str, Any]]:
        """The rows of a run's bad_input.jsonl."""
        data = self.storage.read_bytes(f"runs/{name}/bad_input.jsonl")
        return [orjson.loads(line) for line in data.splitlines()]

    def table(self, path: str) -> pa.Table:
        """A Parquet file of the storage."""
        return pq.read_table(self.storage.path(path))
