"""Metadata extraction, step by step, on a real ledger, emulator and index."""

from __future__ import annotations

import json

import pytest

from include.batches import runs
from include.errors import ConfigError
from include.workloads.plan import EXTRACTION
from tests.workloads.conftest import World
from tests.workloads.extraction.conftest import TEXTS, extract, metadata


def test_every_chunk_gets_its_document_s_fields_and_keeps_its_own(shelf: World) -> None:
    before = shelf.charges()
    report = extract(shelf)
    assert report.requests_sent == report.requests_landed == 3
    assert set(shelf.charges().values()) == {1}
    assert len(shelf.charges()) == len(before) + 3
    found = metadata(shelf)
    assert found.keys() == TEXTS.keys()
    for name, chunks in found.items():
        for chunk in chunks:
            assert chunk["shelf"] == name
            assert chunk["summary"] and chunk["keywords"]
            assert chunk["entities"] == chunks[0]["entities"]
    assert len(found["c"]) > 1
    assert extract(shelf).requests_sent == 0


def test_an_ingest_keeps_what_was_extracted_until_the_text_changes(shelf: World) -> None:
    extract(shelf)
    shelf.put("all", *({"id": name, "text": text, "shelf": "new"} for name, text in TEXTS.items()))
    shelf.run()
    assert all(chunk["shelf"] == "new" and chunk["summary"] for chunk in metadata(shelf)["c"])
    changed = {**TEXTS, "b": "Otters dive for urchins. They carry stones."}
    shelf.put("all", *({"id": name, "text": text, "shelf": "new"} for name, text in changed.items()))
    shelf.run()
    assert "summary" not in metadata(shelf)["b"][0]
    assert "summary" in metadata(shelf)["a"][0]
    report = extract(shelf)
    assert report.requests_sent == 1
    assert "stones" in json.dumps(metadata(shelf)["b"][0]["keywords"])


def test_a_dry_run_says_what_it_would_cost(shelf: World) -> None:
    ref, _ = shelf.begin(EXTRACTION, dry_run=True)
    with shelf.services.ledger() as ledger:
        counts = runs.get(ledger, ref.run).counts["estimate"]
    assert counts["to_send"] == 3
    assert counts["output_tokens"] == 3 * 400
    assert counts["dollars"] > 0


def test_long_documents_are_read_in_windows(shelf: World, yaml: str) -> None:
    shelf.configure(yaml.replace("max_tokens: 400", "max_tokens: 400, window_tokens: 300"))
    report = extract(shelf)
    assert report.requests_sent > 3
    keywords = metadata(shelf)["c"][0]["keywords"]
    assert len(keywords) == len(set(keywords)) > 5


def test_per_chunk_each_has_fields_of_its_own(shelf: World, yaml: str) -> None:
    shelf.configure(yaml.replace("max_tokens: 400", "max_tokens: 400, per: chunk"))
    extract(shelf)
    chunks = metadata(shelf)["c"]
    assert len({chunk["summary"] for chunk in chunks}) == len(chunks) > 1


def test_a_changed_prompt_asks_all_anew_and_the_old_one_nothing(shelf: World, yaml: str) -> None:
    assert extract(shelf).requests_sent == 3
    shelf.configure(yaml.replace("max_tokens: 400", "max_tokens: 400, prompt: Describe it in Latin."))
    assert extract(shelf).requests_sent == 3
    shelf.configure(yaml)
    assert extract(shelf).requests_sent == 0


def test_a_corpus_without_an_extraction_says_what_to_add(world: World) -> None:
    world.write({"a": "text"})
    with pytest.raises(ConfigError, match="has no `extraction`: add it"):
        world.begin(EXTRACTION)


def test_dollars_are_the_provider_s_own_cached_tokens_included(
    shelf: World, yaml: str, provider: str
) -> None:
    rules = " ".join(f"Rule {number}: never speak of number {number}." for number in range(900))
    shelf.configure(yaml.replace("max_tokens: 400", f"max_tokens: 400, prompt: {json.dumps(rules)}"))
    before = shelf.emulator.state()["totals"]["batch_dollars"]
    report = extract(shelf)
    paid = shelf.emulator.state()["totals"]["batch_dollars"] - before
    assert report.dollars_spent == pytest.approx(paid, abs=1e-9)
    with shelf.services.ledger() as ledger:
        found = ledger.execute("select usage from submissions order by landed_at desc limit 1").fetchall()
    usage = found[0]["usage"]
    assert bool(usage["cache_read"] + usage["cache_write"]) is (provider == "anthropic")


@pytest.mark.parametrize("provider", ["openai"], indirect=True)
def test_another_provider_is_one_line_of_yaml(shelf: World, yaml: str) -> None:
    assert extract(shelf).requests_sent == 3
    other = yaml.replace(
        "{provider: openai, model: gpt-5-mini", "{provider: anthropic, model: claude-haiku-4-5"
    )
    shelf.configure(other)
    assert extract(shelf).requests_sent == 3
    assert all(chunk["summary"] for chunks in metadata(shelf).values() for chunk in chunks)
