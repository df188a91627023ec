"""The steps that spend: pack what is missing into shards, submit each once, watch, land, and once more."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

from include.batches import claims, failures, guard, runs, shards, submissions
from include.batches import deadline as deadlines
from include.batches import land as landing
from include.batches import pack as packing
from include.batches import retry as retrying
from include.batches import submit as submitting
from include.batches import watch as watching
from include.batches.cancel import cancel_batch
from include.batches.sending import Submitted, Waiting
from include.contracts import Limits, RunRef, Space
from include.errors import AccountError, BatchInferenceError, LedgerError, RunCancelled, RunStopped
from include.indexes import versions
from include.ledger.connect import Connection
from include.reference import limits_for, price_for
from include.workloads.plan import Plan
from include.workloads.services import Endpoint, Services
from include.workloads.steps import extracting
from include.workloads.steps.replaying import asking
from include.workloads.steps.shared import (
    FIRST,
    SECOND,
    deadline_of,
    endpoint_of,
    listed,
    parts,
    shards_of,
    working_plan,
)

log = logging.getLogger(__name__)


def pack(services: Services, ref: RunRef) -> list[str]:
    """Register the shards of what has no result and isn't in flight; returns the parts to map over."""
    plan = working_plan(services, ref)
    config = plan.corpus_config()
    endpoint = endpoint_of(services, plan)
    with services.ledger() as connection:
        asked = asking(services, connection, ref, plan)
        report = packing.pack(
            connection,
            services.storage,
            endpoint.offline,
            asked.space,
            _limits(asked.space, endpoint),
            run=asked.scope,
            rows=asked.rows,
            account=endpoint.account,
            deployment=plan.deployment,
            inputs_per_line=config.embedding.inputs_per_line if plan.extraction is None else 1,
            structured=plan.extraction is not None,
            only=asked.only,
            replayed=asked.replayed,
        )
        return _parts(connection, ref, plan, "pack", FIRST, report)


def pack_retry(services: Services, ref: RunRef) -> list[str]:
    """Pack the run's retryable and invalid items together, for their second attempt.

    None after a deadline that buries them.
    """
    plan = working_plan(services, ref)
    endpoint = endpoint_of(services, plan)
    with services.ledger() as connection:
        if deadlines.gives_up(connection, ref.run, deadline_of(plan)):
            log.warning("The deadline of run %s has passed: what failed isn't sent again", ref.run)
            return parts(len(listed(connection, ref, plan, SECOND)), SECOND)
        asked = asking(services, connection, ref, plan)
        again = None
        if plan.extraction is not None:
            again = extracting.second_attempt(services, connection, ref, plan)
        report = retrying.pack_retry(
            connection,
            services.storage,
            endpoint.offline,
            asked.space,
            _limits(asked.space, endpoint),
            run=asked.scope,
            rows=asked.rows if again is None else again.rows,
            account=endpoint.account,
            deployment=plan.deployment,
            structured=plan.extraction is not None,
            replayed=asked.replayed,
            only=None if again is None else again.only,
        )
        return _parts(connection, ref, plan, "pack_retry", SECOND, report)


def _parts(
    connection: Connection, ref: RunRef, plan: Plan, step: str, word: str, report: packing.PackReport
) -> list[str]:
    """Record what a round packed; returns the parts of its mapped group."""
    total = len(listed(connection, ref, plan, word))
    counts = {**asdict(report), "shards": total}
    runs.record(connection, ref.run, step, counts)
    log.info("%s: %s", step, counts)
    return parts(total, word)


def _limits(space: Space, endpoint: Endpoint) -> Limits:
    return limits_for(space.protocol, space.endpoint, space.model, account=endpoint.account)


def submit(services: Services, ref: RunRef, part: str) -> dict[str, Any] | None:
    """Submit the part's shards, each once. Returns why and how long to wait, or None when all are in.

    Where the run may send nothing more, what it sent before is still followed: it is refused only where
    nothing of the part was sent.
    """
    plan = working_plan(services, ref)
    endpoint = endpoint_of(services, plan)
    with services.ledger() as connection:
        found = _advance(services, connection, plan, ref, endpoint, part)
    if found.refused is not None:
        if not found.submitted:
            raise found.refused
        log.warning("%s: what was sent is followed, and the rest isn't sent: %s", part, found.refused)
    if found.waiting is None:
        log.info("%s: all %d shards that are sent are submitted", part, len(found.submitted))
        return None
    return {"seconds": found.waiting.seconds, "reason": found.waiting.reason}


@dataclass(slots=True)
class _Advanced:
    """What became of a part's shards: those at the provider, why others must wait (the shortest wait), and
    why still others are never sent."""

    submitted: list[tuple[shards.ListedShard, Submitted]] = field(default_factory=list)
    waiting: Waiting | None = None
    refused: BatchInferenceError | None = None

    def wait(self, step: Waiting) -> None:
        """Wait at most so long."""
        if self.waiting is None or step.seconds < self.waiting.seconds:
            self.waiting = step


def _advance(
    services: Services, connection: Connection, plan: Plan, ref: RunRef, endpoint: Endpoint, part: str
) -> _Advanced:
    """Bring each shard of a part to the provider, as far as it goes now."""
    found = _Advanced()
    for entry in shards_of(connection, ref, plan, part):
        left = deadlines.seconds_left(connection, ref.run, deadline_of(plan), entry.round)
        over = left is not None and left <= 0
        if over and deadlines.end_unsent(connection, services.storage, endpoint.provider, entry):
            continue
        try:
            step = _submit(services, connection, plan, ref, endpoint, entry)
        except (RunCancelled, RunStopped) as error:
            found.refused = found.refused or error
            continue
        except AccountError as error:
            runs.stop(connection, ref.run, str(error))
            found.refused = found.refused or error
            continue
        if isinstance(step, Submitted):
            found.submitted.append((entry, step))
        else:
            seconds = step.seconds if over or left is None else min(step.seconds, left)
            found.wait(Waiting(step.reason, seconds))
            log.info("Shard %s waits: %s", entry.shard.id, step.reason)
    return found


def _submit(
    services: Services,
    connection: Connection,
    plan: Plan,
    ref: RunRef,
    endpoint: Endpoint,
    entry: shards.ListedShard,
) -> Submitted | Waiting:
    space = plan.asked_space()
    return submitting.submit(
        connection,
        services.storage,
        endpoint.provider,
        _limits(space, endpoint),
        entry.shard.id,
        entry.attempt,
        run=ref.run,
        settings=services.settings,
        price=price_for(space.protocol, space.model),
        output_tokens_per_line=extracting.output_tokens(connection, plan),
    )


def watch(services: Services, ref: RunRef, part: str) -> dict[str, Any] | None:
    """Record what the provider says of the part's batches; what is still to wait for, or None.

    A batch that never ran because the account's queue was full is submitted again from here.
    """
    plan = working_plan(services, ref)
    endpoint = endpoint_of(services, plan)
    pending: list[str] = []
    with services.ledger() as connection:
        found = _advance(services, connection, plan, ref, endpoint, part)
        for entry, step in found.submitted:
            row = submissions.by_id(connection, step.id)
            seen = watching.look(connection, endpoint.provider, row, settings=services.settings)
            if seen is watching.Seen.AGAIN:
                found.wait(Waiting("its batch never ran", services.settings.admission_seconds))
            elif not seen:
                assert row.batch_id is not None
                pending.append(row.batch_id)
                left = deadlines.seconds_left(connection, ref.run, deadline_of(plan), entry.round)
                if left is not None and left > 0:
                    found.wait(Waiting("the run's deadline", left))
                _cancel_late(services, connection, endpoint, row, ref, left)
    if not pending and found.waiting is None:
        return None
    provider, conn_id = plan.asks()
    return {
        "provider": provider,
        "connection": conn_id,
        "batch_ids": pending,
        "seconds": None if found.waiting is None else found.waiting.seconds,
    }


def _cancel_late(
    services: Services,
    connection: Connection,
    endpoint: Endpoint,
    row: submissions.SubmissionRow,
    ref: RunRef,
    left: float | None,
) -> None:
    """A batch that takes longer than any should, or than its run may, is cancelled: what it has done is
    landed. Told once; where the provider can't be reached, the next look tells it."""
    if watching.is_overdue(connection, row, services.settings):
        why = f"it has run for over {services.settings.batch_deadline_hours:.0f} hours"
    elif left is not None and left <= 0 and not claims.wanted_by_others(connection, row, ref.run):
        why = f"the deadline of run {ref.run} has passed"
    else:
        return
    if submissions.was_told_to_stop(connection, row):
        return
    log.warning("Batch %s: %s: cancelling it to land what it has done", row.batch_id, why)
    if cancel_batch(endpoint.provider, row):
        submissions.told_to_stop(connection, row)


def land(services: Services, ref: RunRef, part: str) -> None:
    """Judge every line of the part's batches, and store what was paid for.

    Raises RunCancelled or RunStopped at the end, where some of them were never sent.
    """
    plan = working_plan(services, ref)
    space, config = plan.asked_space(), plan.corpus_config()
    endpoint = endpoint_of(services, plan)
    accept = extracting.acceptance(plan)
    with services.ledger() as connection:
        entries = shards_of(connection, ref, plan, part)
        unsent = [entry for entry in entries if _is_unsent(connection, entry)]
        for entry in entries:
            if entry in unsent:
                continue
            report = landing.land(
                connection,
                services.storage,
                endpoint.provider,
                space,
                price_for(space.protocol, space.model),
                entry.shard.id,
                entry.attempt,
                dimensions=None if accept else _dimensions(connection, plan),
                accept=accept,
            )
            log.info("Landed shard %s: %s", entry.shard.id, report)
        reason = guard.check(connection, services.storage, ref.run, config.max_failed_share)
        if reason:
            log.error("Run %s sends nothing more: %s", ref.run, reason)
            runs.stop(connection, ref.run, reason)
        for entry in unsent:
            if not services.storage.exists(failures.of_attempt(entry.shard.id, entry.attempt)):
                runs.refuse_idle(connection, ref.run)
                raise LedgerError(f"shard {entry.shard.id} was never sent: clear the task `submit` of {part}")


def _is_unsent(connection: Connection, entry: shards.ListedShard) -> bool:
    row = submissions.get(connection, entry.shard.id, entry.attempt)
    return row is not None and row.state in (submissions.PLANNED, submissions.VOID)


def _dimensions(connection: Connection, plan: Plan) -> int | None:
    version = versions.find(connection, plan.version)
    return version.dimensions if version else None
