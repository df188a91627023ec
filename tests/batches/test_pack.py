"""Packing: nothing is sent that has an answer, is in flight or is blocked; nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from include.batches import dead_letters, shards, submissions
from include.batches.dead_letters import NewLetter
from include.batches.shard_files import keys_path, requests_path
from include.contracts import Item, Limits, OutcomeClass, RunRef, Space
from include.errors import ConfigError, StorageError
from include.ledger.connect import Connection, connect
from include.providers.openai import OpenAIBatches
from include.requests.keys import item_key
from include.requests.reuse import Reuse
from include.storage import Storage
from tests.batches.packing import OFFLINE, SMALL, Bench, land_results, run_rows
from tests.batches.submitting import ACCOUNT, SPACE

TEXTS = [f"text number {number}" for number in range(10)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage) -> Bench:
    return Bench(ledger, storage, OFFLINE, TEXTS)


class TestNothingIsSentTwice:
    def test_equal_inputs_are_asked_once(self, bench: Bench) -> None:
        bench.write_rows([*TEXTS, *TEXTS[:3]])
        report = bench.pack()
        assert (report.items, report.sent, report.duplicates) == (10, 10, 3)
        assert sorted(bench.sent_texts()) == sorted(TEXTS)

    def test_what_has_an_answer_is_reused(self, bench: Bench) -> None:
        land_results(bench, TEXTS[:4], "earlier")
        report = bench.pack()
        assert (report.reused, report.sent) == (4, 6)
        assert sorted(bench.sent_texts()) == sorted(TEXTS[4:])

    def test_nothing_missing_means_no_shard(self, bench: Bench) -> None:
        land_results(bench, TEXTS, "earlier")
        report = bench.pack()
        assert (report.reused, report.sent, report.shards) == (10, 0, [])

    def test_what_another_run_has_in_flight_is_joined(
        self, bench: Bench, ledger: Connection, storage: Storage
    ) -> None:
        first = bench.pack()
        other = Bench(ledger, storage, OFFLINE, [*TEXTS[5:], "one more"], run="other")
        report = other.pack()
        assert (report.joined, report.sent, report.items) == (5, 1, 6)
        assert first.shards[0] in report.shards
        joined = [entry for entry in other.listed() if entry.joined]
        assert [(entry.shard.id, entry.attempt) for entry in joined] == [(first.shards[0], 1)]
        assert len(submissions.attempts(ledger, first.shards[0])) == 1

    def test_who_packs_while_another_registers_subtracts_again(
        self, ledger: Connection, ledger_url: str, storage: Storage
    ) -> None:
        with connect(ledger_url) as other_connection:
            other = Bench(other_connection, storage, OFFLINE, TEXTS[:6], run="other")
            late = Interrupted(lambda: other.pack())
            loser = Bench(ledger, storage, late, TEXTS, run="loser")
            report = loser.pack()
            assert (report.joined, report.sent) == (6, 4)
            assert late.interrupted
            assert sorted(other.sent_texts()) == sorted(TEXTS[:6])
            new = [entry.shard.id for entry in loser.listed() if not entry.joined]
            assert len(new) == 1
            live = submissions.live(ledger, SPACE.id)
            assert sum(row.lines for row in live) == 10

    def test_a_submission_that_lands_while_another_run_packs_is_not_sent_again(
        self, bench: Bench, ledger: Connection, storage: Storage
    ) -> None:
        # Live submissions are read before the results: what lands in between is seen as in flight.
        bench.pack()
        (entry,) = bench.listed()
        other = Bench(ledger, storage, OFFLINE, TEXTS, run="other")
        land_results(bench, TEXTS, "landing")
        report = other.pack()
        assert (report.sent, report.reused + report.joined) == (0, 10)
        assert entry.attempt == 1


class TestAClearedPackFindsItsOwnList:
    def test_packing_again_registers_nothing_and_reports_the_same(self, bench: Bench) -> None:
        first = bench.pack(SMALL)
        assert len(first.shards) == 3
        assert bench.pack(SMALL) == first
        assert len(bench.listed()) == 3

    def test_the_list_stands_when_other_limits_hold(self, bench: Bench) -> None:
        first = bench.pack(SMALL)
        assert bench.pack().shards == first.shards

    def test_rows_that_came_since_are_added_behind(self, bench: Bench) -> None:
        first = bench.pack(SMALL)
        bench.write_rows([*TEXTS, "one more"])
        report = bench.pack(SMALL)
        assert report.shards[:3] == first.shards
        assert (len(report.shards), report.sent, report.items) == (4, 11, 11)

    def test_a_pack_that_was_killed_before_it_registered_leaves_files_that_are_used(
        self, bench: Bench, ledger: Connection, storage: Storage
    ) -> None:
        report = bench.pack()
        path = requests_path(report.shards[0])
        written = storage.fs.info(storage.path(path))["ino"]
        # As if the process had died before the transaction.
        ledger.execute("truncate submission_events, run_shards, submissions, shards")
        assert bench.pack() == report
        assert storage.fs.info(storage.path(path))["ino"] == written

    def test_what_was_never_paid_for_is_planned_anew_since_others_may_have_sent_it(
        self, bench: Bench, ledger: Connection, storage: Storage
    ) -> None:
        report = bench.pack(SMALL)
        ledger.execute("update submissions set state = 'void'")
        other = Bench(ledger, storage, OFFLINE, TEXTS[:9], run="other")
        assert other.pack().sent == 9
        again = bench.pack(SMALL)
        assert (again.joined, again.sent, again.items) == (9, 1, 10)
        assert len(again.shards) == 2
        assert not set(again.shards) & set(report.shards)

    def test_a_void_shard_whose_items_are_still_missing_is_a_new_attempt(
        self, bench: Bench, ledger: Connection
    ) -> None:
        report = bench.pack(SMALL)
        ledger.execute("update submissions set state = 'void'")
        assert bench.pack(SMALL) == report
        assert [entry.attempt for entry in bench.listed()] == [2, 2, 2]

    def test_key_files_may_go_once_their_shard_has_landed(
        self, bench: Bench, ledger: Connection, storage: Storage
    ) -> None:
        report = bench.pack()
        land_results(bench, TEXTS, "landed")
        storage.delete(keys_path(report.shards[0]))
        with pytest.raises(StorageError, match="hasn't landed"):
            bench.pack()
        ledger.execute("update submissions set state = 'landed'")
        again = bench.pack()
        assert (again.shards, again.reused) == (report.shards, 10)

    def test_nothing_is_packed_while_it_is_unknown_what_is_in_flight(
        self, bench: Bench, ledger: Connection, storage: Storage
    ) -> None:
        report = bench.pack()
        storage.delete(keys_path(report.shards[0]))
        other = Bench(ledger, storage, OFFLINE, TEXTS, run="other")
        with pytest.raises(StorageError, match="is in flight"):
            other.pack()


class TestReuseIsAPolicy:
    def test_answers_older_than_max_age_are_asked_again(self, bench: Bench) -> None:
        land_results(bench, TEXTS[:2], "old", age_seconds=7200)
        land_results(bench, TEXTS[2:5], "new", age_seconds=60)
        report = bench.pack(reuse=Reuse("max_age", 3600))
        assert (report.reused, report.sent) == (3, 7)

    def test_a_run_of_its_own_ignores_the_answers_of_others(self, bench: Bench, ledger: Connection) -> None:
        land_results(bench, TEXTS, "earlier")
        report = bench.pack(reuse=Reuse("run"))
        assert (report.reused, report.sent) == (0, 10)
        # Once its own have landed, they count, and the run's list stands.
        (row,) = submissions.of_run(ledger, "run")
        land_results(bench, TEXTS, row.id)
        ledger.execute("update submissions set state = 'landed'")
        assert bench.pack(reuse=Reuse("run")).shards == report.shards

    def test_an_age_without_its_policy_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="max_age"):
            Reuse("always", 3600)


class TestBlockedAndRefused:
    def test_items_with_a_letter_that_asking_again_does_not_mend_are_blocked(
        self, bench: Bench, ledger: Connection
    ) -> None:
        earlier = RunRef("earlier", bench.run.workload, bench.run.corpus, "runs/earlier")
        letters = [
            letter(TEXTS[0], OutcomeClass.PERMANENT),
            letter(TEXTS[1], OutcomeClass.RETRYABLE),
            letter(TEXTS[2], OutcomeClass.INVALID),
            letter(TEXTS[3], OutcomeClass.RETRYABLE),
        ]
        dead_letters.open_letters(ledger, earlier, SPACE.id, letters, lambda: "dead_letters/x.jsonl")
        (discarded,) = [
            each.id for each in dead_letters.find(ledger) if each.key == item_key(SPACE.id, TEXTS[3]).hex()
        ]
        dead_letters.discard(ledger, [discarded], "nobody needs it")
        report = bench.pack()
        assert (report.blocked, report.sent) == (3, 7)
        assert not {TEXTS[0], TEXTS[2], TEXTS[3]} & set(bench.sent_texts())

    def test_letters_of_another_corpus_block_nothing(self, bench: Bench, ledger: Connection) -> None:
        other = RunRef("other", bench.run.workload, "other_corpus", "runs/other")
        dead_letters.open_letters(
            ledger, other, SPACE.id, [letter(TEXTS[0], OutcomeClass.PERMANENT)], lambda: "x"
        )
        assert bench.pack().blocked == 0

    def test_an_input_that_is_too_long_is_refused_by_itself(self, bench: Bench, storage: Storage) -> None:
        bench.write_rows([*TEXTS, "word " * 50])
        report = bench.pack(Limits(50_000, 200_000_000, tokens_per_input=20))
        assert (report.refused, report.sent) == (1, 10)
        bury = bench.bury()
        assert bury.opened == {"permanent": 1}
        (found,) = dead_letters.find(bench.ledger)
        assert (found.code, found.document_id) == ("too_long", "document-10")
        # The next pack of this run meets the letter instead.
        again = bench.pack(Limits(50_000, 200_000_000, tokens_per_input=20))
        assert (again.blocked, again.refused, again.sent) == (1, 0, 10)

    def test_a_line_larger_than_a_batch_is_refused_by_itself(self, bench: Bench) -> None:
        bench.write_rows([*TEXTS, "word " * 500])
        report = bench.pack(Limits(50_000, 1_000))
        assert (report.refused, report.sent) == (1, 10)


class TestManyShards:
    def test_more_shards_than_a_mapped_group_may_have_are_listed_in_order(self, bench: Bench) -> None:
        texts = [f"text {number}" for number in range(1_200)]
        bench.write_rows(texts)
        report = bench.pack(Limits(1, 200_000_000))
        assert len(report.shards) == 1_200
        assert report.shards == sorted(report.shards)
        assert [entry.shard.id for entry in bench.listed()] == report.shards

    def test_a_shard_leaves_room_for_three_more_in_the_accounts_queue(self, bench: Bench) -> None:
        limits = Limits(50_000, 200_000_000, enqueued_tokens=60, enqueued_requests=1_000_000)
        bench.pack(limits)
        assert all(entry.shard.tokens <= 15 for entry in bench.listed())
        assert len(bench.listed()) == 2


class TestWhereAndWhat:
    def test_object_storage_works_like_a_folder(self, ledger: Connection) -> None:
        remote = Storage("memory://bucket/root")
        bench = Bench(ledger, remote, OFFLINE, [*TEXTS, TEXTS[1]])
        land_results(bench, TEXTS[:2], "earlier")
        report = bench.pack(SMALL)
        assert (report.sent, report.reused, report.duplicates, len(report.shards)) == (8, 2, 1, 2)
        assert sorted(bench.sent_texts()) == sorted(TEXTS[2:])
        assert bench.pack(SMALL) == report

    def test_structured_inputs_are_sent_as_objects(self, ledger: Connection, storage: Storage) -> None:
        space = Space("openai", "emulator", "/v1/chat/completions", "gpt-4o-mini", {"temperature": 0})
        bench = Bench(ledger, storage, OFFLINE, [])
        path = f"{bench.run.uri}/rows/range-00.parquet"
        storage.write_parquet(
            path, run_rows(['{"messages":[{"role":"user","content":"hi"}]}'], space_id=space.id)
        )
        from include.batches.pack import pack

        report = pack(
            ledger,
            storage,
            OFFLINE,
            space,
            Limits(50_000, 200_000_000),
            run=bench.run,
            rows=[path],
            account=ACCOUNT,
            deployment="test",
            structured=True,
        )
        body = storage.read_json(requests_path(report.shards[0]))["body"]
        assert body["messages"] == [{"role": "user", "content": "hi"}]

    def test_a_run_that_the_ledger_does_not_know_is_not_packed(self, bench: Bench) -> None:
        bench.ledger.execute("delete from runs")
        with pytest.raises(Exception, match="isn't in the ledger"):
            bench.pack()

    def test_a_list_is_written_with_its_submissions_or_not_at_all(
        self, bench: Bench, ledger: Connection
    ) -> None:
        ledger.execute("alter table run_shards add constraint full_up check (ordinal < 1)")
        with pytest.raises(psycopg.errors.CheckViolation):
            bench.pack(SMALL)
        assert submissions.live(ledger, SPACE.id) == []
        assert shards.of_run(ledger, "run", 1) == []


class Interrupted(OpenAIBatches):
    """A provider in whose first line somebody else gets a word in."""

    def __init__(self, meanwhile: object) -> None:
        super().__init__(None, None, account=ACCOUNT)
        self._meanwhile = meanwhile
        self.interrupted = False

    def line(self, space: Space, items: Sequence[Item], custom_id: str) -> bytes:
        if not self.interrupted:
            self.interrupted = True
            assert callable(self._meanwhile)
            self._meanwhile()
        return super().line(space, items, custom_id)


def letter(text: str, cls: OutcomeClass) -> NewLetter:
    return NewLetter(item_key(SPACE.id, text), "document", cls, "code", "message", 2, "0-1")
