"""Faults and holds: what a test can make go wrong, and what the books say then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.emulator.conftest import Driver, embedding_line


def three() -> list[Any]:
    return [embedding_line(each, f"text {each}") for each in ("a", "b", "c")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def create(driver: Driver, file_id: str) -> openai.types.Batch:
    return driver.client.batches.create(
        input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h"
    )


def test_a_status_strikes_only_as_often_as_told(driver: Driver) -> None:
    driver.emulator.faults(
        {
            "on": "batches.list",
            "when": {"nth": 2},
            "do": "status",
            "status": 503,
            "headers": {"retry-after": "1"},
        }
    )
    driver.client.batches.list()
    with pytest.raises(openai.InternalServerError) as failed:
        driver.client.batches.list()
    assert failed.value.response.headers["retry-after"] == "1"
    driver.client.batches.list()
    rule = driver.control("GET", "faults")["faults"][0]
    assert (rule["seen"], rule["hits"]) == (3, 1)


def test_the_sdk_s_own_retry_gets_over_a_status_that_comes_once(driver: Driver) -> None:
    driver.emulator.faults({"on": "batches.list", "when": {"times": 1}, "do": "status", "status": 429})
    assert driver.client.with_options(max_retries=1).batches.list().data == []


def test_a_call_dropped_before_its_work_did_nothing(driver: Driver) -> None:
    file_id = driver.upload(three())
    driver.emulator.faults({"on": "batches.create", "do": "drop_before"})
    with pytest.raises(openai.APIConnectionError):
        create(driver, file_id)
    state = driver.emulator.state()
    assert state["batches"] == [] and state["requests"]["batches.create"] == 1


def test_a_call_dropped_after_its_work_stays_done(driver: Driver) -> None:
    file_id = driver.upload(three())
    driver.emulator.faults({"on": "batches.create", "when": {"match": file_id}, "do": "drop_after"})
    with pytest.raises(openai.APIConnectionError):
        create(driver, file_id)
    (batch,) = driver.client.batches.list().data
    assert driver.after(10, batch.id).status == "completed"


def test_an_upload_dropped_after_its_work_left_a_file(driver: Driver) -> None:
    driver.emulator.faults({"on": "files.create", "do": "drop_after"})
    with pytest.raises(openai.APIConnectionError):
        driver.upload(three())
    assert len(driver.client.files.list().data) == 1


def test_a_download_can_be_cut_or_silently_shortened(driver: Driver) -> None:
    done = driver.after(10, driver.create(three()))
    assert done.output_file_id is not None
    whole = driver.client.files.content(done.output_file_id).content
    driver.emulator.faults({"on": "files.content", "do": "cut", "bytes": 100})
    with pytest.raises(openai.APIConnectionError):
        driver.client.files.content(done.output_file_id)
    driver.emulator.faults({"on": "files.content", "do": "shorten", "bytes": 100})
    assert driver.client.files.content(done.output_file_id).content == whole[:100]
    driver.emulator.faults()
    assert driver.client.files.content(done.output_file_id).content == whole


def test_a_state_never_heard_of_can_be_shown_for_a_while(driver: Driver) -> None:
    batch = driver.create(three())
    driver.emulator.faults(
        {
            "on": "batches.retrieve",
            "when": {"times": 1},
            "do": "alter",
            "fields": {"status": "pondering"},
        }
    )
    assert driver.after(10, batch).status == "pondering"
    assert driver.client.batches.retrieve(batch).status == "completed"


def test_the_books_of_one_project_are_its_own(alone: Driver) -> None:
    for project in ("proj_a", "proj_b"):
        Driver(alone.emulator, alone.client.with_options(project=project)).create(three()[:2])
    alone.emulator.advance(10)
    books = httpx.get(f"{alone.emulator.url}/_control/state", params={"project": "proj_a"}).json()
    assert len(books["batches"]) == 1
    assert books["charges"] == {"a": 1, "b": 1}
    assert alone.emulator.state()["charges"] == {"a": 2, "b": 2}


def test_a_delay_passes_in_real_time(driver: Driver) -> None:
    driver.emulator.faults({"on": "models.list", "do": "delay", "seconds": 5})
    with pytest.raises(openai.APITimeoutError):
        driver.client.with_options(timeout=0.2).models.list()


def test_lines_can_fail_by_id_or_text(driver: Driver) -> None:
    driver.emulator.faults(
        {"on": "line", "when": {"custom_id": "a"}, "do": "line_error", "status": 500, "code": "server_error"},
        {"on": "line", "when": {"match": "text b"}, "do": "line_error", "code": "batch_expired"},
    )
    output, errors = driver.results(driver.after(10, driver.create(three())))
    assert set(output) == {"c"}
    assert errors["a"]["response"]["status_code"] == 500
    assert errors["a"]["response"]["body"]["error"]["code"] == "server_error"
    assert errors["b"]["response"] is None and errors["b"]["error"]["code"] == "batch_expired"
    assert driver.emulator.state()["charges"] == {"c": 1}


def test_lines_can_be_missing_doubled_foreign_and_odd(driver: Driver) -> None:
    driver.emulator.faults(
        {"on": "line", "when": {"custom_id": "a"}, "do": "line_omit"},
        {"on": "line", "when": {"custom_id": "b"}, "do": "line_duplicate"},
        {"on": "line", "when": {"custom_id": "b"}, "do": "line_foreign"},
        {"on": "line", "when": {"custom_id": "c"}, "do": "line_body", "body": {"model": "moved"}},
    )
    done = driver.after(10, driver.create(three()))
    assert done.output_file_id is not None
    content = driver.client.files.content(done.output_file_id).text
    assert content.count('"custom_id":"a"') == 0
    assert content.count('"custom_id":"b"') == 2
    assert content.count('"custom_id":"foreign-') == 1
    assert content.count('"model":"moved"') == 1
    assert driver.emulator.state()["charges"] == {"a": 1, "b": 1, "c": 1}


def test_a_batch_can_be_made_to_expire_or_fail(driver: Driver) -> None:
    lines = [embedding_line(f"r{index}", "x") for index in range(10)]
    driver.emulator.faults({"on": "batch", "do": "expire_at", "fraction": 0.3})
    expired = driver.after(10, driver.create(lines))
    output, errors = driver.results(expired)
    assert (expired.status, len(output), len(errors)) == ("expired", 3, 7)
    driver.emulator.faults({"on": "batches.create", "do": "fail_batch", "code": "billing_hard_limit_reached"})
    failed = driver.after(10, driver.create(lines))
    assert failed.errors is not None and failed.errors.data is not None
    assert failed.errors.data[0].code == "billing_hard_limit_reached"
    driver.emulator.faults({"on": "batch", "do": "pace", "batch_seconds": 1_000})
    assert driver.after(900, driver.create(lines)).status == "in_progress"


@pytest.mark.parametrize(
    "rule",
    [
        {"do": "status"},
        {"on": "batches.create", "do": "explode"},
        {"on": "batches.create", "do": "delay"},
        {"on": "batches.create", "do": "line_omit"},
        {"on": "line", "do": "status"},
        {"on": "line", "do": "line_omit", "when": {"sometimes": True}},
        {"on": "line", "do": "line_omit", "when": {"match": "("}},
    ],
)
def test_a_rule_that_means_nothing_is_refused(driver: Driver, rule: dict[str, Any]) -> None:
    response = httpx.put(f"{driver.emulator.url}/_control/faults", json={"faults": [rule]})
    assert response.status_code == 400 and response.json()["error"]


@pytest.mark.parametrize(("point", "batches"), [("before", 0), ("after", 1)])
def test_a_call_waits_at_a_hold_until_it_is_released(driver: Driver, point: str, batches: int) -> None:
    file_id = driver.upload(three())
    hold = driver.control("POST", "hold", {"on": "batches.create", "point": point})
    made: list[openai.types.Batch] = []
    call = threading.Thread(target=lambda: made.append(create(driver, file_id)))
    call.start()
    wait_until(lambda: driver.control("GET", f"hold/{hold['id']}")["waiting"] == 1)
    assert made == [] and len(driver.emulator.state()["batches"]) == batches
    driver.control("DELETE", f"hold/{hold['id']}")
    call.join(20)
    assert made[0].status == "validating"
    assert driver.control("GET", "hold") == {"holds": []}


def test_only_the_nth_call_waits_at_a_hold_that_names_it(driver: Driver) -> None:
    hold = driver.control("POST", "hold", {"on": "batches.list", "nth": 2, "times": 1})
    driver.client.batches.list()
    call = threading.Thread(target=driver.client.batches.list)
    call.start()
    wait_until(lambda: driver.control("GET", f"hold/{hold['id']}")["waiting"] == 1)
    driver.client.batches.list()
    driver.control("DELETE", f"hold/{hold['id']}")
    call.join(20)
    assert not call.is_alive()


@pytest.mark.parametrize(
    ("options", "batches"),
    [({"point": "before"}, 0), ({"point": "before", "orphans": "run"}, 1), ({"point": "after"}, 1)],
)
def test_a_caller_that_dies_at_a_hold_is_seen(driver: Driver, options: dict[str, str], batches: int) -> None:
    file_id = driver.upload(three())
    hold = driver.control("POST", "hold", {"on": "batches.create", **options})
    with pytest.raises(openai.APITimeoutError):
        driver.client.with_options(timeout=0.3).batches.create(
            input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h"
        )
    wait_until(lambda: driver.control("GET", f"hold/{hold['id']}")["gone"] == 1)
    driver.control("DELETE", f"hold/{hold['id']}")
    wait_until(lambda: len(driver.emulator.state()["batches"]) == batches)
