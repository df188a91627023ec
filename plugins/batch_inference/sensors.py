"""The sensor that waits for batches without holding a worker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from batch_inference.connections import services
from batch_inference.operators import is_final
from batch_inference.runs import run_ref
from batch_inference.triggers import BatchTrigger

_GIVE_BACK_POLLS = 30
_GIVE_BACK_SECONDS = 300.0
_SLACK = timedelta(hours=1)


class BatchSensor(BaseSensorOperator):
    """Waits until every batch of its part has ended, whatever its outcome.

    Deferrable by default: it holds no worker while it waits. With `deferrable=False` it pokes
    (or reschedules, with `mode="reschedule"`) like any sensor.
    """

    template_fields: Sequence[str] = ("part",)

    def __init__(
        self, *, workload: str, corpus: str, part: Any, deferrable: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.workload = workload
        self.corpus = corpus
        self.part = part
        self.deferrable = deferrable

    def _watch(self, context: Any) -> dict[str, Any] | None:
        """Record what the provider says now; what is still pending, or None."""
        from include.workloads import steps

        ref = run_ref(self.workload, self.corpus, context)
        context["part"] = f"wait_for_batch {self.part}"
        try:
            return steps.watch(services(), ref, self.part)
        except Exception as error:
            if is_final(error):
                raise AirflowFailException(f"{type(error).__name__}: {error}") from error
            raise

    def poke(self, context: Any) -> bool:
        """Whether every batch has ended; used when not deferrable."""
        return self._watch(context) is None

    def execute(self, context: Any, event: dict[str, Any] | None = None) -> None:
        """Look, then wait in the triggerer, then look again."""
        if not self.deferrable:
            super().execute(context)
            return
        pending = self._watch(context)
        if pending is None:
            return
        settings = services().settings
        give_back = max(_GIVE_BACK_SECONDS, settings.poll_seconds * _GIVE_BACK_POLLS)
        if pending["seconds"] is not None:
            # A shard that must be submitted again can't wait for the other shards' batches.
            give_back = min(give_back, pending["seconds"])
        self.log.info("Waiting for %d batches: %s", len(pending["batch_ids"]), pending["batch_ids"])
        self.defer(
            trigger=BatchTrigger(
                provider=pending["provider"],
                conn_id=pending["connection"],
                batch_ids=pending["batch_ids"],
                poll_seconds=settings.poll_seconds,
                give_back_seconds=give_back,
            ),
            method_name="execute",
            # `execution_timeout` doesn't bound a deferral. The trigger gives back long before this.
            timeout=timedelta(seconds=give_back) + _SLACK,
        )
