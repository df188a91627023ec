"""Dead letters: what still fails is kept, with its input and its reason, until a person decides."""

from __future__ import annotations

import pytest

from include.batches import dead_letters, letter_bodies
from include.batches.dead_letters import NewLetter
from include.contracts import OutcomeClass
from include.errors import LedgerError, StorageError
from include.ledger.connect import Connection
from include.requests.keys import item_key
from include.storage import Storage
from tests.batches.packing import Bench
from tests.batches.submitting import SPACE, openai_provider
from tests.emulators import Emulator

TEXTS = [f"buried text {number}" for number in range(6)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage, calm_emulator: Emulator) -> Bench:
    return Bench(ledger, storage, openai_provider(calm_emulator.openai_url), TEXTS)


def fail(emulator: Emulator, **codes: int) -> None:
    """Fail the texts t0, t1, … with these statuses, at every attempt."""
    emulator.faults(
        *(
            {
                "on": "line",
                "when": {"custom_id": item_key(SPACE.id, TEXTS[int(name[1:])]).hex()},
                "do": "line_error",
                "status": status,
                "code": "server_error" if status >= 500 else "invalid_request",
            }
            for name, status in codes.items()
        )
    )


def go_through(bench: Bench, emulator: Emulator) -> None:
    """Both rounds of a run, and its burial."""
    bench.pack()
    bench.process(emulator)
    bench.pack_retry()
    bench.process(emulator, round=2)
    bench.bury()


class TestWhatIsBuried:
    def test_each_item_that_failed_for_good_has_a_letter_with_its_input(
        self, bench: Bench, calm_emulator: Emulator
    ) -> None:
        fail(calm_emulator, t0=500, t1=400)
        go_through(bench, calm_emulator)
        letters = {letter.document_id: letter for letter in dead_letters.find(bench.ledger)}
        assert set(letters) == {"document-0", "document-1"}
        again, never = letters["document-0"], letters["document-1"]
        assert (again.cls, again.code, again.attempts) == (OutcomeClass.RETRYABLE, "server_error", 2)
        assert (never.cls, never.code, never.attempts) == (OutcomeClass.PERMANENT, "invalid_request", 1)
        body = letter_bodies.read(bench.storage, again.body_uri)
        assert (body["input"], body["document_id"], body["key"]) == (TEXTS[0], "document-0", again.key)
        assert letter_bodies.read(bench.storage, never.body_uri)["input"] == TEXTS[1]
        assert dead_letters.get(bench.ledger, again.id) == again

    def test_burying_again_changes_nothing(self, bench: Bench, calm_emulator: Emulator) -> None:
        fail(calm_emulator, t0=500, t1=400)
        go_through(bench, calm_emulator)
        before = dead_letters.find(bench.ledger)
        report = bench.bury()
        assert report.opened == {"permanent": 1, "retryable": 1}
        after = dead_letters.find(bench.ledger)
        assert [(each.id, each.attempts, each.body_uri) for each in after] == [
            (each.id, each.attempts, each.body_uri) for each in before
        ]

    def test_a_joined_shards_failures_concern_only_the_items_one_wants(
        self, bench: Bench, calm_emulator: Emulator, ledger: Connection, storage: Storage
    ) -> None:
        fail(calm_emulator, t0=400, t5=400)
        bench.pack()
        other = Bench(ledger, storage, bench.provider, TEXTS[:2], run="other", corpus="other_docs")
        other.pack()
        bench.process(calm_emulator)
        other.process(calm_emulator)
        assert other.bury().opened == {"permanent": 1}
        assert bench.bury().opened == {"permanent": 2}
        (letter,) = dead_letters.find(ledger, corpus="other_docs")
        assert letter.key == item_key(SPACE.id, TEXTS[0]).hex()


class TestWhatBecomesOfALetter:
    def test_the_next_run_asks_a_retryable_one_again_and_its_answer_resolves_it(
        self, bench: Bench, calm_emulator: Emulator, ledger: Connection, storage: Storage
    ) -> None:
        fail(calm_emulator, t0=500, t1=400)
        go_through(bench, calm_emulator)
        calm_emulator.faults()
        later = Bench(ledger, storage, bench.provider, TEXTS, run="later")
        report = later.pack()
        assert (report.sent, report.blocked, report.reused) == (1, 1, 4)
        later.process(calm_emulator)
        bury = later.bury()
        assert (bury.total, bury.resolved) == (0, 1)
        (resolved,) = dead_letters.find(ledger, state="resolved")
        assert resolved.key == item_key(SPACE.id, TEXTS[0]).hex()
        accounts = later.reconcile()
        assert (accounts.reused, accounts.succeeded, accounts.dead_lettered) == (4, 1, 1)

    def test_it_is_discarded_for_a_reason_and_stays_so(self, bench: Bench, calm_emulator: Emulator) -> None:
        fail(calm_emulator, t1=400)
        go_through(bench, calm_emulator)
        (letter,) = dead_letters.find(bench.ledger)
        with pytest.raises(LedgerError, match="reason"):
            dead_letters.discard(bench.ledger, [letter.id], " ")
        assert dead_letters.discard(bench.ledger, [letter.id], "a scan without text") == 1
        assert dead_letters.discard(bench.ledger, [letter.id], "again") == 0
        bench.bury()
        discarded = dead_letters.get(bench.ledger, letter.id)
        assert (discarded.state, discarded.reason) == ("discarded", "a scan without text")
        assert bench.reconcile().dead_lettered == 1

    def test_letters_are_found_by_what_they_say(self, bench: Bench, calm_emulator: Emulator) -> None:
        fail(calm_emulator, t0=500, t1=400, t2=400)
        go_through(bench, calm_emulator)
        ledger = bench.ledger
        assert len(dead_letters.find(ledger, cls=OutcomeClass.PERMANENT)) == 2
        assert len(dead_letters.find(ledger, code="server_error", corpus="docs", run="run")) == 1
        assert len(dead_letters.find(ledger, workload="initial_ingest", limit=1)) == 1
        assert dead_letters.find(ledger, corpus="elsewhere") == []
        with pytest.raises(LedgerError, match="no dead letter 999"):
            dead_letters.get(ledger, 999)

    def test_a_null_byte_in_a_message_does_not_lose_the_letter(self, bench: Bench) -> None:
        key = item_key(SPACE.id, TEXTS[0])
        letter = NewLetter(key, "document", OutcomeClass.PERMANENT, "code", "a\0b", 1, "0-1")
        assert dead_letters.open_letters(bench.ledger, bench.run, SPACE.id, [letter], lambda: "path") == 1
        (found,) = dead_letters.find(bench.ledger)
        assert (found.message, found.body_uri) == ("ab", "path#0-1")

    def test_a_body_that_is_gone_is_named(self, storage: Storage) -> None:
        with pytest.raises(StorageError, match=r"dead_letters/docs/x\.jsonl"):
            letter_bodies.read(storage, "dead_letters/docs/x.jsonl#0-10")
        with pytest.raises(StorageError, match="no address"):
            letter_bodies.read(storage, "dead_letters/docs/x.jsonl")
