"""Answers that are off the schema, cut off or refused: asked once more, then buried with the reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

from include.workloads.plan import EXTRACTION
from include.workloads.replay import Change, Replay, Which
from tests.workloads.conftest import World
from tests.workloads.extraction.conftest import answers, extract, metadata

GOOD = 114


def refusal(provider: str) -> dict[str, Any]:
    """Fields of an answer in which the model says no."""
    if provider == "anthropic":
        return {"content": [], "stop_reason": "refusal"}
    message = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}


def test_five_percent_of_bad_answers_are_asked_twice_and_buried_by_their_reason(
    shelf: World, provider: str
) -> None:
    bodies = {
        "astray": answers(provider, '{"title": 1}'),
        "forbidden": refusal(provider),
        "endless": answers(provider, '{"summary": "It', cut=True),
    }
    good = {f"good{number}": f"Letter {number} speaks of harbours. It is signed." for number in range(GOOD)}
    bad = {f"{word}{number}": f"Number {number} is {word}." for word in bodies for number in range(2)}
    shelf.put("all", *({"id": name, "text": text} for name, text in {**good, **bad}.items()))
    shelf.run()

    def spoil(*words: str) -> None:
        faults = [{"on": "line", "when": {"match": word}, "body": bodies[word]} for word in words]
        shelf.emulator.faults(*({**fault, "do": "line_body"} for fault in faults))

    spoil(*bodies)
    report = extract(shelf)
    assert (report.items, report.second_attempts, report.dead_letters) == (GOOD + 6, 6, 6)
    letters = {letter.document_id: (letter.cls.value, letter.code) for letter in shelf.letters("open")}
    assert letters.keys() == bad.keys()
    assert Counter(letters.values()) == {
        ("invalid", "off_schema"): 2,
        ("invalid", "truncated"): 2,
        ("invalid", "refused"): 2,
    }
    described = {name for name, chunks in metadata(shelf).items() if "summary" in chunks[0]}
    assert described == good.keys()
    assert extract(shelf).requests_sent == 0

    spoil("astray", "forbidden")
    replay = Replay(which=Which(code="truncated"), change=Change(max_tokens=4000), workload=EXTRACTION)
    mended = shelf.run(replay=replay)
    assert (mended.requests_sent, mended.dead_letters) == (2, 0)
    assert sorted(letter.code for letter in shelf.letters("open")) == ["off_schema"] * 2 + ["refused"] * 2
    assert all(metadata(shelf)[name][0]["summary"] for name in ("endless0", "endless1"))
    assert extract(shelf).requests_sent == 0


def test_a_bad_answer_is_asked_once_more_and_told_what_is_wrong(shelf: World, provider: str) -> None:
    body = answers(provider, "Otters!")
    shelf.emulator.faults(
        {"on": "line", "do": "line_body", "when": {"match": "Otters", "times": 1}, "body": body}
    )
    report = extract(shelf)
    assert report.requests_sent == 4
    assert report.second_attempts == 1
    assert report.dead_letters == 0
    assert metadata(shelf)["b"][0]["summary"]
    assert extract(shelf).requests_sent == 0


def test_what_stays_bad_is_a_dead_letter_that_a_replay_mends(shelf: World, provider: str) -> None:
    body = answers(provider, "{", cut=True)
    shelf.emulator.faults({"on": "line", "do": "line_body", "when": {"match": "Otters"}, "body": body})
    report = extract(shelf)
    assert report.second_attempts == report.dead_letters == 1
    assert "summary" not in metadata(shelf)["b"][0]
    assert "summary" in metadata(shelf)["a"][0]
    with shelf.services.ledger() as ledger:
        (letter,) = ledger.execute("select class, code, document_id, workload from dead_letters").fetchall()
    assert letter == {
        "class": "invalid",
        "code": "truncated",
        "document_id": "b",
        "workload": "metadata_extraction",
    }
    assert extract(shelf).requests_sent == 0
    shelf.emulator.faults()
    replayed = shelf.run(replay=Replay(change=Change(max_tokens=800), workload=EXTRACTION))
    assert replayed.requests_sent == 1
    assert replayed.dead_letters == 0
    assert metadata(shelf)["b"][0]["summary"]
    assert extract(shelf).requests_sent == 0
