"""Prompt caching: which prefix of a prompt is read from the cache, and which is written to it.

A prefix is known by the hash of all before its mark. It lives for the mark's time to live, counted
from its last use. In a batch hits are best effort, as the service's are: each request's luck follows
from its custom_id, so the same batch costs the same every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from include.emulator.anthropic.prompts import Block
from include.emulator.store import Store

SECONDS = {"5m": 300.0, "1h": 3_600.0}


@dataclass(frozen=True, slots=True)
class Use:
    """Tokens read from the cache, and written to it by time to live."""

    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    @property
    def written(self) -> int:
        """All that was written."""
        return self.written_5m + self.written_1h


@dataclass(frozen=True, slots=True)
class Mark:
    """A prefix that is to be cached: its hash, its tokens in all, its time to live."""

    key: str
    tokens: int
    ttl: str


def marks_of(model: str, blocks: Sequence[Block], tokens: Sequence[int], least: int) -> list[Mark]:
    """The marks of a prompt whose prefix has at least so many tokens; `tokens` counts each block's."""
    hasher = hashlib.blake2b(model.encode(), digest_size=16)
    total, marks = 0, []
    for block, count in zip(blocks, tokens, strict=True):
        hasher.update(b"\0" + block.text.encode("utf-8", "surrogatepass"))
        total += count
        if block.ttl is not None and total >= least:
            marks.append(Mark(hasher.copy().hexdigest(), total, block.ttl))
    return marks


def is_lucky(custom_id: str, share: float) -> bool:
    """Whether this request of a batch finds what is in the cache."""
    digest = hashlib.blake2b(custom_id.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") < share * 2**32


class PromptCache:
    """An account's cache while some requests run; `save` keeps what they did to it."""

    def __init__(self, store: Store, account: str) -> None:
        self._store = store
        self._account = account
        self._expiry: dict[str, float] = {}
        self._changed: set[str] = set()

    def use(self, marks: Sequence[Mark], moment: float, *, lucky: bool = True) -> Use:
        """Read and write the marked prefixes at a moment."""
        self._load(mark.key for mark in marks)
        live = [index for index, mark in enumerate(marks) if self._expiry[mark.key] > moment]
        found = live[-1] if live and lucky else -1
        read = marks[found].tokens if found >= 0 else 0
        written = {"5m": 0, "1h": 0}
        before = read
        for index, mark in enumerate(marks):
            if index > found:
                written[mark.ttl] += mark.tokens - before
                before = mark.tokens
            self._expiry[mark.key] = max(self._expiry[mark.key], moment + SECONDS[mark.ttl])
            self._changed.add(mark.key)
        return Use(read, written["5m"], written["1h"])

    def save(self) -> None:
        """Keep it; in the transaction that also books the requests."""
        self._store.keep_cached(self._account, {key: self._expiry[key] for key in self._changed})
        self._changed.clear()

    def _load(self, keys: Iterable[str]) -> None:
        missing = [key for key in keys if key not in self._expiry]
        if missing:
            known = self._store.cached(self._account, missing)
            self._expiry.update({key: known.get(key, 0.0) for key in missing})
