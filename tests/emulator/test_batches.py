"""A batch over time, as the official SDK sees it."""

from __future__ import annotations

import base64
from collections.abc import Callable

import numpy as np
import openai
import pytest

from tests.emulator.conftest import DAY, Driver, drive, embedding_line
from tests.emulators import Emulator


def ten() -> list[object]:
    return [embedding_line(f"r{index}", f"text {index}") for index in range(10)]


def test_a_batch_passes_through_its_states_in_time(driver: Driver) -> None:
    batch_id = driver.create(ten(), metadata={"run": "one"})
    first = driver.client.batches.retrieve(batch_id)
    assert (first.status, first.request_counts) == (
        "validating",
        openai.types.BatchRequestCounts(total=0, completed=0, failed=0),
    )
    running = driver.after(1, batch_id)
    assert running.status == "in_progress"
    assert running.request_counts is not None and running.request_counts.total == 10
    half = driver.after(1.5, batch_id)
    assert half.request_counts is not None and half.request_counts.completed == 5
    assert driver.after(1.5, batch_id).status == "finalizing"
    done = driver.after(1, batch_id)
    assert done.status == "completed"
    assert done.model == "text-embedding-3-small"
    assert done.metadata == {"run": "one"}
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert [each - done.created_at for each in times if each is not None] == [0, 1, 4, 5]
    assert done.expires_at == done.created_at + DAY
    assert done.usage is not None and done.usage.input_tokens == 30
    assert done.error_file_id is None


def test_a_leap_of_a_day_gives_what_a_day_would_have_given(driver: Driver) -> None:
    done = driver.after(DAY - 1, driver.create(ten()))
    assert done.completed_at == done.created_at + 5


def test_results_come_by_custom_id_and_not_in_the_order_of_the_requests(driver: Driver) -> None:
    lines = [embedding_line(f"r{index}", f"text {index}") for index in range(50)]
    done = driver.after(10, driver.create(lines))
    output, errors = driver.results(done)
    assert list(output) != [f"r{index}" for index in range(50)]
    assert set(output) == {f"r{index}" for index in range(50)}
    assert errors == {}
    line = output["r7"]
    assert line["error"] is None and line["response"]["status_code"] == 200
    vector = np.array(line["response"]["body"]["data"][0]["embedding"])
    assert vector.shape == (8,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_base64_and_float_and_the_real_time_twin_give_the_same_vector(driver: Driver) -> None:
    lines = [embedding_line("float", "same"), embedding_line("base64", "same", encoding_format="base64")]
    output, _ = driver.results(driver.after(10, driver.create(lines)))
    as_float = output["float"]["response"]["body"]["data"][0]["embedding"]
    raw = base64.b64decode(output["base64"]["response"]["body"]["data"][0]["embedding"])
    live = driver.client.embeddings.create(model="text-embedding-3-small", input="same", dimensions=8)
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), np.array(as_float, "<f4"))
    np.testing.assert_array_equal(np.array(live.data[0].embedding, "<f4"), np.array(as_float, "<f4"))


def test_a_cancelled_batch_keeps_what_was_done_and_charges_only_that(driver: Driver) -> None:
    batch_id = driver.create(ten())
    driver.after(2.5, batch_id)
    cancelling = driver.client.batches.cancel(batch_id)
    assert cancelling.status == "cancelling" and cancelling.cancelling_at is not None
    cancelled = driver.after(1, batch_id)
    assert cancelled.status == "cancelled"
    output, errors = driver.results(cancelled)
    assert len(output) == 5 and len(errors) == 5
    assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
    assert driver.emulator.state()["charges"] == dict.fromkeys(output, 1)
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'cancelled'"):
        driver.client.batches.cancel(batch_id)


def test_cancelled_requests_can_be_left_out_of_the_error_file(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"cancelled_lines": "absent"})
    batch_id = driver.create(ten())
    driver.client.batches.cancel(batch_id)
    cancelled = driver.after(2, batch_id)
    assert (cancelled.status, cancelled.output_file_id, cancelled.error_file_id) == ("cancelled", None, None)


def test_an_expired_batch_gives_partial_results_and_names_the_rest(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"batch_seconds": 2 * DAY})
    batch_id = driver.create(ten())
    assert driver.after(DAY - 10, batch_id).status == "in_progress"
    expired = driver.after(10, batch_id)
    assert expired.status == "expired" and expired.expired_at == expired.expires_at
    output, errors = driver.results(expired)
    assert (len(output), len(errors)) == (4, 6)
    assert all(each["response"] is None for each in errors.values())
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
    assert expired.request_counts is not None and expired.request_counts.completed == 4


def test_completed_is_not_success(driver: Driver) -> None:
    done = driver.after(10, driver.create([embedding_line("blank", "")]))
    assert (done.status, done.output_file_id) == ("completed", None)
    _, errors = driver.results(done)
    assert errors["blank"]["error"] is None
    assert errors["blank"]["response"]["status_code"] == 400
    assert errors["blank"]["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert driver.emulator.state()["charges"] == {}


def test_batches_are_listed_in_pages_newest_first(driver: Driver) -> None:
    file_id = driver.upload(ten())
    made = [
        driver.client.batches.create(
            input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h"
        ).id
        for _ in range(25)
    ]
    page = driver.client.batches.list(limit=10)
    assert [each.id for each in page.data] == made[:-11:-1]
    assert page.has_more
    assert [each.id for each in driver.client.batches.list(limit=10)] == made[::-1]


def test_projects_do_not_see_each_other(driver: Driver) -> None:
    mine = driver.create(ten())
    other = drive(driver.emulator, project="proj_other").client
    with pytest.raises(openai.NotFoundError, match="No batch found with id"):
        other.batches.retrieve(mine)
    assert other.batches.list().data == []
    assert other.files.list().data == []
    with pytest.raises(openai.BadRequestError):
        other.batches.create(
            input_file_id=driver.client.batches.retrieve(mine).input_file_id,
            endpoint="/v1/embeddings",
            completion_window="24h",
        )


def test_books_tell_tokens_and_dollars_at_half_price(alone: Driver) -> None:
    text = "word " * 1000
    batch_id = alone.create([embedding_line("a", text)])
    alone.after(10, batch_id)
    alone.client.embeddings.create(model="text-embedding-3-small", input=text)
    state = alone.emulator.state()
    tokens = state["totals"]["batches"][batch_id]["input_tokens"]
    assert tokens >= 1000
    assert state["totals"]["batch_dollars"] == pytest.approx(tokens * 0.01 / 1e6)
    assert state["totals"]["real_time_dollars"] == pytest.approx(tokens * 0.02 / 1e6)
    assert state["real_time_calls"] == 1
    assert state["requests"]["batches.create"] == 1


def test_on_a_real_clock_a_batch_goes_its_way_by_itself(start: Callable[..., Emulator]) -> None:
    emulator = start("--validating-seconds", "0.2", "--batch-seconds", "1", "--finalizing-seconds", "0.2")
    driver = drive(emulator)
    batch_id = driver.create([embedding_line(f"r{index}", f"text {index}") for index in range(200)])
    seen = set()
    for _ in range(2_000):
        batch = driver.client.batches.retrieve(batch_id)
        assert batch.request_counts is not None
        seen.add(batch.request_counts.completed)
        if batch.status == "completed":
            break
    assert batch.status == "completed"
    assert len(seen) > 3, "progress shows while a batch runs"
