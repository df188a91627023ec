"""What the ledger and the provider don't both know is named, and files in vain are cleaned up."""

from __future__ import annotations

import dataclasses
import io
import uuid

import pytest

from include.batches import claims, submissions
from include.batches.compare import Comparison, Difference, clean, compare
from include.batches.submissions import SubmissionRow
from include.contracts import Submission
from include.errors import ProviderUnavailable
from include.ledger.connect import Connection
from include.ledger.locks import held
from include.storage import Storage
from tests.batches.packing import SMALL, Bench
from tests.batches.submitting import openai_provider
from tests.emulators import Tenant

TEXTS = [f"text number {number}" for number in range(8)]


@pytest.fixture
def bench(ledger: Connection, storage: Storage, emulator: Tenant) -> Bench:
    """A run of two shards, of which the first was sent."""
    bench = Bench(ledger, storage, openai_provider(emulator.openai_url, emulator.project), TEXTS)
    bench.pack(SMALL)
    bench.submit(bench.listed()[0])
    return bench


def look(bench: Bench) -> Comparison:
    return compare(bench.ledger, bench.provider, "test")


def row_of(bench: Bench, place: int) -> SubmissionRow:
    entry = bench.listed()[place]
    row = submissions.get(bench.ledger, entry.shard.id, entry.attempt)
    assert row is not None
    return row


def foreign(deployment: str) -> Submission:
    """A submission that this ledger doesn't know."""
    return Submission(str(uuid.uuid4()), "ab" * 16, 1, deployment, "/v1/embeddings", 1)


def upload(bench: Bench, submission: Submission) -> Submission:
    return dataclasses.replace(submission, file_id=bench.provider.upload(io.BytesIO(b"{}\n"), 3, submission))


def names(differences: tuple[Difference, ...]) -> list[tuple[str, str, str]]:
    return [(each.name, each.ledger, each.provider) for each in differences]


def files(emulator: Tenant) -> set[str]:
    return {file["id"] for file in emulator.state()["files"] if file["purpose"] == "batch"}


def test_what_both_hold_alike_is_no_difference(bench: Bench) -> None:
    assert look(bench) == Comparison(1, 1, (), (), (), ())


def test_another_installations_batches_and_files_are_left_alone(bench: Bench) -> None:
    bench.provider.create(upload(bench, foreign("another")))
    upload(bench, foreign("another"))
    assert look(bench) == Comparison(1, 1, (), (), (), ())


def test_a_batch_of_ours_that_the_ledger_does_not_know_is_named(bench: Bench) -> None:
    unknown = bench.provider.create(upload(bench, foreign("test")))
    found = look(bench)
    assert names(found.unknown) == [(unknown.batch_id, "unknown", "validating")]
    assert "cancel it" in found.unknown[0].advice
    assert found.orphans == (), "its file is in use"


def test_a_second_batch_of_one_submission_is_named(bench: Bench) -> None:
    second = bench.provider.create(row_of(bench, 0).as_submission())
    assert names(look(bench).unknown) == [(second.batch_id, "running", "validating")]


def test_a_batch_that_the_provider_does_not_list_is_named(bench: Bench) -> None:
    bench.ledger.execute("update submissions set batch_id = 'batch_lost' where state = 'running'")
    found = look(bench)
    assert names(found.lost) == [("batch_lost", "running", "not listed")]
    assert len(found.unknown) == 1


def test_a_state_that_differs_is_named(bench: Bench, emulator: Tenant) -> None:
    row = row_of(bench, 0)
    bench.ledger.execute("update submissions set state = 'void' where id = %s", (row.id,))
    assert names(look(bench).differing) == [(row.batch_id, "void", "validating")]
    bench.ledger.execute("update submissions set state = 'running' where id = %s", (row.id,))
    emulator.advance(25 * 3600)
    assert names(look(bench).differing) == [(row.batch_id, "running", "completed")]


def test_a_create_that_was_not_answered_will_be_adopted(bench: Bench) -> None:
    row = row_of(bench, 0)
    bench.ledger.execute(
        "update submissions set state = 'creating', batch_id = null where id = %s", (row.id,)
    )
    found = look(bench)
    assert names(found.differing) == [(row.batch_id, "creating", "validating")]
    assert found.unknown == ()


def test_a_page_that_cannot_be_read_is_no_empty_page(bench: Bench, emulator: Tenant) -> None:
    for operation in ("batches.list", "files.list"):
        emulator.faults({"on": operation, "do": "status", "status": 200, "body": {"object": "list"}})
        with pytest.raises(ProviderUnavailable):
            look(bench)


class TestFilesInVain:
    def test_of_a_submission_that_is_void_or_uploaded_twice_are_deleted(
        self, bench: Bench, emulator: Tenant
    ) -> None:
        planned = row_of(bench, 1)
        first, second = (upload(bench, planned.as_submission()).file_id for _ in range(2))
        assert first and second
        submissions.record_upload(bench.ledger, planned, second)
        used = row_of(bench, 0).file_id
        found = look(bench)
        assert names(found.orphans) == [(first, "planned", "3 bytes")]
        assert clean(bench.ledger, bench.provider, found) == [first]
        assert files(emulator) == {used, second}
        submissions.void(bench.ledger, row_of(bench, 1), "refused", from_states=("planned",))
        assert clean(bench.ledger, bench.provider, look(bench)) == [second]
        assert files(emulator) == {used} and row_of(bench, 1).file_id is None
        assert look(bench).orphans == ()

    def test_are_left_while_their_shard_is_being_sent(self, bench: Bench, ledger_url: str) -> None:
        from include.ledger.connect import connect

        planned = row_of(bench, 1)
        upload(bench, planned.as_submission())
        found = look(bench)
        assert len(found.orphans) == 1
        with connect(ledger_url) as another, held(another, f"shard/{planned.shard}"):
            assert clean(bench.ledger, bench.provider, found) == []

    def test_that_the_ledger_does_not_know_are_named_and_left(self, bench: Bench, emulator: Tenant) -> None:
        file_id = upload(bench, foreign("test")).file_id
        found = look(bench)
        assert names(found.orphans) == [(file_id, "unknown", "3 bytes")]
        assert clean(bench.ledger, bench.provider, found) == []
        assert file_id in files(emulator)

    def test_of_void_attempts_go_with_the_runs_end(self, bench: Bench, emulator: Tenant) -> None:
        planned = row_of(bench, 1)
        file_id = upload(bench, planned.as_submission()).file_id
        assert file_id
        uploaded = submissions.record_upload(bench.ledger, planned, file_id)
        submissions.void(bench.ledger, uploaded, "refused", from_states=("planned",))
        assert claims.sweep(bench.ledger, bench.provider, bench.run.run) == 1
        assert file_id not in files(emulator)
        assert claims.sweep(bench.ledger, bench.provider, bench.run.run) == 0
