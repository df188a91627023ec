"""The bundled corpus, whole, extracted by either provider: what the demo's reader would filter by."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from include.contracts import PROJECT_ROOT
from include.corpora.python_docs import write_documents
from include.indexes.live import read_pointer
from include.workloads.extraction.shape import Described
from include.workloads.plan import EXTRACTION
from tests.workloads.conftest import World
from tests.workloads.extraction.conftest import MODELS, extract, metadata

YAML = (PROJECT_ROOT / "include" / "config" / "corpora" / "python_docs.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("provider", MODELS)
def test_every_topic_has_metadata_to_filter_by(world: World, provider: str) -> None:
    world.use_claude()
    storage = world.services.storage
    write_documents(storage)
    yaml = YAML.replace("corpus: python_docs", "corpus: letters").replace("golden_set:", "# golden_set:")
    ours = "provider: anthropic, model: claude-haiku-4-5"
    assert ours in yaml
    world.configure(yaml.replace(ours, f"provider: {provider}, model: {MODELS[provider]}"))
    world.run()

    before = world.emulator.state()
    report = extract(world)
    after = world.emulator.state()
    found = metadata(world)
    assert report.dead_letters == 0
    assert report.requests_landed == report.items >= len(found) > 70
    for chunks in found.values():
        for chunk in chunks:
            Described.model_validate({name: chunk[name] for name in Described.model_fields})
    anew = {key: times for key, times in after["charges"].items() if key not in before["charges"]}
    assert len(anew) == report.requests_sent
    assert set(anew.values()) == {1}
    paid = after["totals"]["batch_dollars"] - before["totals"]["batch_dollars"]
    assert report.dollars_spent == pytest.approx(paid, abs=1e-9)

    assert extract(world).requests_sent == 0
    filtered_by_a_keyword(world, found)
    one_topic_changed(world)


def filtered_by_a_keyword(world: World, found: dict[str, list[dict[str, Any]]]) -> None:
    pointer = read_pointer(world.services.storage, "letters")
    store = world.services.store(pointer.store, pointer.store_url)
    keyword = found["lambda"][0]["keywords"][0]
    vector = np.ones(pointer.dimensions, np.float32)
    hits = store.search(pointer.index, vector, 1000, {"keywords": keyword})
    wanted = {name for name, chunks in found.items() if keyword in chunks[0]["keywords"]}
    assert {hit.document_id for hit in hits} == wanted


def one_topic_changed(world: World) -> None:
    storage = world.services.storage
    path = next(path for path in storage.list("sources/python_docs", ".jsonl"))
    first, *rest = storage.read_bytes(path).splitlines(keepends=True)
    record = json.loads(first)
    record["text"] += "\nAnd one thing more."
    storage.write_bytes(path, json.dumps(record).encode() + b"\n" + b"".join(rest))
    world.run()
    assert extract(world).requests_sent == 1
    assert EXTRACTION in world.ref.run
