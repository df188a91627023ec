"""OpenAI's errors, and the one refusal of a create that waiting mends: its input file isn't there yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from include.errors import ProviderRefused
from include.providers.sdk_errors import SDKErrors, text_of

INPUT_FILE_MISSING = "input_file_missing"
"""Our code for a create that was refused because its input file isn't there (yet)."""

_ERRORS = SDKErrors("openai", "OpenAIError", lambda error: (text_of(error.code), text_of(error.type)))

reading = _ERRORS.reading


@contextmanager
def creating(what: str, file_id: str | None = None) -> Iterator[None]:
    """`SDKErrors.creating`, where a refusal for a missing input file has its own code."""
    try:
        with _ERRORS.creating(what):
            yield
    except ProviderRefused as error:
        if type(error) is ProviderRefused and _names_missing_file(error, file_id):
            raise ProviderRefused(str(error), code=INPUT_FILE_MISSING, status=error.status) from error
        raise


def _names_missing_file(error: ProviderRefused, file_id: str | None) -> bool:
    if error.status not in (400, 404):
        return False
    text = str(error).lower()
    named = "file" in text or (file_id is not None and file_id.lower() in text)
    gone = any(
        phrase in text for phrase in ("not found", "no such", "not exist", "couldn't find", "not_found")
    )
    return named and gone
