"""Which errors a retry can't mend, and what the trigger form of a replay means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from batch_inference.operators import is_final
from batch_inference.runs import request

from include.batches.dead_letters import Which
from include.contracts import OutcomeClass
from include.errors import (
    AccountError,
    BudgetExceeded,
    ConfigError,
    ItemsTaken,
    LedgerError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnknown,
    QueueFull,
    ReadBackFailed,
    ReconcileError,
    RunCancelled,
    RunStopped,
    StorageError,
)
from include.workloads.replay import Change, Replay


@pytest.mark.parametrize(
    "error",
    [
        *(AccountError, BudgetExceeded, ConfigError, ItemsTaken, ProviderRefused, ReconcileError),
        *(RunCancelled, RunStopped),
    ],
)
def test_what_only_a_person_can_mend_is_not_tried_again(error: type[Exception]) -> None:
    assert is_final(error("text"))


@pytest.mark.parametrize(
    "error",
    [
        *(LedgerError, ProviderUnavailable, ProviderUnknown, QueueFull, ReadBackFailed, StorageError),
        OSError,
    ],
)
def test_what_may_pass_is_tried_again(error: type[Exception]) -> None:
    assert not is_final(error("text"))


def context(**params: Any) -> dict[str, Any]:
    run = SimpleNamespace(run_type="manual", conf=params)
    return {"params": params, "dag": SimpleNamespace(params=params), "dag_run": run}


def test_an_empty_form_of_a_replay_means_all_open_letters_as_they_were() -> None:
    empty = dict.fromkeys(["class", "code", "document", "run", "limit", "max_input_tokens", "model"])
    assert request("dead_letter_replay", context(state="open", **empty)).replay == Replay()


def test_a_filled_in_form_of_a_replay_says_which_letters_and_what_is_changed() -> None:
    which = {"state": "discarded", "class": "permanent", "code": "too_long", "document": "d", "run": "r"}
    ages = {"min_age_hours": 1, "max_age_hours": 2.5, "limit": 9}
    change = {"max_input_tokens": 100, "max_tokens": 200, "model": "gpt-5"}
    form = context(**which, **ages, **change, dry_run=True, priority=3)
    found = request("dead_letter_replay", form)
    assert found.replay == Replay(
        Which("discarded", OutcomeClass.PERMANENT, "too_long", "d", "r", 1, 2.5, 9), Change(100, 200, "gpt-5")
    )
    assert (found.limit, found.dry_run, found.priority) == (None, True, 3)


def test_an_ingest_replays_nothing() -> None:
    assert request("initial_ingest", context(limit=5)).replay is None
