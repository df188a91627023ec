"""The operators: thin shells that turn a task into one step of `include.workloads.steps`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from batch_inference.connections import services
from batch_inference.runs import request, run_ref
from batch_inference.triggers import RoomTrigger
from include.errors import (
    AccountError,
    BudgetExceeded,
    ConfigError,
    IndexMismatch,
    ItemsTaken,
    PlanMissing,
    ProviderRefused,
    PublishRefused,
    QueueFull,
    ReconcileError,
    RunCancelled,
    RunStopped,
    TooMuchBadInput,
)

FINAL = (
    ConfigError,
    BudgetExceeded,
    IndexMismatch,
    ItemsTaken,
    PlanMissing,
    PublishRefused,
    ReconcileError,
    RunCancelled,
    RunStopped,
    TooMuchBadInput,
)
"""Errors that a retry can't mend."""


def is_final(error: BaseException) -> bool:
    """Whether trying the task again would only fail again."""
    if isinstance(error, QueueFull):
        return False
    return isinstance(error, (*FINAL, AccountError, ProviderRefused))


class StepOperator(BaseOperator):
    """One step of a run, by its name. Returns counts or labels, never data."""

    template_fields: Sequence[str] = ("part",)
    ui_color = "#e8f0fe"

    def __init__(self, *, workload: str, corpus: str, step: str, part: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.workload = workload
        self.corpus = corpus
        self.step = step
        self.part = part

    def execute(self, context: Any) -> Any:
        from include.workloads import steps

        ref = run_ref(self.workload, self.corpus, context)
        if self.part is not None:
            context["part"] = f"{self.step} {self.part}"
        try:
            if self.step == "prepare":
                return steps.prepare(services(), ref, request(self.workload, context))
            arguments = () if self.part is None else (self.part,)
            result = getattr(steps, self.step)(services(), ref, *arguments)
            # XCom carries labels and waits; a report is for storage and the log.
            return result if isinstance(result, (list, dict)) else None
        except steps.NothingToDo as reason:
            raise AirflowSkipException(str(reason)) from None
        except Exception as error:
            if is_final(error):
                raise AirflowFailException(f"{type(error).__name__}: {error}") from error
            raise


class SubmitOperator(StepOperator):
    """Submits the shards of one part, each once; defers while the account has no room."""

    def execute(self, context: Any, event: dict[str, Any] | None = None) -> Any:
        waiting = super().execute(context)
        if waiting is None:
            return
        self.log.info("Waiting for room: %s", waiting["reason"])
        self.defer(
            trigger=RoomTrigger(seconds=waiting["seconds"], reason=waiting["reason"]),
            method_name="execute",
            timeout=timedelta(seconds=waiting["seconds"]) + timedelta(hours=1),
        )


class ApproveOperator(ApprovalOperator):
    """Asks a person before money is spent, where the run or the corpus wants that; else passes."""

    def __init__(self, *, workload: str, corpus: str, **kwargs: Any) -> None:
        super().__init__(subject=f"Spend on {workload} of {corpus}?", fail_on_reject=True, **kwargs)
        self.workload = workload
        self.corpus = corpus

    def execute(self, context: Any) -> Any:
        from include.workloads import steps

        try:
            question = steps.approval_question(services(), run_ref(self.workload, self.corpus, context))
        except steps.NothingToDo as reason:
            raise AirflowSkipException(str(reason)) from None
        if question is None:
            self.log.info("No approval is asked for")
            return None
        self.body = question
        return super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Go on, or fail for good: a person who said no isn't asked again by a retry."""
        try:
            return super().execute_complete(context, event)
        except HITLRejectException as error:
            raise AirflowFailException("A person rejected the spending; nothing was sent") from error
