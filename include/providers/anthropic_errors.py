"""Anthropic's errors."""

from __future__ import annotations

from typing import Any

from include.providers.sdk_errors import SDKErrors, text_of

_NO_CREDIT = "credit balance is too low"


def error_code(code: str, kind: str, message: str) -> str:
    """The name of an error: its own code, else its type. Lack of credit may come as a bad request."""
    return "billing_error" if _NO_CREDIT in message else code or kind


def _names(error: Any) -> tuple[str, str]:
    kind = text_of(error.type)
    return error_code(text_of(error.error_code), kind, text_of(error.api_message)), kind


_ERRORS = SDKErrors("anthropic", "AnthropicError", _names)

reading = _ERRORS.reading
creating = _ERRORS.creating
