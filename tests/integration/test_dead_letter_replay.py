"""A replay on a real scheduler, triggered as from its page: what is answered is where it belongs."""

from __future__ import annotations

from tests.integration.corpora import PARTITIONS, Corpus, make_corpus
from tests.stack import IntegrationStack

BUNDLED = "dead_letter_replay__python_docs"


def states(corpus: Corpus) -> list[str]:
    """The states of the corpus's dead letters."""
    query = "select state from dead_letters where corpus = %(corpus)s order by id"
    return [str(row["state"]) for row in corpus.stack.rows(query, {"corpus": corpus.name})]


def bury_one(corpus: Corpus) -> dict[str, int]:
    """Load the corpus while one of its texts is refused; returns what was charged."""
    before = corpus.charges()
    word = str(corpus.documents[PARTITIONS[0]][0]["text"]).split()[0]
    fault = {"on": "line", "when": {"match": rf"\b{word}\b"}, "do": "line_error", "status": 400}
    corpus.stack.faults({**fault, "code": "invalid_request"})
    try:
        report = corpus.run()
    finally:
        corpus.stack.faults()
    assert (report["dead_letters"], report["chunks_indexed"]) == (1, report["chunks"] - 1)
    assert states(corpus) == ["open"]
    return corpus.charges_since(before)


def test_a_dead_letter_is_replayed_from_the_form_and_tomorrow_sends_nothing(stack: IntegrationStack) -> None:
    corpus = make_corpus(stack)
    paid = bury_one(corpus)
    replay = f"dead_letter_replay__{corpus.name}"
    stack.api.reparse(BUNDLED)
    stack.wait_until(lambda: replay in stack.api.dags(), 60, f"DAG {replay} isn't there")

    dry = stack.run(replay, {"dry_run": True})
    assert stack.report(replay, dry)["state"] == "dry_run"
    assert "1 dead letters match" in " ".join(stack.report(replay, dry)["notes"])
    assert states(corpus) == ["open"]

    before = corpus.charges()
    run_id = stack.run(replay, {"class": "permanent", "code": "invalid_request", "max_age_hours": 2})
    report = stack.report(replay, run_id)
    assert (report["state"], report["requests_sent"], report["dead_letters"]) == ("succeeded", 1, 0)
    assert states(corpus) == ["resolved"]
    assert len(corpus.charges_since(before)) == 1

    assert corpus.run()["requests_sent"] == 0
    assert len({row["document_id"] for row in corpus.rows().values()}) == 4 * len(PARTITIONS)
    assert set(paid.values()) == {1}
