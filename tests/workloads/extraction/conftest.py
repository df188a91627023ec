"""A corpus to extract from, on either provider, and what its index holds then."""

from __future__ import annotations

from typing import Any

import pytest

from include.workloads.plan import EXTRACTION
from tests.workloads.conftest import World

YAML = """\
corpus: letters
source: {kind: jsonl, url: "{storage_root}/sources/*.jsonl", metadata: [shelf]}
chunking: {tokens: 60, overlap: 8}
embedding: {model: text-embedding-3-small, dimensions: 32}
extraction: {provider: PROVIDER, model: MODEL, max_tokens: 400}
"""
MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5"}
WORDS = ("amber", "birch", "cedar", "dusk", "ember", "fir", "gorse", "heather", "iris", "juniper")
TEXTS = {
    "a": "The lighthouse of Alexandria guided ships. It stood for centuries.",
    "b": "Otters sleep in rafts. They hold hands.",
    "c": " ".join(f"The {WORDS[n // 6]} station {n} burns {WORDS[n // 6]} oil." for n in range(60)),
}


@pytest.fixture(params=list(MODELS))
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def yaml(provider: str) -> str:
    """The corpus's YAML: only one line of it names the provider."""
    return YAML.replace("PROVIDER", provider).replace("MODEL", MODELS[provider])


@pytest.fixture
def shelf(world: World, yaml: str) -> World:
    """A corpus that is ingested and live, with an extraction in its YAML."""
    world.use_claude()
    world.configure(yaml)
    world.put("all", *({"id": name, "text": text, "shelf": name} for name, text in TEXTS.items()))
    world.run()
    return world


def extract(world: World, **request: Any) -> Any:
    ref, ranges = world.begin(EXTRACTION, **request)
    world.send(ref)
    return world.end(ref, ranges)


def metadata(world: World) -> dict[str, list[dict[str, Any]]]:
    """The metadata of every chunk of the index, by document."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in world.rows(world.ref):
        found.setdefault(row["document_id"], []).append(row["metadata"])
    return found


def answers(provider: str, text: str, *, cut: bool = False) -> dict[str, Any]:
    """Fields of an answer that says this, or was cut off at its token limit."""
    if provider == "anthropic":
        content = [{"type": "text", "text": text}]
        return {"content": content, "stop_reason": "max_tokens" if cut else "end_turn"}
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "finish_reason": "length" if cut else "stop", "message": message}]}
