"""Landing: every line is judged by itself, every key sent is accounted for, and doing it again is safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from include.batches import failures, submissions
from include.batches.failures import Failure
from include.batches.land import LandReport, land
from include.batches.shards import ListedShard
from include.contracts import (
    BatchState,
    BatchStatus,
    Limits,
    Outcome,
    OutcomeClass,
    Price,
    Space,
    Usage,
    Vector,
)
from include.errors import AccountError, LedgerError, ProviderUnavailable
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.requests import results
from include.requests.keys import item_key, item_keys
from include.requests.results import keys_array
from include.storage import Storage
from tests.batches.packing import DIMENSIONS, OFFLINE, Bench
from tests.batches.submitting import ACCOUNT, SPACE, openai_provider
from tests.emulators import Emulator, tenant_of

TEXTS = [f"landed text {number}" for number in range(6)]
KEY = {text: item_key(SPACE.id, text) for text in TEXTS}


@pytest.fixture
def provider(calm_emulator: Emulator) -> OpenAIBatches:
    return openai_provider(calm_emulator.openai_url)


@pytest.fixture
def bench(ledger: Connection, storage: Storage, provider: OpenAIBatches) -> Bench:
    return Bench(ledger, storage, provider, TEXTS)


def failed(bench: Bench, entry: ListedShard) -> dict[bytes, Failure]:
    path = failures.of_attempt(entry.shard.id, entry.attempt)
    return {failure.key: failure for failure in failures.read(bench.storage, path)}


def stored(bench: Bench, texts: Sequence[str] = TEXTS) -> dict[Any, Vector]:
    files = results.files(bench.storage, SPACE.id)
    wanted = keys_array(b"".join(item_keys(SPACE.id, texts)))
    found: dict[Any, Vector] = {}
    for table in results.read(bench.storage, files, wanted):
        for key, vector in zip(table["key"].to_pylist(), table["vector"].to_pylist(), strict=True):
            found[key] = np.frombuffer(vector, "<f4")
    return found


class TestOnTheWire:
    def test_answers_are_stored_by_key_whatever_their_order(
        self, bench: Bench, calm_emulator: Emulator
    ) -> None:
        bench.pack()
        (report,) = bench.process(calm_emulator)
        assert (report.items, report.succeeded, report.duplicates, report.foreign) == (6, 6, 0, 0)
        assert set(stored(bench)) == set(KEY.values())
        probe = bench.provider.probe(SPACE, TEXTS[2])
        assert np.allclose(stored(bench)[KEY[TEXTS[2]]], probe.values[0])
        (entry,) = bench.listed()
        assert failed(bench, entry) == {}
        assert report.usage.input > 0
        assert report.cost_usd == pytest.approx(report.usage.input * 0.02 / 1e6 / 2)
        assert report.models == ("text-embedding-3-small",)

    def test_each_kind_of_line_gets_its_own_judgement(self, bench: Bench, calm_emulator: Emulator) -> None:
        ids = [KEY[text].hex() for text in TEXTS]
        calm_emulator.faults(
            {
                "on": "line",
                "when": {"custom_id": ids[0]},
                "do": "line_error",
                "status": 400,
                "code": "invalid_request",
            },
            {
                "on": "line",
                "when": {"custom_id": ids[1]},
                "do": "line_error",
                "status": 500,
                "code": "server_error",
            },
            {"on": "line", "when": {"custom_id": ids[2]}, "do": "line_omit"},
            {"on": "line", "when": {"custom_id": ids[3]}, "do": "line_duplicate"},
            {"on": "line", "when": {"custom_id": ids[4]}, "do": "line_foreign"},
            {
                "on": "line",
                "when": {"custom_id": ids[5]},
                "do": "line_body",
                "body": {"data": [{"index": 0, "embedding": [1.0, 2.0]}]},
            },
        )
        bench.pack()
        (report,) = bench.process(calm_emulator)
        (entry,) = bench.listed()
        assert (report.succeeded, report.invalid, report.retryable, report.permanent) == (2, 1, 2, 1)
        assert (report.items, report.duplicates, report.foreign) == (6, 1, 1)
        kinds = {key: (failure.cls.value, failure.code) for key, failure in failed(bench, entry).items()}
        assert kinds == {
            KEY[TEXTS[0]]: ("permanent", "invalid_request"),
            KEY[TEXTS[1]]: ("retryable", "server_error"),
            KEY[TEXTS[2]]: ("retryable", "missing"),
            KEY[TEXTS[5]]: ("invalid", "wrong_dimension"),
        }
        assert set(stored(bench)) == {KEY[TEXTS[3]], KEY[TEXTS[4]]}

    def test_what_an_expired_batch_did_is_kept(self, bench: Bench, calm_emulator: Emulator) -> None:
        calm_emulator.faults({"on": "batch", "do": "expire_at", "fraction": 0.5})
        bench.pack()
        (report,) = bench.process(calm_emulator)
        assert (report.succeeded, report.retryable) == (3, 3)
        (entry,) = bench.listed()
        assert {failure.code for failure in failed(bench, entry).values()} == {"batch_expired"}

    def test_a_file_that_failed_validation_blames_only_the_lines_it_names(
        self, bench: Bench, calm_emulator: Emulator
    ) -> None:
        calm_emulator.faults(
            {
                "on": "batch",
                "do": "fail_batch",
                "code": "invalid_json_line",
                "message": "This line is not parseable as valid JSON.",
                "line": 2,
            }
        )
        bench.pack()
        (report,) = bench.process(calm_emulator)
        (entry,) = bench.listed()
        assert (report.permanent, report.retryable, report.succeeded) == (1, 5, 0)
        second = sorted(KEY.values())[1]
        found = failed(bench, entry)
        assert (found[second].cls, found[second].code) == (OutcomeClass.PERMANENT, "invalid_json_line")
        del found[second]
        assert {failure.code for failure in found.values()} == {"file_refused"}

    def test_a_packed_line_that_failed_blames_nobody_yet(self, bench: Bench, calm_emulator: Emulator) -> None:
        calm_emulator.faults(
            {"on": "line", "when": {"nth": 1}, "do": "line_error", "status": 400, "code": "invalid_request"}
        )
        bench.pack(Limits(50_000, 200_000_000, inputs_per_request=2048), inputs_per_line=3)
        (report,) = bench.process(calm_emulator)
        (entry,) = bench.listed()
        assert (report.permanent, report.succeeded) == (3, 3)
        assert all(not failure.alone and failure.asked_again for failure in failed(bench, entry).values())

    def test_a_landed_submission_is_not_landed_again(self, bench: Bench, calm_emulator: Emulator) -> None:
        bench.pack()
        (first,) = bench.process(calm_emulator)
        (entry,) = bench.listed()
        path = results.path(SPACE.id, first.submission)
        written = bench.storage.fs.info(bench.storage.path(path))["ino"]
        again = bench.land(entry)
        assert again == replace(first, landed_before=True)
        assert bench.storage.fs.info(bench.storage.path(path))["ino"] == written

    def test_a_landing_that_was_killed_lands_again_over_the_same_file(
        self, bench: Bench, calm_emulator: Emulator
    ) -> None:
        bench.pack()
        (first,) = bench.process(calm_emulator)
        (entry,) = bench.listed()
        # As if the process had died just before the ledger was told.
        bench.ledger.execute("update submissions set state = 'ended', counts = '{}'")
        again = bench.land(entry)
        assert again == first
        assert len(results.files(bench.storage, SPACE.id)) == 1

    def test_a_running_batch_is_not_landed(self, bench: Bench) -> None:
        bench.pack()
        (entry,) = bench.listed()
        bench.submit(entry)
        with pytest.raises(LedgerError, match="is running"):
            bench.land(entry)

    def test_a_download_that_breaks_off_lands_nothing(self, bench: Bench, calm_emulator: Emulator) -> None:
        bench.pack()
        calm_emulator.faults({"on": "files.content", "do": "shorten", "bytes": 100})
        with pytest.raises(ProviderUnavailable):
            bench.process(calm_emulator)
        calm_emulator.faults()
        (entry,) = bench.listed()
        row = submissions.get(bench.ledger, entry.shard.id, entry.attempt)
        assert row is not None and row.state == "ended"
        assert results.files(bench.storage, SPACE.id) == []
        assert bench.land(entry).succeeded == 6


class Answers(OpenAIBatches):
    """A provider whose batch has ended with these outcomes."""

    def __init__(self, outcomes: Sequence[Outcome], status: BatchStatus | None = None) -> None:
        super().__init__(None, None, account=ACCOUNT)
        self._outcomes = outcomes
        self._status = status or BatchStatus("batch", BatchState.ENDED, "completed")

    def status(self, batch_id: str) -> BatchStatus:
        return self._status

    def outcomes(self, status: BatchStatus, space: Space) -> Iterator[Outcome]:
        yield from self._outcomes


def good(text: str, value: Vector | str | None = None, **options: object) -> Outcome:
    vector = np.full(DIMENSIONS, 0.5, np.float32) if value is None else value
    return Outcome(KEY[text].hex(), OutcomeClass.SUCCEEDED, [vector], Usage(input=3), "m", **options)  # type: ignore[arg-type]


@pytest.fixture
def ended(ledger: Connection, storage: Storage) -> Bench:
    """A run whose one batch has ended."""
    bench = Bench(ledger, storage, OFFLINE, TEXTS)
    bench.pack()
    ledger.execute("update submissions set state = 'ended', batch_id = 'batch'")
    return bench


def land_with(bench: Bench, outcomes: Sequence[Outcome], **options: object) -> LandReport:
    (entry,) = bench.listed()
    status = options.pop("status", None)
    bench.provider = Answers(outcomes, status)  # type: ignore[arg-type]
    return bench.land(entry, **options)


class TestWhatTheWireSeldomSays:
    def test_a_vector_that_is_not_finite_is_invalid(self, ended: Bench) -> None:
        bad, worse = np.full((2, DIMENSIONS), 0.5, np.float32)
        bad[3], worse[0] = np.nan, np.inf
        report = land_with(
            ended,
            [good(TEXTS[0]), good(TEXTS[1], bad), good(TEXTS[2]), good(TEXTS[3], worse), good(TEXTS[4])],
        )
        assert (report.succeeded, report.invalid, report.retryable) == (3, 2, 1)
        assert set(stored(ended)) == {KEY[text] for text in (TEXTS[0], TEXTS[2], TEXTS[4])}

    def test_a_good_answer_after_a_failure_counts(self, ended: Bench) -> None:
        refusal = Outcome(KEY[TEXTS[0]].hex(), OutcomeClass.RETRYABLE, code="server_error")
        report = land_with(ended, [refusal, *(good(text) for text in TEXTS)])
        assert (report.succeeded, report.retryable, report.duplicates) == (6, 0, 1)

    def test_a_failure_after_a_good_answer_does_not(self, ended: Bench) -> None:
        refusal = Outcome(KEY[TEXTS[0]].hex(), OutcomeClass.PERMANENT, code="invalid_request")
        report = land_with(ended, [*(good(text) for text in TEXTS), refusal])
        assert (report.succeeded, report.permanent, report.duplicates) == (6, 0, 1)

    def test_the_first_of_two_good_answers_counts(self, ended: Bench) -> None:
        other = np.full(DIMENSIONS, 9.0, np.float32)
        report = land_with(ended, [*(good(text) for text in TEXTS), good(TEXTS[0], other)])
        assert (report.duplicates, report.usage.input) == (1, 18)
        assert stored(ended)[KEY[TEXTS[0]]][0] == 0.5

    def test_more_vectors_than_inputs_are_invalid(self, ended: Bench) -> None:
        two = Outcome(
            KEY[TEXTS[0]].hex(), OutcomeClass.SUCCEEDED, [np.zeros(DIMENSIONS, np.float32)] * 2, model="m"
        )
        (entry,) = ended.listed()
        assert land_with(ended, [two]).invalid == 1
        assert failed(ended, entry)[KEY[TEXTS[0]]].code == "wrong_count"

    def test_the_workload_may_refuse_an_answer(self, ended: Bench) -> None:
        def accept(outcome: Outcome) -> Outcome:
            if outcome.custom_id == KEY[TEXTS[0]].hex():
                return Outcome(
                    outcome.custom_id, OutcomeClass.INVALID, code="off_schema", usage=outcome.usage
                )
            return outcome

        report = land_with(ended, [good(text) for text in TEXTS], accept=accept)
        assert (report.succeeded, report.invalid) == (5, 1)
        assert report.usage.input == 18

    def test_generated_text_is_stored_as_it_came(self, ended: Bench) -> None:
        report = land_with(ended, [good(text, f"answer to {text}") for text in TEXTS], dimensions=None)
        assert report.succeeded == 6
        (path,) = results.files(ended.storage, SPACE.id)
        with ended.storage.parquet_file(path) as file:
            table = file.read()
        assert set(table["output"].to_pylist()) == {f"answer to {text}" for text in TEXTS}

    def test_the_batchs_usage_counts_where_no_line_names_any(self, ended: Bench) -> None:
        status = BatchStatus("batch", BatchState.ENDED, "completed", usage=Usage(input=1_000))
        outcomes = [
            Outcome(KEY[text].hex(), OutcomeClass.SUCCEEDED, [np.zeros(DIMENSIONS, np.float32)])
            for text in TEXTS
        ]
        report = land_with(ended, outcomes, status=status)
        assert report.usage.input == 1_000
        assert report.cost_usd == pytest.approx(1e-5)

    def test_an_account_that_cannot_pay_is_told_from_a_bad_input(self, ended: Bench) -> None:
        error = ("billing_hard_limit_reached", "Billing hard limit has been reached.")
        status = BatchStatus("batch", BatchState.ENDED, "failed", error=error)
        report = land_with(ended, [], status=status)
        assert (report.account, report.succeeded) == (6, 0)

    def test_a_batch_that_the_provider_does_not_find_now_lands_later(self, ended: Bench) -> None:
        ended.ledger.execute("update submissions set provider_status = 'completed'")
        status = BatchStatus("batch", BatchState.NOT_FOUND, "not_found")
        with pytest.raises(ProviderUnavailable, match="not_found"):
            land_with(ended, [], status=status)

    def test_what_was_given_up_for_lost_is_asked_again(self, ended: Bench) -> None:
        ended.ledger.execute("update submissions set provider_status = 'not_found'")
        status = BatchStatus("batch", BatchState.NOT_FOUND, "not_found")
        assert land_with(ended, [], status=status).retryable == 6

    def test_files_that_outlive_their_batch_are_read(self, ended: Bench) -> None:
        ended.ledger.execute("update submissions set provider_status = 'completed', output_file_id = 'file'")
        status = BatchStatus("batch", BatchState.NOT_FOUND, "not_found")
        assert land_with(ended, [good(text) for text in TEXTS], status=status).succeeded == 6

    def test_another_accounts_connection_lands_nothing(self, ended: Bench) -> None:
        ended.ledger.execute("update submissions set account = 'another'")
        with pytest.raises(AccountError, match="another"):
            land_with(ended, [])

    def test_the_tokens_of_a_packed_line_are_divided_among_its_items(
        self, ledger: Connection, storage: Storage
    ) -> None:
        bench = Bench(ledger, storage, OFFLINE, ["a", "a b", "a b c"])
        bench.pack(Limits(10, 10_000, inputs_per_request=10), inputs_per_line=3)
        ledger.execute("update submissions set state = 'ended', batch_id = 'batch'")
        (entry,) = bench.listed()
        with storage.parquet_file(f"shards/{entry.shard.id}/keys.parquet") as file:
            custom_id = file.read()["custom_id"][0].as_py()
        vectors = [np.full(DIMENSIONS, float(number), np.float32) for number in range(3)]
        outcome = Outcome(custom_id, OutcomeClass.SUCCEEDED, vectors, Usage(input=13), "m")
        land_with(bench, [outcome])
        (path,) = results.files(storage, SPACE.id)
        with storage.parquet_file(path) as file:
            table: Any = file.read()
        assert sum(table["input_tokens"].to_pylist()) == 13
        assert sorted(table["key"].to_pylist()) == sorted(item_keys(SPACE.id, ["a", "a b", "a b c"]))

    def test_an_unknown_attempt_is_named(self, ended: Bench) -> None:
        (entry,) = ended.listed()
        with pytest.raises(LedgerError, match="attempt 7"):
            land(
                ended.ledger,
                ended.storage,
                OFFLINE,
                SPACE,
                Price(0.02),
                entry.shard.id,
                7,
                dimensions=DIMENSIONS,
            )


def test_blocks_of_a_large_batch_are_row_groups_sorted_by_key(
    ledger: Connection, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_GROUP_BYTES", 4 * DIMENSIONS * 100)
    texts = [f"text {number}" for number in range(1_000)]
    bench = Bench(ledger, storage, OFFLINE, texts)
    bench.pack(Limits(50_000, 200_000_000))
    ledger.execute("update submissions set state = 'ended', batch_id = 'batch'")
    outcomes = [
        Outcome(
            key.hex(),
            OutcomeClass.SUCCEEDED,
            [np.frombuffer(key * 2, np.uint8)[:DIMENSIONS].astype(np.float32)],
            model="m",
        )
        for key in item_keys(SPACE.id, texts)
    ]
    assert land_with(bench, outcomes).succeeded == 1_000
    (path,) = results.files(storage, SPACE.id)
    with storage.parquet_file(path) as file:
        assert file.num_row_groups == 10
        for group in range(10):
            keys: list[Any] = file.read_row_group(group, columns=["key"])["key"].to_pylist()
            assert keys == sorted(keys)
    found = stored(bench, texts)
    assert len(found) == 1_000
    assert all(
        np.array_equal(vector, np.frombuffer(key, np.uint8)[:DIMENSIONS].astype(np.float32))
        for key, vector in found.items()
    )


def test_the_file_it_was_sent_from_is_deleted_and_a_refusal_to_is_no_failure(
    ledger: Connection, storage: Storage, calm_emulator: Emulator
) -> None:
    emulator = tenant_of(calm_emulator)
    bench = Bench(ledger, storage, openai_provider(emulator.openai_url, emulator.project), ["a", "b"])
    bench.pack()
    bench.process(emulator)
    assert {file["purpose"] for file in emulator.state()["files"]} == {"batch_output"}
    bench.write_rows(["c"])
    bench.pack()
    emulator.faults({"on": "files.delete", "do": "status", "status": 500})
    assert [report.succeeded for report in bench.process(emulator)] == [2, 1]
