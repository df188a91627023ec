"""From an SDK's exceptions to ours: what each lets us know about the work behind it.

OpenAI's and Anthropic's SDKs come from one generator and raise the same kinds. Their transport is
`httpx2` (or `httpx`, where its user hands them such a client): its exceptions leak from streamed
bodies, so both trees are read.
"""

from __future__ import annotations

import email.utils
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

_REFUSALS = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 422, 431})
"""Statuses that say no to the request itself. Any other that isn't 401-403 or 429 proves nothing."""

_TRANSPORTS = frozenset({"httpx2", "httpx"})
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
_OF_ONE_MODEL = frozenset({"model_not_found", "not_found_error"})
"""Codes that stop a run's lines, and say nothing of the account when a call is refused for them."""


@dataclass(frozen=True, slots=True)
class SDKErrors:
    """One SDK: its module, its exceptions' root, and how (code, type) are read from one with a status."""

    module: str
    root: str
    names: Callable[[Any], tuple[str, str]]

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Translate what a call that changes nothing raises: Unavailable or a refusal."""
        try:
            yield
        except Exception as error:
            translated = self._translate(error, what)
            if translated is None:
                raise
            if isinstance(translated, ProviderUnknown):
                raise ProviderUnavailable(
                    str(translated), code=translated.code, status=translated.status
                ) from error
            raise translated from error

    @contextmanager
    def creating(self, what: str) -> Iterator[None]:
        """Translate what a call that spends money raises. Whatever isn't a clear no is Unknown.

        Unavailable means that the request never left: the connection couldn't be made.
        """
        try:
            yield
        except Exception as error:
            translated = self._translate(error, what)
            if translated is None:
                raise ProviderUnknown(f"{what}: {type(error).__name__}: {error}") from error
            raise translated from error

    def _translate(self, error: Exception, what: str) -> ProviderError | None:
        sdk = importlib.import_module(self.module)
        if isinstance(error, ProviderError):
            return error
        if isinstance(error, sdk.APIStatusError):
            return self._of_status(error, what)
        connection = isinstance(error, sdk.APIConnectionError)
        cause = (error.__cause__ or error) if connection else error
        if connection or _is_transport(cause):
            text = f"{what}: {type(cause).__name__}: {cause}"
            if _is_transport(cause) and type(cause).__name__ in _NEVER_SENT:
                return ProviderUnavailable(f"{text} (nothing was sent)")
            return ProviderUnknown(text)
        if isinstance(error, (getattr(sdk, self.root), ValueError, TypeError, AttributeError, KeyError)):
            # The SDK doesn't check a 200: what its decoder and models raise for any other body leaks.
            return ProviderUnknown(f"{what}: unreadable answer: {type(error).__name__}: {error}")
        return None

    def _of_status(self, error: Any, what: str) -> ProviderError:
        status: int = error.status_code
        code, kind = self.names(error)
        request = f", request {error.request_id}" if error.request_id else ""
        message = f"{what}: HTTP {status}{f' {code}' if code else ''}: {error.message}{request}"
        named = {code, kind}
        account = any(CODES.get(name) is OutcomeClass.ACCOUNT for name in named)
        billing = account and not named & _OF_ONE_MODEL
        if status in (401, 402, 403) or (billing and 400 <= status < 500):
            return AccountError(
                f"{message}; mend the account or the connection's key", code=code, status=status
            )
        if status == 429:
            wait = _retry_after(error.response.headers)
            return QueueFull(message, code=code, status=status, retry_after=wait)
        if status in _REFUSALS:
            return ProviderRefused(message, code=code, status=status)
        return ProviderUnknown(message, code=code, status=status)


def _is_transport(error: BaseException) -> bool:
    return any(
        cls.__name__ in ("HTTPError", "StreamError") and cls.__module__.split(".")[0] in _TRANSPORTS
        for cls in type(error).__mro__
    )


def text_of(value: Any) -> str:
    """A field of an error's body: gateways put bodies of any shape behind a status."""
    return value if isinstance(value, str) else ""


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
