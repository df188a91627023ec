"""How tests drive the Anthropic side of the emulator: with the official SDK, in a workspace of their own."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
from anthropic.types.messages import MessageBatch

from tests.emulators import Emulator

MODEL = "claude-sonnet-5-5"


def request(custom_id: str, text: str, **params: Any) -> dict[str, Any]:
    """A request of a batch."""
    asked = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "params": asked | params}


@dataclass
class Claude:
    """The SDK on an emulator, with the steps that most tests share."""

    emulator: Emulator
    client: anthropic.Anthropic
    workspace: str

    def create(self, requests: list[dict[str, Any]]) -> MessageBatch:
        """Create a batch."""
        return self.client.messages.batches.create(requests=requests)  # type: ignore[arg-type]

    def after(self, seconds: float, batch_id: str) -> MessageBatch:
        """The batch once so much time has passed."""
        self.emulator.advance(seconds)
        return self.client.messages.batches.retrieve(batch_id)

    def results(self, batch_id: str) -> dict[str, Any]:
        """The results by custom_id."""
        return {each.custom_id: each.result for each in self.client.messages.batches.results(batch_id)}

    def run(self, *requests: dict[str, Any], seconds: float = 10) -> dict[str, Any]:
        """Create a batch, let time pass, and read its results."""
        return self.results(self.after(seconds, self.create(list(requests)).id).id)

    def text(self, result: Any) -> str:
        """The text of a result that succeeded."""
        assert result.type == "succeeded", result
        return "".join(block.text for block in result.message.content if block.type == "text")

    def listed(self) -> list[str]:
        """The ids of the workspace's batches, newest first."""
        return [each.id for each in self.client.messages.batches.list(limit=1000)]

    def faults(self, *rules: dict[str, Any]) -> None:
        """Inject faults."""
        self.emulator.faults(*rules)

    def calls(self, operation: str) -> int:
        """How often an operation was called, by anybody."""
        return int(self.emulator.state()["requests"].get(operation, 0))

    def charged(self, batch_id: str) -> dict[str, Any]:
        """What the books say of a batch."""
        return dict(self.emulator.state()["totals"]["batches"][batch_id])

    def paid(self) -> dict[str, int]:
        """How often each custom_id of this workspace was paid for, since the last test's end."""
        now = self.emulator.state()["charges"]
        return {name: n - self.before.get(name, 0) for name, n in now.items() if n > self.before.get(name, 0)}

    def __post_init__(self) -> None:
        self.before: dict[str, int] = self.emulator.state()["charges"]


def claude(emulator: Emulator, workspace: str = "", **options: Any) -> Claude:
    """A driver whose SDK doesn't retry, in a new workspace, on an emulator without faults."""
    httpx.put(f"{emulator.url}/_control/faults", json={"faults": []}).raise_for_status()
    workspace = workspace or f"wrkspc_{uuid.uuid4().hex[:12]}"
    settings: dict[str, Any] = {"api_key": "sk-test", "max_retries": 0} | options
    headers = {"anthropic-workspace-id": workspace}
    client = anthropic.Anthropic(base_url=emulator.anthropic_url, default_headers=headers, **settings)
    return Claude(emulator, client, workspace)
