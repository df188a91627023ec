"""From the SDK's exceptions to ours: what each lets us know about the work behind it.

The SDK's transport is `httpx2` (or `httpx`, where its user hands it such a client): its exceptions
leak from streamed bodies, so both trees are read.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from include.contracts import OutcomeClass
from include.errors import (
    AccountError,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnknown,
    QueueFull,
)
from include.providers.codes import CODES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import openai

_REFUSALS = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 422, 431})
"""Statuses that say no to the request itself. Any other that isn't 401-403 or 429 proves nothing."""

_TRANSPORTS = frozenset({"httpx2", "httpx"})
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})

INPUT_FILE_MISSING = "input_file_missing"
"""Our code for a create that was refused because its input file isn't there (yet)."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate what a call that changes nothing raises: Unavailable, Refused, AccountError, QueueFull."""
    try:
        yield
    except Exception as error:
        translated = _translate(error, what)
        if translated is None:
            raise
        if isinstance(translated, ProviderUnknown):
            raise ProviderUnavailable(
                str(translated), code=translated.code, status=translated.status
            ) from error
        raise translated from error


@contextmanager
def creating(what: str, file_id: str | None = None) -> Iterator[None]:
    """Translate what a call that spends money raises. Whatever isn't a clear no is Unknown.

    Unavailable means that the request never left: the connection couldn't be made.
    """
    try:
        yield
    except Exception as error:
        translated = _translate(error, what)
        if translated is None:
            raise ProviderUnknown(f"{what}: {type(error).__name__}: {error}") from error
        if type(translated) is ProviderRefused and _names_missing_file(translated, file_id):
            raise ProviderRefused(
                str(translated), code=INPUT_FILE_MISSING, status=translated.status
            ) from error
        raise translated from error


def _translate(error: Exception, what: str) -> ProviderError | None:
    import openai

    if isinstance(error, ProviderError):
        return error
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, what)
    connection = isinstance(error, openai.APIConnectionError)
    cause = (error.__cause__ or error) if connection else error
    if connection or _is_transport(cause):
        text = f"{what}: {type(cause).__name__}: {cause}"
        if _is_transport(cause) and type(cause).__name__ in _NEVER_SENT:
            return ProviderUnavailable(f"{text} (nothing was sent)")
        return ProviderUnknown(text)
    if isinstance(error, openai.OpenAIError | ValueError | TypeError | AttributeError | KeyError):
        # The SDK doesn't check a 200: what its decoder and models raise for any other body leaks.
        return ProviderUnknown(f"{what}: unreadable answer: {type(error).__name__}: {error}")
    return None


def _is_transport(error: BaseException) -> bool:
    return any(
        cls.__name__ in ("HTTPError", "StreamError") and cls.__module__.split(".")[0] in _TRANSPORTS
        for cls in type(error).__mro__
    )


def _of_status(error: openai.APIStatusError, what: str) -> ProviderError:
    status = error.status_code
    # Gateways put bodies of any shape behind a status.
    code = error.code if isinstance(error.code, str) else ""
    kind = error.type if isinstance(error.type, str) else ""
    request = f", request {error.request_id}" if error.request_id else ""
    message = f"{what}: HTTP {status}{f' {code}' if code else ''}: {error.message}{request}"
    billing = OutcomeClass.ACCOUNT in (CODES.get(code), CODES.get(kind)) and code != "model_not_found"
    if status in (401, 402, 403) or (billing and 400 <= status < 500):
        return AccountError(f"{message}; mend the account or the connection's key", code=code, status=status)
    if status == 429:
        return QueueFull(message, code=code, status=status, retry_after=_retry_after(error.response.headers))
    if status in _REFUSALS:
        return ProviderRefused(message, code=code, status=status)
    return ProviderUnknown(message, code=code, status=status)


def _names_missing_file(error: ProviderRefused, file_id: str | None) -> bool:
    if error.status not in (400, 404):
        return False
    text = str(error).lower()
    named = "file" in text or (file_id is not None and file_id.lower() in text)
    gone = any(
        phrase in text for phrase in ("not found", "no such", "not exist", "couldn't find", "not_found")
    )
    return named and gone


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from `retry-after-ms` or `retry-after`, which holds seconds or an HTTP date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            return max(0.0, float(value) * scale)
        except ValueError:
            parsed = email.utils.parsedate_tz(value)
            if parsed is not None:
                return max(0.0, email.utils.mktime_tz(parsed) - time.time())
    return None
