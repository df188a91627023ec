"""What a provider's error codes mean, as data: one table for lines and for whole batches."""

from __future__ import annotations

from include.contracts import OutcomeClass

_PERMANENT = OutcomeClass.PERMANENT
_RETRYABLE = OutcomeClass.RETRYABLE
_ACCOUNT = OutcomeClass.ACCOUNT

#: Code → class. A code that isn't here is judged by its HTTP status, and without one as retryable.
CODES: dict[str, OutcomeClass] = {
    # Nothing of this run will work until a person mends it.
    "access_terminated": _ACCOUNT,
    "account_deactivated": _ACCOUNT,
    "authentication_error": _ACCOUNT,
    "billing_error": _ACCOUNT,
    "billing_hard_limit_reached": _ACCOUNT,
    "billing_not_active": _ACCOUNT,
    "insufficient_quota": _ACCOUNT,
    "invalid_api_key": _ACCOUNT,
    "invalid_organization": _ACCOUNT,
    "invalid_project": _ACCOUNT,
    "cmek_key_disabled": _ACCOUNT,
    "contract_spend_limit_reached": _ACCOUNT,
    "enforced_spend_limit_reached": _ACCOUNT,
    "linked_organization_spend_limit_reached": _ACCOUNT,
    "model_not_found": _ACCOUNT,
    "not_found_error": _ACCOUNT,
    "organization_on_hold": _ACCOUNT,
    "permission_error": _ACCOUNT,
    "unsupported_country_region_territory": _ACCOUNT,
    # Asking again gives the same.
    "content_filter": _PERMANENT,
    "content_policy_violation": _PERMANENT,
    "context_length_exceeded": _PERMANENT,
    "invalid_json_line": _PERMANENT,
    "invalid_prompt": _PERMANENT,
    "invalid_request": _PERMANENT,
    "invalid_request_error": _PERMANENT,
    "max_tokens_per_request": _PERMANENT,
    "missing_required_parameter": _PERMANENT,
    "mismatched_url": _PERMANENT,
    "model_mismatch": _PERMANENT,
    "request_too_large": _PERMANENT,
    "string_above_max_length": _PERMANENT,
    "unsupported_parameter": _PERMANENT,
    "unsupported_value": _PERMANENT,
    "url_mismatch": _PERMANENT,
    # Asking again may give an answer.
    "api_error": _RETRYABLE,
    "batch_cancelled": _RETRYABLE,
    "batch_expired": _RETRYABLE,
    "overloaded_error": _RETRYABLE,
    "rate_limit_error": _RETRYABLE,
    "rate_limit_exceeded": _RETRYABLE,
    "request_limit_exceeded": _RETRYABLE,
    "server_error": _RETRYABLE,
    "timeout_error": _RETRYABLE,
    "token_limit_exceeded": _RETRYABLE,
}

#: HTTP status → class, where the code says nothing. 5xx and what isn't here are retryable.
STATUSES: dict[int, OutcomeClass] = {
    400: _PERMANENT,
    401: _ACCOUNT,
    402: _ACCOUNT,
    403: _ACCOUNT,
    404: _PERMANENT,
    413: _PERMANENT,
    415: _PERMANENT,
    422: _PERMANENT,
}

#: Codes of a whole batch that was refused because the account's queue was full.
QUEUE_CODES = frozenset({"token_limit_exceeded", "request_limit_exceeded"})

_QUEUE_PHRASE = ("enqueued", "limit reached")


def classify(code: str = "", status: int | None = None) -> OutcomeClass:
    """The class of a failure by its code, else by its HTTP status, else retryable."""
    known = CODES.get(code)
    if known is not None:
        return known
    return STATUSES.get(status, _RETRYABLE) if status is not None else _RETRYABLE


def is_queue_limit(code: str, message: str) -> bool:
    """Whether a batch failed because the account's queue was full: waiting mends it.

    The code of the request-count variant isn't documented; its message is.
    """
    lowered = message.lower()
    return code in QUEUE_CODES or all(phrase in lowered for phrase in _QUEUE_PHRASE)
