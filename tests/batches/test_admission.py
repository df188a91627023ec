"""Room and money are reserved before a batch is created, in line, and given back at its end."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from include.batches import admission, submissions
from include.batches.admission import Want
from include.batches.submissions import SubmissionRow
from include.contracts import BatchState, BatchStatus, Limits
from include.errors import BudgetExceeded, ConfigError
from include.ledger import clock
from include.ledger.connect import Connection, connect
from include.storage import Storage
from tests.batches.submitting import LIMITS, add_run, add_shard, row_of

ROOM_FOR_TWO = dataclasses.replace(LIMITS, enqueued_tokens=100)
WANT = Want(tokens=40, requests=1, usd=1.0)


@pytest.fixture
def run(ledger: Connection) -> str:
    return add_run(ledger)


def rows(ledger: Connection, storage: Storage, count: int, run: str = "run") -> list[SubmissionRow]:
    return [
        row_of(ledger, add_shard(ledger, storage, [f"{run} {number}"], run=run)) for number in range(count)
    ]


def reserve(
    ledger: Connection, row: SubmissionRow, limits: Limits = ROOM_FOR_TWO, want: Want = WANT
) -> SubmissionRow | str:
    return admission.reserve(ledger, submissions.by_id(ledger, row.id), want, limits, row.run)


def finish(ledger: Connection, row: SubmissionRow) -> None:
    status = BatchStatus(f"batch_{row.id}", BatchState.ENDED, "completed")
    row = submissions.created(ledger, submissions.by_id(ledger, row.id), status)
    assert submissions.end(ledger, row, status) is not None


def test_what_does_not_fit_waits_until_something_ends(ledger: Connection, storage: Storage, run: str) -> None:
    first, second, third = rows(ledger, storage, 3)
    assert isinstance(reserve(ledger, first), SubmissionRow)
    assert isinstance(reserve(ledger, second), SubmissionRow)
    assert reserve(ledger, third) == (
        "80 of 100 enqueued tokens of text-embedding-3-small are taken; this needs 40"
    )
    waiting = submissions.by_id(ledger, third.id)
    assert waiting.state == "planned" and waiting.reason.startswith("80 of 100")
    finish(ledger, first)
    assert isinstance(reserve(ledger, third), SubmissionRow)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (dataclasses.replace(LIMITS, enqueued_requests=1), "enqueued requests of text-embedding-3-small"),
        (dataclasses.replace(LIMITS, account_requests=1), "enqueued requests of all models"),
        (dataclasses.replace(LIMITS, live_batches=1), "live batches"),
        (dataclasses.replace(LIMITS, creations_per_hour=1), "within the hour"),
    ],
)
def test_every_limit_holds(
    ledger: Connection, storage: Storage, run: str, limits: Limits, reason: str
) -> None:
    first, second = rows(ledger, storage, 2)
    assert isinstance(reserve(ledger, first, limits), SubmissionRow)
    told = reserve(ledger, second, limits)
    assert isinstance(told, str) and reason in told
    finish(ledger, first)
    clock.advance(ledger, 3601)
    assert isinstance(reserve(ledger, second, limits), SubmissionRow)


def test_what_is_larger_than_the_limit_goes_alone(ledger: Connection, storage: Storage, run: str) -> None:
    first, large = rows(ledger, storage, 2)
    assert isinstance(reserve(ledger, first), SubmissionRow)
    huge = Want(tokens=1000, requests=1, usd=0.0)
    assert isinstance(reserve(ledger, large, want=huge), str)
    finish(ledger, first)
    assert isinstance(reserve(ledger, large, want=huge), SubmissionRow)


def test_first_come_first_served(ledger: Connection, storage: Storage, run: str) -> None:
    taken, early, late = rows(ledger, storage, 3)
    limits = dataclasses.replace(LIMITS, enqueued_tokens=40)
    assert isinstance(reserve(ledger, taken, limits), SubmissionRow)
    assert isinstance(reserve(ledger, early, limits), str)
    assert isinstance(reserve(ledger, late, limits), str)
    finish(ledger, taken)
    assert reserve(ledger, late, limits) == "1 submission for text-embedding-3-small stand ahead in line"
    assert isinstance(reserve(ledger, early, limits), SubmissionRow)


def test_a_higher_priority_gets_in_first(ledger: Connection, storage: Storage, run: str) -> None:
    taken, waiting = rows(ledger, storage, 2)
    add_run(ledger, "nightly", priority=10)
    (urgent,) = rows(ledger, storage, 1, "nightly")
    limits = dataclasses.replace(LIMITS, enqueued_tokens=40)
    assert isinstance(reserve(ledger, taken, limits), SubmissionRow)
    assert isinstance(reserve(ledger, waiting, limits), str)
    assert isinstance(reserve(ledger, urgent, limits), str)
    finish(ledger, taken)
    assert isinstance(reserve(ledger, waiting, limits), str)
    assert isinstance(reserve(ledger, urgent, limits), SubmissionRow)


def test_who_left_the_line_holds_nobody_up(ledger: Connection, storage: Storage, run: str) -> None:
    taken, dead, late = rows(ledger, storage, 3)
    limits = dataclasses.replace(LIMITS, enqueued_tokens=40)
    assert isinstance(reserve(ledger, taken, limits), SubmissionRow)
    assert isinstance(reserve(ledger, dead, limits), str)
    finish(ledger, taken)
    clock.advance(ledger, admission.QUEUE_PLACE_SECONDS + 1)
    assert isinstance(reserve(ledger, late, limits), SubmissionRow)


def test_two_at_once_never_get_the_same_room(
    ledger: Connection, ledger_url: str, storage: Storage, run: str
) -> None:
    several = rows(ledger, storage, 8)

    def admit(row: SubmissionRow) -> bool:
        with connect(ledger_url) as own:
            return isinstance(reserve(own, row), SubmissionRow)

    with ThreadPoolExecutor(8) as pool:
        admitted = list(pool.map(admit, several))
    assert sum(admitted) == 2


def halve(ledger: Connection) -> None:
    admission.halve(ledger, "acme", "text-embedding-3-small", "full", cool_down_seconds=7200)


def test_a_full_queue_halves_the_limit_once_and_for_a_while(
    ledger: Connection, storage: Storage, run: str
) -> None:
    first, second = rows(ledger, storage, 2)
    assert isinstance(reserve(ledger, first), SubmissionRow)
    for _ in range(5):  # many batches fail on one full queue
        halve(ledger)
    told = reserve(ledger, second)
    assert isinstance(told, str) and "40 of 50" in told and "1/2 of 100" in told
    clock.advance(ledger, 1200)
    halve(ledger)
    told = reserve(ledger, second)
    assert isinstance(told, str) and "40 of 25" in told
    clock.advance(ledger, 7201)
    assert isinstance(reserve(ledger, second), SubmissionRow)


class TestBudgets:
    def test_what_would_pass_a_runs_budget_is_not_sent(self, ledger: Connection, storage: Storage) -> None:
        add_run(ledger, "frugal", budget=2.5)
        first, second, third = rows(ledger, storage, 3, "frugal")
        assert isinstance(reserve(ledger, first, LIMITS), SubmissionRow)
        assert isinstance(reserve(ledger, second, LIMITS), SubmissionRow)
        with pytest.raises(BudgetExceeded, match=r"\$2.50: \$2.0000 are spent or reserved"):
            reserve(ledger, third, LIMITS)
        finish(ledger, first)
        submissions.mark_landed(ledger, first.id, counts={}, usage={}, cost_usd=0.4)
        assert isinstance(reserve(ledger, third, LIMITS), SubmissionRow), "it cost less than feared"

    def test_a_model_without_a_price_cannot_keep_one(self, ledger: Connection, storage: Storage) -> None:
        add_run(ledger, "frugal", budget=2.5)
        (row,) = rows(ledger, storage, 1, "frugal")
        with pytest.raises(ConfigError, match="no price"):
            reserve(ledger, row, LIMITS, Want(1, 1, None))

    def test_an_accounts_month_has_a_budget_of_its_own(
        self, ledger: Connection, storage: Storage, run: str
    ) -> None:
        first, second = rows(ledger, storage, 2)
        want = dataclasses.replace(WANT, account_usd_per_month=1.5)
        assert isinstance(reserve(ledger, first, LIMITS, want), SubmissionRow)
        with pytest.raises(BudgetExceeded, match="account acme in"):
            reserve(ledger, second, LIMITS, want)
        clock.advance(ledger, 32 * 86400)
        assert isinstance(reserve(ledger, second, LIMITS, want), SubmissionRow)


def test_an_accounts_requests_are_those_of_all_its_models(
    ledger: Connection, storage: Storage, run: str
) -> None:
    first, second = rows(ledger, storage, 2)
    ledger.execute("update submissions set model = 'another' where id = %s", (second.id,))
    shared = dataclasses.replace(LIMITS, account_requests=1)
    own = dataclasses.replace(LIMITS, enqueued_requests=1)
    assert isinstance(reserve(ledger, first, shared), SubmissionRow)
    assert isinstance(reserve(ledger, second, shared), str)
    assert isinstance(reserve(ledger, second, own), SubmissionRow)
