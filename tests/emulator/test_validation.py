"""What makes a whole batch fail, or a call be refused at once."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.emulator.conftest import Driver, drive, embedding_line, jsonl


def failures(driver: Driver, lines: list[Any] | bytes) -> list[tuple[str | None, int | None]]:
    batch = driver.after(1, driver.create(lines))
    assert batch.status == "failed" and batch.failed_at is not None
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.errors is not None and batch.errors.data
    return [(each.code, each.line) for each in batch.errors.data]


def test_every_bad_line_is_named_with_its_number(driver: Driver) -> None:
    good = embedding_line("a", "x")
    lines: list[Any] = [
        good,
        "{broken",
        embedding_line("a", "y"),
        embedding_line("b", "x") | {"url": "/v1/chat/completions"},
        embedding_line("c", "x", model="text-embedding-3-large"),
        {"custom_id": "d", "method": "POST", "url": "/v1/embeddings"},
        embedding_line("e", "x") | {"method": "GET"},
    ]
    assert failures(driver, lines) == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("url_mismatch", 4),
        ("model_mismatch", 5),
        ("missing_required_parameter", 6),
        ("invalid_method", 7),
    ]
    assert driver.emulator.state()["charges"] == {}


def test_the_message_for_a_broken_line_is_the_service_s(driver: Driver) -> None:
    batch = driver.after(1, driver.create(["{"]))
    assert batch.errors is not None and batch.errors.data is not None
    assert batch.errors.data[0].message == "This line is not parseable as valid JSON."


def test_an_empty_batch_file_fails(driver: Driver) -> None:
    assert failures(driver, b"\n\n") == [("empty_file", None)]


def test_an_unknown_model_fails_the_batch(driver: Driver) -> None:
    assert failures(driver, [embedding_line("a", "x", model="no-such-model")]) == [("model_not_found", 1)]


def test_too_many_requests_fail_the_batch(driver: Driver) -> None:
    lines = jsonl([embedding_line(f"r{index}", "x") for index in range(50_001)])
    assert failures(driver, lines) == [("too_many_tasks", None)]


def test_embedding_inputs_are_counted_over_all_requests(driver: Driver) -> None:
    lines = [embedding_line(f"r{index}", ["x"] * 2_000) for index in range(26)]
    assert failures(driver, lines) == [("too_many_tasks", None)]


def test_a_file_over_the_limit_fails_the_batch(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"max_batch_file_bytes": 1_000})
    assert failures(driver, [embedding_line("a", "x" * 1_000)]) == [("file_too_large", None)]


def test_enqueued_tokens_of_a_model_are_limited_until_batches_end(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"enqueued_tokens": {"text-embedding-3-small": 2_000}})
    lines = [embedding_line("a", "word " * 1_500)]
    first = driver.create(lines)
    second = driver.after(1, driver.create(lines))
    assert second.errors is not None and second.errors.data is not None
    assert second.errors.data[0].code == "token_limit_exceeded"
    assert second.errors.data[0].message == (
        "Enqueued token limit reached for text-embedding-3-small in organization org-emulator. Limit: 2,000 "
        "enqueued tokens. Please try again once some in_progress batches have been completed."
    )
    assert driver.after(10, first).status == "completed"
    assert driver.after(10, driver.create(lines)).status == "completed"


def test_enqueued_requests_of_embeddings_are_limited(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"enqueued_requests": {"*": 1}})
    lines = [embedding_line("a", "x"), embedding_line("b", "x")]
    batch = driver.after(1, driver.create(lines))
    assert batch.errors is not None and batch.errors.data is not None
    assert "Limit: 1 enqueued requests." in str(batch.errors.data[0].message)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/nonsense"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {str(index): "x" for index in range(17)}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ],
)
def test_a_wrong_call_is_refused_at_once(driver: Driver, changes: dict[str, Any], param: str) -> None:
    call = {
        "input_file_id": driver.upload([embedding_line("a", "x")]),
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    } | changes
    with pytest.raises(openai.BadRequestError) as refused:
        driver.client.batches.create(**call)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id


def test_a_file_of_another_purpose_is_refused(driver: Driver) -> None:
    file_id = driver.client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune").id
    with pytest.raises(openai.BadRequestError, match="purpose"):
        driver.client.batches.create(
            input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h"
        )


def test_a_missing_file_can_also_fail_later(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"missing_input": "fail"})
    batch = driver.client.batches.create(
        input_file_id="file-none", endpoint="/v1/embeddings", completion_window="24h"
    )
    assert driver.after(1, batch.id).status == "failed"


def test_creations_an_hour_are_limited(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"creations_per_hour": 1})
    driver.create([embedding_line("a", "x")])
    with pytest.raises(openai.RateLimitError):
        driver.create([embedding_line("b", "x")])
    driver.emulator.advance(3_601)
    driver.create([embedding_line("b", "x")])


def test_keys_are_checked_where_some_are_configured(driver: Driver) -> None:
    driver.control("PATCH", "settings", {"keys": ["sk-right"]})
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"):
        driver.client.batches.list()
    assert drive(driver.emulator, api_key="sk-right").client.batches.list().data == []


def test_an_unknown_batch_and_file_are_not_found(driver: Driver) -> None:
    with pytest.raises(openai.NotFoundError):
        driver.client.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError):
        driver.client.files.content("file-none")
    with pytest.raises(openai.NotFoundError, match="Invalid URL"):
        driver.client.moderations.create(input="x")


def embedding_error(driver: Driver, value: Any, **options: Any) -> dict[str, Any]:
    with pytest.raises(openai.APIStatusError) as refused:
        driver.client.embeddings.create(**({"model": "text-embedding-3-small", "input": value} | options))
    body: Any = refused.value.body
    return {"status": refused.value.status_code, **body}


def test_limits_of_one_embeddings_request_hold_in_real_time(driver: Driver) -> None:
    assert "array too long" in embedding_error(driver, ["x"] * 2_049)["message"]
    assert "8192" in embedding_error(driver, "word " * 9_000)["message"]
    tokens = embedding_error(driver, ["word " * 6_000] * 60)
    assert tokens["code"] == "max_tokens_per_request"
    assert "max 300000 tokens per request" in tokens["message"]
    assert embedding_error(driver, "")["status"] == 400
    assert embedding_error(driver, "x", model="no-such-model")["status"] == 404
    assert embedding_error(driver, "x", dimensions=0)["param"] == "dimensions"


def test_a_request_that_breaks_the_server_fails_alone(driver: Driver) -> None:
    def line(custom_id: str, **body: Any) -> dict[str, Any]:
        whole = {"model": "gpt-5-mini", "input": "Hello there.", **body}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": whole}

    batch_id = driver.create([line("good"), line("odd", text="not an object")], "/v1/responses")
    output, errors = driver.results(driver.after(10, batch_id))
    assert set(output) == {"good"}
    assert errors["odd"]["response"]["status_code"] == 500


@pytest.mark.parametrize("change", [{"max_requests": "many"}, {"embeddings": "hash"}, {"nonsense": 1}])
def test_a_setting_that_means_nothing_is_refused(driver: Driver, change: dict[str, Any]) -> None:
    response = httpx.patch(f"{driver.emulator.url}/_control/settings", json=change)
    assert response.status_code == 400
    assert next(iter(change)) in response.json()["error"]


def test_limits_of_one_request_fail_only_its_line_of_a_batch(driver: Driver) -> None:
    lines = [embedding_line("good", "x"), embedding_line("long", "word " * 9_000)]
    output, errors = driver.results(driver.after(10, driver.create(lines)))
    assert set(output) == {"good"} and set(errors) == {"long"}
    assert errors["long"]["response"]["status_code"] == 400
