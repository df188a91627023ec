"""What waits in the triggerer. A trigger only watches; whatever changes state happens in a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 60.0


class BatchTrigger(BaseTrigger):
    """Polls batches until all have ended, or `give_back_seconds` have passed.

    Without batches it only waits: a shard is to be submitted again then. No error ends it: a poll
    that fails is only a poll that fails, while the batch goes on billing. Giving back lets the task
    look for itself once in a while (a batch that the provider doesn't find, a deadline).
    """

    def __init__(
        self,
        *,
        provider: str,
        conn_id: str,
        batch_ids: list[str],
        poll_seconds: float,
        give_back_seconds: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.provider = provider
        self.conn_id = conn_id
        self.batch_ids = batch_ids
        self.poll_seconds = poll_seconds
        self.give_back_seconds = give_back_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and arguments, for the database."""
        return (
            "batch_inference.triggers.BatchTrigger",
            {
                "provider": self.provider,
                "conn_id": self.conn_id,
                "batch_ids": self.batch_ids,
                "poll_seconds": self.poll_seconds,
                "give_back_seconds": self.give_back_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event with the ids of the batches seen to have ended."""
        from batch_inference.connections import async_provider
        from include.contracts import BatchState

        loop = asyncio.get_running_loop()
        give_back = loop.time() + self.give_back_seconds
        next_word = loop.time()
        pending = set(self.batch_ids)
        client = None
        while True:
            try:
                client = client or await async_provider(self.provider, self.conn_id)
                statuses = await client.poll(sorted(pending)) if pending else []
            except Exception as error:
                log.warning("Poll failed (%s: %s); trying again", type(error).__name__, error)
                statuses, client = [], None
            pending -= {s.batch_id for s in statuses if s.state is BatchState.ENDED}
            if loop.time() >= next_word:
                next_word = loop.time() + _PROGRESS_SECONDS
                for status in statuses:
                    log.info(
                        "%s: %s, %d of %d requests done, %d failed",
                        status.batch_id,
                        status.provider_status,
                        status.completed,
                        status.total,
                        status.failed,
                    )
            waits_for_room = not self.batch_ids
            if (not pending and not waits_for_room) or loop.time() >= give_back:
                ended = [batch_id for batch_id in self.batch_ids if batch_id not in pending]
                yield TriggerEvent({"ended": ended})  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poll_seconds)


class RoomTrigger(BaseTrigger):
    """Waits a while for room at the account; the reservation itself is made in the task."""

    def __init__(self, *, seconds: float, reason: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = seconds
        self.reason = reason

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and arguments, for the database."""
        return (
            "batch_inference.triggers.RoomTrigger",
            {"seconds": self.seconds, "reason": self.reason},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event when it's time to try again."""
        log.info("Waiting %.0f s: %s", self.seconds, self.reason)
        await asyncio.sleep(self.seconds)
        yield TriggerEvent({"waited": self.seconds})  # type: ignore[no-untyped-call]
