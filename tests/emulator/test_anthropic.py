"""Message batches over time, as Anthropic's official SDK sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.emulator.claude import Claude, claude, request
from tests.emulator.conftest import DAY
from tests.emulators import Emulator, start_emulator


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    yield from start_emulator(tmp_path_factory.mktemp("emulator"), "--clock", "manual")


@pytest.fixture
def driver(shared: Emulator) -> Claude:
    shared.advance(2 * DAY)  # the batches of other tests end, and are paid for
    return claude(shared)


def ten() -> list[dict[str, Any]]:
    return [request(f"r{index}", f"Text number {index}.") for index in range(10)]


class TestLife:
    def test_nothing_shows_how_far_a_batch_is_until_it_has_ended(self, driver: Claude) -> None:
        batch = driver.create(ten())
        assert batch.processing_status == "in_progress" and batch.results_url is None
        assert (batch.expires_at - batch.created_at).total_seconds() == DAY
        half = driver.after(1.5, batch.id)
        assert half == batch
        assert half.request_counts.to_dict() == {
            "processing": 10,
            "succeeded": 0,
            "errored": 0,
            "canceled": 0,
            "expired": 0,
        }
        done = driver.after(1.5, batch.id)
        assert done.processing_status == "ended" and done.ended_at is not None
        assert (done.ended_at - done.created_at).total_seconds() == 3
        assert done.request_counts.to_dict() == {
            "processing": 0,
            "succeeded": 10,
            "errored": 0,
            "canceled": 0,
            "expired": 0,
        }

    def test_results_come_by_custom_id_from_the_url_that_the_batch_names(self, driver: Claude) -> None:
        batch = driver.after(10, driver.create(ten()).id)
        assert batch.results_url == f"{driver.emulator.anthropic_url}/v1/messages/batches/{batch.id}/results"
        lines = list(driver.client.messages.batches.results(batch.id))
        ids = [line.custom_id for line in lines]
        assert sorted(ids) == sorted(each["custom_id"] for each in ten())
        assert ids != [each["custom_id"] for each in ten()], "never in the order of the requests"
        results = driver.results(batch.id)
        assert driver.text(results["r7"]) == "Text number 7."
        assert results["r7"].message.usage.service_tier == "batch"

    def test_results_before_the_end_are_an_error(self, driver: Claude) -> None:
        batch = driver.create(ten())
        with pytest.raises(anthropic.AnthropicError, match="results_url"):
            driver.client.messages.batches.results(batch.id)
        with pytest.raises(anthropic.NotFoundError):
            driver.client.get(f"/v1/messages/batches/{batch.id}/results", cast_to=object)

    def test_a_canceled_batch_keeps_what_was_done_and_charges_only_that(self, driver: Claude) -> None:
        batch = driver.create(ten())
        driver.after(1.5, batch.id)
        canceling = driver.client.messages.batches.cancel(batch.id)
        assert canceling.processing_status == "canceling" and canceling.cancel_initiated_at is not None
        assert canceling.request_counts.processing == 10
        done = driver.after(1, batch.id)
        counts = done.request_counts
        assert (counts.succeeded, counts.canceled, counts.processing) == (5, 5, 0)
        results = driver.results(batch.id)
        assert {name for name, each in results.items() if each.type == "canceled"} == {
            f"r{index}" for index in range(5, 10)
        }
        assert driver.charged(batch.id)["requests"] == 10
        assert len(driver.paid()) == 5

    def test_what_the_window_leaves_undone_expires_one_by_one(self, driver: Claude) -> None:
        driver.faults({"on": "batch", "do": "expire_at", "fraction": 0.7})
        batch = driver.after(DAY * 2, driver.create(ten()).id)
        assert batch.processing_status == "ended"
        assert (batch.request_counts.succeeded, batch.request_counts.expired) == (7, 3)
        assert sum(each.type == "expired" for each in driver.results(batch.id).values()) == 3
        assert len(driver.paid()) == 7

    def test_results_can_be_read_for_29_days_from_the_creation(self, driver: Claude) -> None:
        batch = driver.after(28 * DAY, driver.create(ten()).id)
        assert batch.archived_at is None and len(driver.results(batch.id)) == 10
        batch = driver.after(DAY, batch.id)
        assert batch.archived_at is not None and batch.results_url is None

    def test_a_batch_is_deleted_only_after_its_end_and_stays_in_the_books(self, driver: Claude) -> None:
        batch = driver.create(ten())
        with pytest.raises(anthropic.BadRequestError, match="in progress"):
            driver.client.messages.batches.delete(batch.id)
        driver.after(10, batch.id)
        assert driver.client.messages.batches.delete(batch.id).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            driver.client.messages.batches.retrieve(batch.id)
        assert driver.listed() == []
        assert len(driver.paid()) == 10

    def test_canceling_what_has_ended_is_refused(self, driver: Claude) -> None:
        batch = driver.after(10, driver.create(ten()).id)
        with pytest.raises(anthropic.BadRequestError, match="has ended"):
            driver.client.messages.batches.cancel(batch.id)


class TestList:
    def test_pages_go_from_the_newest_in_both_directions(self, driver: Claude) -> None:
        made = [driver.create(ten()[:1]).id for _ in range(7)][::-1]
        batches = driver.client.messages.batches
        first = batches.list(limit=3)
        assert ([each.id for each in first.data], first.has_more) == (made[:3], True)
        assert [each.id for each in batches.list(limit=3)] == made
        assert [each.id for each in batches.list(after_id=made[3]).data] == made[4:]
        before = batches.list(before_id=made[5], limit=2)
        assert ([each.id for each in before.data], before.has_more) == (made[3:5], True)
        assert [each.id for each in batches.list(before_id=made[2]).data] == made[:2]

    def test_an_unknown_cursor_is_an_error(self, driver: Claude) -> None:
        with pytest.raises(anthropic.NotFoundError):
            driver.client.messages.batches.list(after_id="msgbatch_nowhere")

    def test_a_workspace_sees_its_own_batches_only(self, driver: Claude) -> None:
        batch = driver.create(ten())
        other = claude(driver.emulator)
        assert other.listed() == []
        with pytest.raises(anthropic.NotFoundError):
            other.client.messages.batches.retrieve(batch.id)


class TestCallers:
    @pytest.mark.parametrize("headers", [{"x-api-key": "k"}, {"authorization": "Bearer k"}])
    def test_both_ways_to_send_a_key_are_known(self, driver: Claude, headers: dict[str, str]) -> None:
        url = f"{driver.emulator.anthropic_url}/v1/messages/batches"
        assert httpx.get(url, headers={**headers, "anthropic-version": "2023-06-01"}).status_code == 200

    def test_no_key_and_no_version_are_refused(self, driver: Claude) -> None:
        url = f"{driver.emulator.anthropic_url}/v1/messages/batches"
        assert httpx.get(url, headers={"anthropic-version": "2023-06-01"}).status_code == 401
        assert httpx.get(url, headers={"x-api-key": "k"}).status_code == 400

    def test_only_the_keys_configured_are_accepted(self, start: Callable[..., Emulator]) -> None:
        driver = claude(start("--key", "right"))
        with pytest.raises(anthropic.AuthenticationError) as caught:
            driver.listed()
        assert caught.value.type == "authentication_error" and caught.value.request_id


class TestFaults:
    def test_a_call_that_fails_has_the_services_own_error_body(self, driver: Claude) -> None:
        driver.faults({"on": "messages.batches.create", "do": "status", "status": 529})
        with pytest.raises(anthropic.OverloadedError) as caught:
            driver.create(ten())
        assert caught.value.type == "overloaded_error"

    def test_the_sdk_repeats_an_overloaded_create_by_itself(self, shared: Emulator) -> None:
        driver = claude(shared, max_retries=2)
        fault = {"on": "messages.batches.create", "when": {"times": 2}, "do": "status", "status": 529}
        driver.faults({**fault, "headers": {"retry-after": "0"}})
        before = driver.calls("messages.batches.create")
        driver.create(ten())
        assert driver.calls("messages.batches.create") - before == 3

    def test_a_line_can_fail_be_lost_doubled_foreign_or_changed(self, driver: Claude) -> None:
        driver.faults(
            {"on": "line", "when": {"custom_id": "r0"}, "do": "line_error", "status": 529},
            {"on": "line", "when": {"custom_id": "r1"}, "do": "line_error", "status": 402, "message": "No."},
            {"on": "line", "when": {"custom_id": "r2"}, "do": "line_omit"},
            {"on": "line", "when": {"custom_id": "r3"}, "do": "line_duplicate"},
            {"on": "line", "when": {"custom_id": "r4"}, "do": "line_foreign"},
            {"on": "line", "when": {"match": "number 5"}, "do": "line_body", "body": REFUSED},
        )
        batch = driver.after(10, driver.create(ten()).id)
        lines = list(driver.client.messages.batches.results(batch.id))
        by_id = {line.custom_id: line.result for line in lines}
        overloaded, billing, refused = by_id["r0"], by_id["r1"], by_id["r5"]
        assert overloaded.type == billing.type == "errored"
        assert overloaded.error.error.type == "overloaded_error"
        assert billing.error.error.to_dict() == {"type": "billing_error", "message": "No."}
        assert "r2" not in by_id
        assert [line.custom_id for line in lines].count("r3") == 2
        assert any(name.startswith("foreign-") for name in by_id)
        assert refused.type == "succeeded" and refused.message.stop_reason == "refusal"
        assert batch.request_counts.succeeded == 8
        assert set(driver.paid()) == {f"r{index}" for index in range(2, 10)}

    def test_a_batch_that_fails_has_an_error_for_each_request(self, driver: Claude) -> None:
        driver.faults({"on": "batch", "do": "fail_batch", "code": "billing_error", "message": "No credit."})
        batch = driver.after(10, driver.create(ten()).id)
        assert (batch.processing_status, batch.request_counts.errored) == ("ended", 10)
        errors = [each.error.error.to_dict() for each in driver.results(batch.id).values()]
        assert errors == [{"type": "billing_error", "message": "No credit."}] * 10
        assert driver.paid() == {}


REFUSED = {"stop_reason": "refusal", "content": [], "stop_details": {"type": "refusal", "category": "bio"}}


def test_state_is_kept_over_a_restart(start: Callable[..., Emulator]) -> None:
    emulator = start("--clock", "manual")
    driver = claude(emulator)
    batch = driver.create(ten())
    half = driver.after(1.5, batch.id)
    before = emulator.state()
    emulator.process.kill()
    emulator.process.wait(20)
    again = start("--clock", "manual")
    driver = claude(again, workspace=driver.workspace)
    assert again.state() == before
    assert driver.client.messages.batches.retrieve(batch.id) == half
    assert driver.after(10, batch.id).request_counts.succeeded == 10
    assert set(driver.paid().values()) == {1}
    lines = list(driver.client.messages.batches.results(batch.id))
    assert len(lines) == len({line.custom_id for line in lines}) == 10


def test_the_books_tell_tokens_and_dollars(driver: Claude) -> None:
    batch = driver.after(10, driver.create(ten()).id)
    messages = [each.message for each in driver.results(batch.id).values()]
    given = sum(message.usage.input_tokens for message in messages)
    made = sum(message.usage.output_tokens for message in messages)
    books = driver.charged(batch.id)
    assert (books["input_tokens"], books["output_tokens"]) == (given, made)
    assert books["dollars"] == pytest.approx((given * 2 + made * 10) / 1e6 / 2)
    json.dumps(driver.emulator.state())
