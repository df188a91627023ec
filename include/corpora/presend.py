"""The pre-send hook: a callable, text in and text out, over every input before it's keyed and sent.

It is part of the space by its path and version: answers to texts that another hook has changed are
never mixed with these, and an index is built with one.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence

from include.contracts import KEY_BYTES
from include.corpora.dotted import load_callable
from include.corpora.values import kind_of
from include.errors import ConfigError


class PresendFailed(Exception):
    """The hook can't change a text. Its document is bad input; the message says why."""


class Presend:
    """One hook, loaded. Raises ConfigError where there is none, or its version can't be told."""

    def __init__(self, path: str) -> None:
        self.path = path.replace(":", ".")
        self._hook: Callable[..., object] = load_callable(path, "presend")
        self.fingerprint = f"{self.path}@{self._version()}"

    def apply(self, texts: Sequence[str]) -> list[str]:
        """The inputs to send, in their order. Raises PresendFailed for the first that has none."""
        inputs = []
        for position, text in enumerate(texts):
            try:
                found = self._hook(text)
            # The hook is the user's own, and may raise anything.
            except Exception as error:
                raise PresendFailed(f"{self.path} failed on chunk {position}: {error!r}") from error
            if not isinstance(found, str):
                raise PresendFailed(f"{self.path} gave a {kind_of(found)} for chunk {position}, not text")
            if not found.strip():
                raise PresendFailed(f"{self.path} left nothing of chunk {position}")
            try:
                found.encode()
            except UnicodeEncodeError:
                raise PresendFailed(f"{self.path} gave half a character for chunk {position}") from None
            inputs.append(found)
        return inputs

    def _version(self) -> str:
        """The hook's own `version`, else the hash of its source."""
        told = getattr(self._hook, "version", None)
        if told is not None:
            return str(told)
        try:
            source = inspect.getsource(self._hook)
        except (TypeError, OSError):
            raise ConfigError(
                f"presend is {self.path!r}, whose source can't be read: give it an attribute `version` and "
                "change that whenever the hook changes"
            ) from None
        return hashlib.blake2b(source.encode(), digest_size=KEY_BYTES).hexdigest()
