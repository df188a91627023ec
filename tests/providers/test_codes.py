"""Codes are classed by a table, then by HTTP status, and a full queue is told apart."""

from __future__ import annotations

import pytest

from include.contracts import OutcomeClass
from include.providers.codes import classify, is_queue_limit


@pytest.mark.parametrize(
    ("code", "status", "cls"),
    [
        ("insufficient_quota", 429, OutcomeClass.ACCOUNT),
        ("context_length_exceeded", 400, OutcomeClass.PERMANENT),
        ("batch_expired", None, OutcomeClass.RETRYABLE),
        ("", 401, OutcomeClass.ACCOUNT),
        ("never heard of", 422, OutcomeClass.PERMANENT),
        ("never heard of", 503, OutcomeClass.RETRYABLE),
        ("never heard of", None, OutcomeClass.RETRYABLE),
        ("", None, OutcomeClass.RETRYABLE),
    ],
)
def test_a_failure_is_classed_by_its_code_then_by_its_status(
    code: str, status: int | None, cls: OutcomeClass
) -> None:
    assert classify(code, status) is cls


def test_a_full_queue_is_told_by_its_code_or_its_words() -> None:
    assert is_queue_limit("token_limit_exceeded", "")
    assert is_queue_limit("", "Enqueued request limit reached for text-embedding-3-small in organization x.")
    assert not is_queue_limit("billing_hard_limit_reached", "Billing hard limit has been reached")
