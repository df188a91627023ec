"""The steps that spend: pack what is missing into shards, submit each once, watch, land, and once more."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from include.batches import land as landing
from include.batches import pack as packing
from include.batches import retry as retrying
from include.batches import runs, shards, submissions
from include.batches import submit as submitting
from include.batches import watch as watching
from include.batches.cancel import cancel_batch
from include.contracts import Limits, RunRef, Space
from include.indexes import versions
from include.ledger.connect import Connection
from include.reference import limits_for, price_for
from include.workloads.plan import Plan
from include.workloads.services import Endpoint, Services
from include.workloads.steps.shared import (
    FIRST,
    SECOND,
    endpoint_of,
    listed,
    parts,
    rows_of,
    shards_of,
    working_plan,
)

log = logging.getLogger(__name__)


def pack(services: Services, ref: RunRef) -> list[str]:
    """Register the shards of what has no result and isn't in flight; returns the parts to map over."""
    plan = working_plan(services, ref)
    space, config = plan.space_of(), plan.corpus_config()
    endpoint = endpoint_of(services, plan)
    with services.ledger() as connection:
        report = packing.pack(
            connection,
            services.storage,
            endpoint.offline,
            space,
            _limits(space, endpoint),
            run=ref,
            rows=rows_of(services, ref),
            account=endpoint.account,
            deployment=plan.deployment,
            inputs_per_line=config.embedding.inputs_per_line,
        )
        return _parts(connection, ref, plan, "pack", FIRST, report)


def pack_retry(services: Services, ref: RunRef) -> list[str]:
    """Pack the run's retryable and invalid items together, for their second attempt."""
    plan = working_plan(services, ref)
    space = plan.space_of()
    endpoint = endpoint_of(services, plan)
    with services.ledger() as connection:
        report = retrying.pack_retry(
            connection,
            services.storage,
            endpoint.offline,
            space,
            _limits(space, endpoint),
            run=ref,
            rows=rows_of(services, ref),
            account=endpoint.account,
            deployment=plan.deployment,
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
    """Submit the part's shards, each once. Returns why and how long to wait, or None when all are in."""
    plan = working_plan(services, ref)
    endpoint = endpoint_of(services, plan)
    waiting: submitting.Waiting | None = None
    with services.ledger() as connection:
        entries = shards_of(connection, ref, plan, part)
        for entry in entries:
            step = _submit(services, connection, plan, ref, endpoint, entry)
            if isinstance(step, submitting.Waiting) and (waiting is None or step.seconds < waiting.seconds):
                waiting = step
    if waiting is None:
        log.info("%s: all %d shards are submitted", part, len(entries))
        return None
    return {"seconds": waiting.seconds, "reason": waiting.reason}


def _submit(
    services: Services,
    connection: Connection,
    plan: Plan,
    ref: RunRef,
    endpoint: Endpoint,
    entry: shards.ListedShard,
) -> submitting.Submitted | submitting.Waiting:
    space = plan.space_of()
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
    )


def watch(services: Services, ref: RunRef, part: str) -> dict[str, Any] | None:
    """Record what the provider says of the part's batches; what is still to wait for, or None.

    A batch that never ran because the account's queue was full is submitted again from here.
    """
    plan = working_plan(services, ref)
    config = plan.corpus_config()
    endpoint = endpoint_of(services, plan)
    pending: list[str] = []
    seconds: float | None = None
    with services.ledger() as connection:
        for entry in shards_of(connection, ref, plan, part):
            step = _submit(services, connection, plan, ref, endpoint, entry)
            if isinstance(step, submitting.Waiting):
                seconds = min(seconds or step.seconds, step.seconds)
                log.info("Shard %s waits: %s", entry.shard.id, step.reason)
                continue
            row = submissions.by_id(connection, step.id)
            seen = watching.look(connection, endpoint.provider, row, settings=services.settings)
            if seen is watching.Seen.AGAIN:
                seconds = min(
                    seconds or services.settings.admission_seconds, services.settings.admission_seconds
                )
            elif not seen:
                assert row.batch_id is not None
                pending.append(row.batch_id)
                _cancel_overdue(services, connection, endpoint, row)
    if not pending and seconds is None:
        return None
    return {
        "provider": config.embedding.provider,
        "connection": config.embedding.connection,
        "batch_ids": pending,
        "seconds": seconds,
    }


def _cancel_overdue(
    services: Services, connection: Connection, endpoint: Endpoint, row: submissions.SubmissionRow
) -> None:
    """A batch that takes longer than any should is cancelled: what it has done is landed, the rest is
    asked again. Told once; where the provider can't be reached, the next look tells it."""
    if row.batch_id and watching.is_overdue(connection, row, services.settings):
        log.warning(
            "Batch %s has run for over %.0f hours: cancelling it to land what it has done",
            row.batch_id,
            services.settings.batch_deadline_hours,
        )
        if cancel_batch(endpoint.provider, row):
            submissions.told_to_stop(connection, row)


def land(services: Services, ref: RunRef, part: str) -> None:
    """Judge every line of the part's batches, and store what was paid for."""
    plan = working_plan(services, ref)
    space = plan.space_of()
    endpoint = endpoint_of(services, plan)
    with services.ledger() as connection:
        for entry in shards_of(connection, ref, plan, part):
            report = landing.land(
                connection,
                services.storage,
                endpoint.provider,
                space,
                price_for(space.protocol, space.model),
                entry.shard.id,
                entry.attempt,
                dimensions=_dimensions(connection, plan),
            )
            log.info("Landed shard %s: %s", entry.shard.id, report)


def _dimensions(connection: Connection, plan: Plan) -> int | None:
    version = versions.find(connection, plan.version)
    return version.dimensions if version else None
