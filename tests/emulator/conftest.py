"""How these tests drive the emulator: with the official SDK, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.emulators import Emulator, Tenant, start_emulator

DAY = 86_400


def embedding_line(custom_id: str, text: Any, **body: Any) -> dict[str, Any]:
    """A line of an embeddings batch; 8 dimensions keep it short."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "text-embedding-3-small", "input": text, "dimensions": 8} | body,
    }


def jsonl(lines: list[Any]) -> bytes:
    """A batch file of lines given as objects, or as the text of a broken line."""
    return "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines).encode()


@dataclass
class Driver:
    """The SDK on an emulator, with the steps that most tests share."""

    emulator: Emulator
    client: openai.OpenAI

    def upload(self, lines: list[Any] | bytes) -> str:
        """Upload a batch file; returns its id."""
        content = lines if isinstance(lines, bytes) else jsonl(lines)
        return self.client.files.create(file=("batch.jsonl", content), purpose="batch").id

    def create(self, lines: list[Any] | bytes, endpoint: Any = "/v1/embeddings", **options: Any) -> str:
        """Upload and create; returns the batch's id."""
        batch = self.client.batches.create(
            input_file_id=self.upload(lines), endpoint=endpoint, completion_window="24h", **options
        )
        assert batch.status == "validating"
        return batch.id

    def after(self, seconds: float, batch_id: str) -> openai.types.Batch:
        """The batch once so much time has passed."""
        self.emulator.advance(seconds)
        return self.client.batches.retrieve(batch_id)

    def results(self, batch: openai.types.Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """The lines of the output and of the error file, by custom_id."""
        return self.read(batch.output_file_id), self.read(batch.error_file_id)

    def read(self, file_id: str | None) -> dict[str, Any]:
        """A result file's lines by custom_id; empty without a file."""
        if file_id is None:
            return {}
        lines = [json.loads(each) for each in self.client.files.content(file_id).content.splitlines()]
        assert len({each["custom_id"] for each in lines}) == len(lines)
        return {each["custom_id"]: each for each in lines}

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the control plane."""
        response = httpx.request(method, f"{self.emulator.url}/_control/{path}", json=body)
        return response.raise_for_status().json()


def drive(emulator: Emulator, **options: Any) -> Driver:
    """A driver whose SDK doesn't retry, so that each fault is seen once; a tenant's works in its project."""
    project = emulator.project if isinstance(emulator, Tenant) else None
    settings: dict[str, Any] = {"api_key": "sk-test", "max_retries": 0, "project": project} | options
    return Driver(emulator, openai.OpenAI(base_url=emulator.openai_url, **settings))


@pytest.fixture
def driver(tenant: Tenant) -> Driver:
    """The SDK as a project of its own on the common emulator."""
    return drive(tenant)


@pytest.fixture
def alone(emulator: Emulator) -> Driver:
    """The SDK on an emulator that nobody else uses."""
    return drive(emulator)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Emulator]]:
    """Start emulators over one data folder, with options of the test's own; all are stopped at the end."""
    running: list[Iterator[Emulator]] = []

    def begin(*options: str, port: int | None = None) -> Emulator:
        run = start_emulator(tmp_path / "data", "--embeddings", "hash", *options, port=port)
        running.append(run)
        return next(run)

    yield begin
    for each in running:
        next(each, None)
