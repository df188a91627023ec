"""A replay asks dead letters again by the same steps: what is answered is closed, and nothing else is."""

from __future__ import annotations

import pytest

from include.batches import runs
from include.batches.cancel import cancel_run
from include.batches.dead_letters import Which, choose, discard, take
from include.contracts import OutcomeClass, RunRef
from include.errors import ConfigError, ReconcileError
from include.requests import results
from include.workloads import steps
from include.workloads.replay import Change, Replay
from tests.workloads.conftest import World

ALL = Replay()
WHICH = [
    (Which(), 2),
    (Which(cls=OutcomeClass.PERMANENT), 2),
    (Which(cls=OutcomeClass.RETRYABLE), 0),
    (Which(code="invalid_request"), 2),
    (Which(code="server_error"), 0),
    (Which(document="b"), 1),
    (Which(document="b", code="server_error"), 0),
    (Which(run="initial_ingest__letters/run-1"), 2),
    (Which(run="another"), 0),
    (Which(min_age_hours=2.0), 0),
    (Which(max_age_hours=2.0), 2),
    (Which(limit=1), 1),
    (Which(state="discarded"), 0),
]
"""Filters, and how many of two open letters they mean: of documents b and c, just now."""


def refuse(world: World, *words: str, status: int = 400, code: str = "invalid_request") -> None:
    """Fail every line whose text has one of these words."""
    world.emulator.faults(
        *(
            {"on": "line", "when": {"match": word}, "do": "line_error", "status": status, "code": code}
            for word in words
        )
    )


def batches(world: World) -> int:
    return len(world.emulator.state()["batches"])


@pytest.fixture
def buried(world: World) -> World:
    """Three documents, of which two have a letter; nothing fails any more."""
    world.write({"a": "good text of a", "b": "bad text of b", "c": "bad text of c"})
    refuse(world, "bad")
    report = world.run()
    assert (report.dead_letters, report.chunks_indexed) == (2, 1)
    world.emulator.faults()
    return world


def indexed(world: World) -> set[str]:
    """Document and text of each row of the index."""
    return {f"{row['document_id']}: {row['text']}" for row in world.rows(world.ref)}


def documents(world: World) -> list[str]:
    return sorted(row["document_id"] for row in world.rows(world.ref))


class TestWhatIsAnswered:
    def test_is_closed_and_in_the_index_and_is_not_asked_tomorrow(self, buried: World) -> None:
        report = buried.replay()
        assert (report.state, report.items, report.requests_sent) == ("succeeded", 2, 2)
        assert {letter.state for letter in buried.letters()} == {"resolved"}
        assert documents(buried) == ["a", "b", "c"]
        tomorrow = buried.run()
        assert (tomorrow.requests_sent, tomorrow.requests_reused) == (0, 3)
        assert set(buried.charges().values()) == {1}

    def test_with_a_shorter_input_stands_for_the_whole_text(self, buried: World) -> None:
        report = buried.replay(Change(max_input_tokens=2))
        # "bad text" stands for both: one request answers two letters.
        assert (report.requests_sent, report.items, report.chunks_indexed) == (1, 2, 2)
        assert buried.letters("open") == []
        assert indexed(buried) == {"a: good text of a", "b: bad text of b", "c: bad text of c"}
        tomorrow = buried.run()
        assert (tomorrow.requests_sent, tomorrow.requests_reused) == (0, 3)
        assert len(buried.charges()) == 2

    def test_says_which_question_its_answer_was_made_for(self, buried: World) -> None:
        buried.replay(Change(max_input_tokens=2))
        storage = buried.services.storage
        (space,) = {letter.space for letter in buried.letters()}
        originals = {bytes.fromhex(letter.key) for letter in buried.letters()}
        found = results.read(storage, results.files(storage, space), results.keys_array(b"".join(originals)))
        rows = [row for table in found for row in table.to_pylist()]
        assert {row["key"] for row in rows} == originals
        (asked,) = {row["produced_by"] for row in rows}
        assert asked.hex() in buried.charges() and asked not in originals

    def test_needs_no_body(self, buried: World) -> None:
        buried.services.storage.delete("dead_letters")
        assert buried.replay().chunks_indexed == 2
        assert buried.letters("open") == []

    def test_goes_to_every_document_that_holds_the_text_now(self, buried: World) -> None:
        buried.write(
            {"a": "good text of a", "b": "bad text of b", "c": "bad text of c", "d": "bad text of b"}
        )
        buried.run()
        buried.replay()
        assert documents(buried) == ["a", "b", "c", "d"]

    def test_keeps_the_other_chunks_of_its_document(self, world: World) -> None:
        words = " ".join(f"word{n}" for n in range(60))
        world.write({"a": f"{words} bad {words}"})
        refuse(world, "bad")
        first = world.run()
        assert first.chunks_indexed and first.dead_letters
        world.emulator.faults()
        report = world.replay()
        assert report.requests_sent == first.dead_letters
        assert len(world.rows(world.ref)) == first.chunks


class TestWhatIsNot:
    def test_is_open_again_with_its_new_reason(self, buried: World) -> None:
        refuse(buried, "of b", status=500, code="server_error")
        report = buried.replay()
        (letter,) = buried.letters("open")
        assert (letter.document_id, letter.cls, letter.attempts) == ("b", OutcomeClass.RETRYABLE, 2)
        assert (report.dead_letters, report.state) == (1, "succeeded")

    def test_fails_under_the_letter_s_own_key_where_something_else_was_asked(self, buried: World) -> None:
        before = {letter.key for letter in buried.letters()}
        refuse(buried, "bad", code="content_filter")
        buried.replay(Change(max_input_tokens=2))
        assert {(letter.key, letter.code) for letter in buried.letters("open")} == {
            (key, "content_filter") for key in before
        }

    @pytest.mark.parametrize("end", ["failed", "cancelled"])
    def test_goes_back_when_the_replay_ends_before_it_is_decided(self, buried: World, end: str) -> None:
        ref, ranges = buried.begin(replay=ALL)
        steps.probe(buried.services, ref)
        steps.pack(buried.services, ref)
        assert {letter.state for letter in buried.letters()} == {"replaying"}
        if end == "cancelled":
            with buried.services.ledger() as ledger:
                provider = buried.services.endpoint("openai", "openai_default").provider
                cancel_run(ledger, buried.services.storage, provider, ref.run)
            assert {letter.state for letter in buried.letters()} == {"open"}, "before any task of it ends"
        else:
            with pytest.raises(ReconcileError):
                steps.reconcile(buried.services, ref)
        steps.report(buried.services, ref)
        assert {letter.state for letter in buried.letters()} == {"open"}
        if end == "failed":
            buried.send(ref)
            buried.end(ref, ranges)
            assert {letter.state for letter in buried.letters()} == {"resolved"}

    def test_is_taken_over_from_a_replay_that_died(self, buried: World) -> None:
        dead, _ = buried.begin(replay=ALL)
        with buried.services.ledger() as ledger:
            runs.finish(ledger, dead.run, "failed")
        assert buried.replay().requests_sent == 2
        assert buried.letters("open") == buried.letters("replaying") == []

    def test_of_a_text_that_is_gone_is_closed_without_a_request(self, buried: World) -> None:
        buried.write({"a": "good text of a", "b": "another text of b"})
        buried.run()
        before = batches(buried)
        report = buried.replay()
        assert (report.items, batches(buried)) == (0, before)
        assert [letter.reason for letter in buried.letters("resolved")] == [
            "no document holds this text any more"
        ] * 2
        assert any("no document holds any more" in note for note in report.notes)

    def test_late_does_not_overwrite_what_its_document_says_by_now(self, buried: World) -> None:
        ref, ranges = buried.begin(replay=ALL)
        buried.write({"a": "good text of a", "b": "newer text of b", "c": "bad text of c"})
        buried.run()
        buried.send(ref)
        buried.end(ref, ranges)
        assert indexed(buried) == {"a: good text of a", "b: newer text of b", "c: bad text of c"}


class TestWhichLetters:
    def test_are_those_that_the_form_describes(self, buried: World) -> None:
        (scope,) = {(letter.corpus, letter.space) for letter in buried.letters()}
        ref = RunRef("replay", "initial_ingest", scope[0], "")
        with buried.services.ledger() as ledger:
            for which, count in WHICH:
                assert len(choose(ledger, ref, scope[1], which)) == count, which

    def test_a_dry_run_says_what_they_cost_and_takes_none(self, buried: World) -> None:
        ref, _ = buried.begin(replay=ALL, dry_run=True)
        estimate = buried.counts(ref, "estimate")
        assert (estimate["to_send"], estimate["blocked"]) == (2, 0)
        assert estimate["dollars"] > 0
        assert {letter.state for letter in buried.letters()} == {"open"}

    def test_discarded_ones_are_asked_on_request_and_stay_so_where_undecided(self, buried: World) -> None:
        with buried.services.ledger() as ledger:
            discard(ledger, [letter.id for letter in buried.letters()], "scans")
        assert buried.replay().requests_sent == 0
        ref, ranges = buried.begin(replay=Replay(Which(state="discarded")))
        steps.report(buried.services, ref)
        assert {(letter.state, letter.reason) for letter in buried.letters()} == {("discarded", "scans")}
        buried.send(ref)
        buried.end(ref, ranges)
        assert {letter.state for letter in buried.letters()} == {"resolved"}

    def test_two_replays_at_once_share_none(self, buried: World) -> None:
        first, first_ranges = buried.begin(replay=Replay(Which(limit=1)))
        second, second_ranges = buried.begin(replay=ALL)
        assert buried.counts(second, "prepare")["letters"] == 1
        for ref, ranges in ((first, first_ranges), (second, second_ranges)):
            buried.send(ref)
            buried.end(ref, ranges)
        assert {letter.state for letter in buried.letters()} == {"resolved"}
        assert set(buried.charges().values()) == {1}

    def test_two_replays_at_the_same_moment_share_none_and_do_not_wait(self, buried: World) -> None:
        (space,) = {letter.space for letter in buried.letters()}
        one, two = (RunRef(name, "initial_ingest", "letters", "") for name in ("one", "two"))
        with buried.services.ledger() as first, buried.services.ledger() as second:
            second.execute("set statement_timeout = '5s'")
            with first.transaction():
                (taken,) = take(first, one, space, Which(limit=1))
                others = take(second, two, space, Which())
        assert len(others) == 1 and taken not in others

    def test_an_ingest_meanwhile_leaves_them_to_the_replay(self, buried: World) -> None:
        ref, ranges = buried.begin(replay=Replay(change=Change(max_input_tokens=2)))
        report = buried.run()
        assert (report.requests_sent, report.dead_letters) == (0, 2)
        buried.send(ref)
        assert buried.end(ref, ranges).chunks_indexed == 2

    @pytest.mark.parametrize("change", [Change(model="text-embedding-3-large"), Change(max_tokens=9)])
    def test_of_embeddings_are_never_asked_for_something_else(self, buried: World, change: Change) -> None:
        with pytest.raises(ConfigError, match=r"text-embedding-3-large|max_tokens is 9"):
            buried.replay(change)
        assert {letter.state for letter in buried.letters()} == {"open"}
