"""What the contract suite runs over: every provider with its official SDK on the emulator."""

from __future__ import annotations

import dataclasses
import io
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import httpx2
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from include.contracts import (
    JSON,
    BatchProvider,
    BatchState,
    BatchStatus,
    Evidence,
    Item,
    Outcome,
    Space,
    Submission,
)
from include.providers.anthropic import AnthropicBatches
from include.providers.capabilities import Capability
from include.providers.openai import OpenAIBatches
from include.providers.prompts import answer_params, question
from tests.emulators import Tenant

SDK_OPTIONS: dict[str, Any] = {"api_key": "sk-test", "timeout": 20, "max_retries": 1}


def openai_provider(url: str, project: str | None = None, **unknown: Any) -> OpenAIBatches:
    options = {**SDK_OPTIONS, "base_url": f"{url}/openai/v1", "project": project}
    return OpenAIBatches(OpenAI(**options), AsyncOpenAI(**options), account="acme")


def anthropic_provider(url: str, workspace: str | None = None, **own: Any) -> AnthropicBatches:
    headers = {"anthropic-workspace-id": workspace} if workspace else {}
    options = {**SDK_OPTIONS, "base_url": f"{url}/anthropic", "default_headers": headers}
    return AnthropicBatches(Anthropic(**options), AsyncAnthropic(**options), account="acme", **own)


@dataclass(frozen=True)
class Kind:
    """A provider, what it's asked, and how the emulator calls what it does."""

    connect: Callable[..., BatchProvider]
    space: Space
    operations: dict[str, str]
    truncated: dict[str, Any]
    """A space's parameters under which every answer is too long."""
    refusal: dict[str, Any]
    """Fields of an answer that refuses."""
    download: Callable[[Any, BatchStatus], bytes]
    """The results of an ended batch as they are, by the SDK."""


def _space(protocol: str, endpoint: str, model: str, max_tokens: int = 200) -> Space:
    return Space(
        protocol, "emulator", endpoint, model, answer_params(protocol, endpoint, max_tokens=max_tokens)
    )


KINDS: dict[str, Kind] = {
    "openai": Kind(
        openai_provider,
        _space("openai", "/v1/chat/completions", "gpt-5-mini"),
        {
            "create": "batches.create",
            "list": "batches.list",
            "retrieve": "batches.retrieve",
            "cancel": "batches.cancel",
            "results": "files.content",
            "real_time": "chat.completions",
        },
        truncated={"max_completion_tokens": 2},
        refusal={
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": None, "refusal": "I'd rather not."},
                }
            ]
        },
        download=lambda provider, status: provider.client.files.content(status.output_file_id).content,
    ),
    "anthropic": Kind(
        anthropic_provider,
        _space("anthropic", "/v1/messages", "claude-sonnet-5-5"),
        {
            "create": "messages.batches.create",
            "list": "messages.batches.list",
            "retrieve": "messages.batches.retrieve",
            "cancel": "messages.batches.cancel",
            "results": "messages.batches.results",
            "real_time": "messages",
        },
        truncated={"max_tokens": 2},
        refusal={"stop_reason": "refusal", "content": [{"type": "text", "text": "I'd rather not."}]},
        download=lambda provider, status: (
            provider.client.get(
                f"/v1/messages/batches/{status.batch_id}/results", cast_to=httpx2.Response
            ).content
        ),
    ),
}


def needs(*capabilities: Capability) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test by what it asks of a provider: where that is denied, it must fail."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        test.needs = frozenset(capabilities)  # type: ignore[attr-defined]
        return test

    return mark


@dataclass(frozen=True)
class Sent:
    """A submission, its request file, and its custom_ids by the text they ask about."""

    submission: Submission
    content: bytes
    ids: dict[str, str]

    @property
    def requests(self) -> IO[bytes]:
        return io.BytesIO(self.content)

    def evidence(self, *known: str) -> Evidence:
        """What the ledger would say, which knows these batches as others'."""
        return Evidence(lambda ids: set(ids) & set(known), lambda: frozenset(self.ids.values()))


class Bench:
    """A provider on the emulator, and the steps that most tests share."""

    def __init__(self, name: str, emulator: Tenant) -> None:
        self.kind = KINDS[name]
        self.emulator = emulator
        self.provider = self.kind.connect(emulator.url, emulator.project)
        self.space = self.kind.space
        self._number = 0

    def on(self, operation: str) -> str:
        """What the emulator calls an operation."""
        return self.kind.operations[operation]

    def fault(self, *operations: str, **rule: Any) -> None:
        """Make operations fail in this way; without any, the lines of batches."""
        names = [self.on(each) for each in operations] or ["line"]
        self.emulator.faults({"on": names, **rule})

    def prepare(self, texts: Sequence[str], inputs: Sequence[JSON] = (), **params: Any) -> Sent:
        """A submission of one request a text, ready to be created; `params` over the space's."""
        space = dataclasses.replace(self.space, params={**self.space.params, **params})
        keys = {}
        for text in texts:
            self._number += 1
            keys[text] = self._number.to_bytes(16, "big")
        asked = inputs or [question(text) for text in texts]
        content = b"".join(
            self.provider.line(space, [Item(key, given, 1)], key.hex())
            for key, given in zip(keys.values(), asked, strict=True)
        )
        submission = Submission(str(uuid.uuid4()), "ab" * 16, 1, "test", space.endpoint, len(keys))
        if self.provider.uploads:
            file_id = self.provider.upload(io.BytesIO(content), len(content), submission)
            submission = dataclasses.replace(submission, file_id=file_id)
        submission = dataclasses.replace(submission, after_batch_id=self.provider.newest())
        return Sent(submission, content, {text: key.hex() for text, key in keys.items()})

    def create(self, sent: Sent) -> BatchStatus:
        """Create the batch as `submit` does."""
        return self.provider.create(sent.submission, None if self.provider.uploads else sent.requests)

    def run(self, texts: Sequence[str], inputs: Sequence[JSON] = (), **params: Any) -> BatchStatus:
        """Create a batch and let an hour pass."""
        status = self.create(self.prepare(texts, inputs, **params))
        self.emulator.advance(3600)
        return self.provider.status(status.batch_id)

    def answers(self, status: BatchStatus) -> list[Outcome]:
        """The outcomes of an ended batch, by custom_id."""
        assert status.state is BatchState.ENDED, status
        found = list(self.provider.outcomes(status, self.space))
        return sorted(found, key=lambda outcome: outcome.custom_id)
