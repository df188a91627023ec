"""Every fault of the provider: after the retries, the end is the same as without it.

A fault that changes what is answered, and not only how long it takes, is judged by the promises alone.
CI has a run meet many faults where they don't hide one another; `make soak` has it meet each alone.
"""

from __future__ import annotations

import email.utils
import time
from typing import Any

import httpx
import pytest

from tests.faults.promises import broken
from tests.faults.workers import StepFailed
from tests.faults.world import EXTRACTION, Run, World

TEXTS = {f"document-{number}": f"text number {number}" for number in range(6)}
DOCUMENTS = {name: [text] for name, text in TEXTS.items()}
CALLS = (
    "embeddings",
    "files.create",
    "batches.create",
    "batches.retrieve",
    "files.retrieve",
    "files.content",
    "files.delete",
)
CALLS_OF_MESSAGES = (
    "messages",
    "messages.batches.create",
    "messages.batches.retrieve",
    "messages.batches.results",
)
RETRIED = {"ProviderUnavailable", "ProviderUnknown", "QueueFull"}
"""What a task is run again for without a person: everything else that these faults raise is a failure."""


def rule(on: str, times: int, **fault: Any) -> dict[str, Any]:
    return {"on": on, "when": {"times": times}, **fault}


def status(code: int, **more: Any) -> dict[str, Any]:
    return {"do": "status", "status": code, **more}


HOUR = {"retry-after": "3600"}
PASSING: dict[str, dict[str, Any]] = {
    "500": status(500),
    "502 by a gateway": status(502, body="<html>bad gateway</html>"),
    "503": status(503),
    "429, a second": status(429, headers={"retry-after": "1"}),
    "429, a date": status(
        429, headers={"retry-after": email.utils.formatdate(time.time() + 3600, usegmt=True)}
    ),
    "429, an hour": status(429, headers=HOUR),
    "dropped before": {"do": "drop_before"},
    "dropped after": {"do": "drop_after"},
    "slow": {"do": "delay", "seconds": 0.3},
}


def storm(calls: tuple[str, ...]) -> list[dict[str, Any]]:
    """Each call meets every fault that passes, one after another."""
    return [rule(call, 1, **fault) for fault in PASSING.values() for call in calls]


def test_whatever_passes_changes_nothing(world: World) -> None:
    world.write(TEXTS)
    world.emulator.faults(*(faults := storm(CALLS)))
    finish(world, world.run(), most=len(faults))
    assert everything_is_there(world)
    assert missed(world) == []


def test_nor_does_it_where_a_batch_bears_nothing_of_ours(world: World) -> None:
    world.write(TEXTS)
    finish(world, world.run())
    world.emulator.faults(*(faults := storm(CALLS_OF_MESSAGES)))
    finish(world, world.run(EXTRACTION), most=len(faults))
    assert everything_is_there(world, times=2)
    assert missed(world) == []


@pytest.mark.soak
@pytest.mark.parametrize("fault", PASSING)
def test_nor_does_it_on_every_call_several_times(world: World, fault: str) -> None:
    world.write(TEXTS)
    world.emulator.faults(*(rule(call, 3, **PASSING[fault]) for call in CALLS))
    finish(world, world.run())
    assert everything_is_there(world)


@pytest.mark.soak
@pytest.mark.parametrize("fault", PASSING)
def test_nor_several_times_where_a_batch_bears_nothing_of_ours(world: World, fault: str) -> None:
    world.write(TEXTS)
    finish(world, world.run())
    world.emulator.faults(*(rule(call, 3, **PASSING[fault]) for call in CALLS_OF_MESSAGES))
    finish(world, world.run(EXTRACTION))
    assert everything_is_there(world, times=2)


NOT_FOUND = {
    call: status(404, body={"error": {"message": message}})
    for call, message in {
        "batches.create": "No such File object",
        "batches.retrieve": "not found",
        "files.retrieve": "not found",
        "files.content": "not found",
    }.items()
}


@pytest.mark.parametrize(
    "calls", [tuple(NOT_FOUND), *(pytest.param((call,), marks=pytest.mark.soak) for call in NOT_FOUND)]
)
def test_what_is_not_found_for_a_while_is_not_gone(world: World, calls: tuple[str, ...]) -> None:
    world.write(TEXTS)
    world.emulator.faults(*(rule(call, 3, **NOT_FOUND[call]) for call in calls))
    finish(world, world.run())
    assert everything_is_there(world)
    assert missed(world) == []


CUTS = [(fault, size) for size in (0, 1, 700) for fault in ("cut", "shorten")]


@pytest.mark.parametrize(
    ("cuts", "times"), [(CUTS, 1), *(pytest.param([cut], 3, marks=pytest.mark.soak) for cut in CUTS)]
)
def test_a_download_that_isn_t_whole_is_done_again(
    world: World, cuts: list[tuple[str, int]], times: int
) -> None:
    world.write(TEXTS)
    world.emulator.faults(*(rule("files.content", times, do=fault, bytes=size) for fault, size in cuts))
    finish(world, world.run())
    assert everything_is_there(world)
    assert missed(world) == []


def test_a_state_never_heard_of_is_waited_out(world: World) -> None:
    world.write(TEXTS)
    world.emulator.faults(rule("batches.retrieve", 3, do="alter", fields={"status": "pondering"}))
    finish(world, world.run())
    assert everything_is_there(world)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("validating_seconds", marks=pytest.mark.soak),
        "batch_seconds",
        pytest.param("finalizing_seconds", marks=pytest.mark.soak),
    ],
)
def test_a_batch_that_is_stuck_is_given_up_and_its_rest_sent_again(world: World, state: str) -> None:
    world.write(TEXTS)
    world.emulator.faults(rule("batch", 1, do="pace", **{state: 3_000_000}))
    finish(world, world.run())
    assert everything_is_there(world)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("embeddings", status(401)),
        pytest.param("files.create", status(403), marks=pytest.mark.soak),
        pytest.param("batches.create", status(401), marks=pytest.mark.soak),
        pytest.param(
            "batches.create",
            status(400, body={"error": {"code": "billing_hard_limit_reached", "message": "no"}}),
            marks=pytest.mark.soak,
        ),
        ("batches.create", status(429, body={"error": {"code": "insufficient_quota", "message": "pay"}})),
        ("files.content", status(401)),
    ],
)
def test_an_account_that_is_in_trouble_stops_the_run_until_it_is_mended(
    world: World, call: str, fault: dict[str, Any]
) -> None:
    world.write(TEXTS)
    world.emulator.faults({"on": call, **fault})
    run = world.run()
    with world.worker() as worker, pytest.raises(StepFailed) as stopped:
        world.go(worker, run)
    # What the probe can't get is told as a fault of the set-up.
    assert stopped.value.kind == ("ProviderRefused" if call == "embeddings" else "AccountError")
    assert "mend the account" in stopped.value.message
    stopped_at = run.here
    world.emulator.faults()
    world.resume(run)
    finish(world, run)
    assert everything_is_there(world), stopped_at


LINES: dict[str, tuple[dict[str, Any], str]] = {
    "server_error": ({"do": "line_error", "status": 500, "code": "server_error"}, "retryable"),
    "rate_limit_exceeded": ({"do": "line_error", "status": 429, "code": "rate_limit_exceeded"}, "retryable"),
    "batch_expired": ({"do": "line_error", "code": "batch_expired"}, "retryable"),
    "missing": ({"do": "line_omit"}, "retryable"),
    "content_policy_violation": (
        {"do": "line_error", "status": 400, "code": "content_policy_violation"},
        "permanent",
    ),
    "context_length_exceeded": (
        {"do": "line_error", "status": 400, "code": "context_length_exceeded"},
        "permanent",
    ),
    "empty": ({"do": "line_body", "body": {"data": []}}, "invalid"),
    "insufficient_quota": ({"do": "line_error", "status": 429, "code": "insufficient_quota"}, "account"),
}


def test_requests_that_fail_for_any_reason_are_in_the_right_class_and_harm_no_other(world: World) -> None:
    documents = {**TEXTS, **{code: f"this one meets {code}" for code in LINES}}
    world.write(documents)
    world.emulator.faults(
        *({"on": "line", "when": {"match": f"meets {code}$"}, **fault} for code, (fault, _) in LINES.items())
    )
    finish(world, world.run())
    letters = world.rows("select document_id, class from dead_letters where state = 'open'")
    assert {row["document_id"]: row["class"] for row in letters} == {
        code: cls for code, (_, cls) in LINES.items()
    }
    assert broken(world, {name: [text] for name, text in documents.items()}, spoilt=2) == []


def test_answers_doubled_foreign_or_in_any_order_count_once(world: World) -> None:
    world.write(TEXTS)
    world.emulator.faults({"on": "line", "do": "line_duplicate"}, {"on": "line", "do": "line_foreign"})
    finish(world, world.run())
    assert everything_is_there(world)


def test_a_batch_that_expires_is_sent_again_only_for_its_rest(world: World) -> None:
    world.write(TEXTS)
    world.emulator.faults(rule("batch", 1, do="expire_at", fraction=0.7))
    finish(world, world.run())
    assert everything_is_there(world)
    assert len(world.books()["batches"]) == 2


def finish(world: World, run: Run, most: int = 10) -> None:
    """Take a run to its end; a task that fails for the provider's sake is run again, as Airflow does."""
    failed = 0
    while run.next is not None:
        with world.worker() as worker:
            try:
                world.go(worker, run)
            except StepFailed as failure:
                failed += 1
                assert failure.kind in RETRIED and failed < most, failure.trace
                world.advance(60)


def missed(world: World) -> list[dict[str, Any]]:
    """The faults that never struck."""
    faults = httpx.get(f"{world.emulator.url}/_control/faults").raise_for_status().json()["faults"]
    return [fault for fault in faults if not fault["hits"]]


def everything_is_there(world: World, times: int = 1) -> bool:
    """Both promises hold, and every document is indexed and was paid for once by each of so many runs."""
    assert broken(world, DOCUMENTS) == []
    assert list(world.books()["charges"].values()) == [1] * times * len(TEXTS)
    return not world.rows("select 1 from dead_letters")
