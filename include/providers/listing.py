"""What batch APIs of one kind share: pages of batches, newest first, and polling many batches at once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from include.contracts import BatchState, BatchStatus
from include.errors import ProviderError, ProviderUnavailable

log = logging.getLogger(__name__)

CONCURRENT_POLLS = 8
SWEEP_FROM = 20
"""From this many batches on, listing costs fewer calls than asking for each."""
NOT_FOUND = "not_found"
"""What we call the status of a batch that the provider doesn't know."""


def account_of(service: str, *parts: str | None) -> str:
    """An account's name: a hash of (service, organisation, project or workspace), never of the key, so
    that a rotated key keeps it."""
    text = "\x1f".join((service, *(part or "" for part in parts)))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_page(
    page: Any, is_one: Callable[[Any], bool], what: str = "batches"
) -> tuple[list[Any], str | None]:
    """A page's entries and the id after which the next one starts, None behind the last.

    The SDKs take a page of any shape for empty; here it is an error, because what isn't found may be
    bought again.
    """
    data = getattr(page, "data", None)
    if not isinstance(data, list) or not all(is_one(entry) for entry in data):
        raise ProviderUnavailable(f"list of {what}: a page is unreadable")
    if page.has_more is False or (page.has_more is None and not data):
        return data, None
    if not data:
        raise ProviderUnavailable(f"list of {what}: an empty page says that more follow")
    return data, str(data[-1].id)


def not_found(batch_id: str) -> BatchStatus:
    """A batch that the provider answers 404 for."""
    return BatchStatus(batch_id, BatchState.NOT_FOUND, NOT_FOUND)


async def poll(
    batch_ids: Sequence[str],
    ask: Callable[[str], Awaitable[BatchStatus]],
    pages: Callable[[], AsyncIterator[list[BatchStatus]]],
) -> list[BatchStatus]:
    """The present state of these batches. One whose poll failed, for any reason, is left out."""
    wanted = dict.fromkeys(batch_ids)
    found: dict[str, BatchStatus] = {}
    if len(wanted) >= SWEEP_FROM:
        try:
            read = 0
            async for page in pages():
                found.update({status.batch_id: status for status in page if status.batch_id in wanted})
                read += 1
                if read >= len(wanted) - len(found):
                    # Asking for each of the rest is cheaper by now.
                    break
        except Exception as error:
            log.warning("Listing batches failed (%s: %s)", type(error).__name__, error)
            return list(found.values())
    gate = asyncio.Semaphore(CONCURRENT_POLLS)

    async def ask_one(batch_id: str) -> BatchStatus | None:
        async with gate:
            try:
                return await ask(batch_id)
            except ProviderError as error:
                if error.status == 404:
                    return not_found(batch_id)
                log.warning("Polling batch %s failed (%s: %s)", batch_id, type(error).__name__, error)
                return None

    answers = await asyncio.gather(*(ask_one(id_) for id_ in wanted if id_ not in found))
    return [*found.values(), *(answer for answer in answers if answer is not None)]
