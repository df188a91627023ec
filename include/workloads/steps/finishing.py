"""The steps after the batches: bury what failed, write the index, account for all, publish, report."""

from __future__ import annotations

import logging
from dataclasses import asdict

from include.batches import bury as burying
from include.batches import deadline as deadlines
from include.batches import reconcile as reconciling
from include.batches import runs
from include.contracts import RunRef
from include.indexes import publish as publishing
from include.indexes import upsert as upserting
from include.indexes import verify as verifying
from include.indexes import versions
from include.indexes.live import LivePointer
from include.workloads import report as reporting
from include.workloads.plan import Plan
from include.workloads.services import Services
from include.workloads.steps import extracting, replaying
from include.workloads.steps.shared import NothingToDo, deadline_of, rows_of, working_plan
from include.workloads.steps.stand_ins import stand_in

log = logging.getLogger(__name__)


def dead_letters(services: Services, ref: RunRef) -> None:
    """Bury what still fails, and close the letters that have an answer by now."""
    plan = working_plan(services, ref)
    replay = plan.request.replay is not None
    asked: str | None = None
    with services.ledger() as connection:
        if replay or plan.extraction is not None:
            asked = stand_in(services.storage, plan, ref)
        report = burying.bury(
            connection,
            services.storage,
            plan.space_of(),
            run=replaying.scope_of(plan, ref),
            rows=rows_of(services, ref),
            asked=asked,
            only_asked=replay,
            given_up=deadlines.gives_up(connection, ref.run, deadline_of(plan)),
        )
        if replay:
            replaying.let_go_of_blocked(connection, services.storage, plan, ref)
        runs.record(connection, ref.run, "dead_letters", asdict(report))
    log.info("Dead letters: %s", report)


def upsert(services: Services, ref: RunRef, part: str) -> None:
    """Write the rows of some ranges whose results exist to the index, and remove what they replace."""
    plan = working_plan(services, ref)
    config = plan.corpus_config()
    first, last = (int(number) for number in part.split("-"))
    if plan.extraction is not None:
        with services.ledger() as connection:
            brought = extracting.bring(services, connection, ref, plan, range(first, last + 1))
            runs.record(connection, ref.run, f"upsert {part}", asdict(brought))
        return
    store = services.store(config.index.store, config.index.url)
    with services.ledger() as connection:
        version = versions.find(connection, plan.version)
        if version is None:
            raise NothingToDo("nothing was ever embedded for this index")
        report = upserting.upsert(
            connection,
            services.storage,
            store,
            run=ref,
            version=plan.version,
            space_id=plan.space_id,
            dimensions=version.dimensions,
            rows=[f"{ref.uri}/rows/range-{number:02d}.parquet" for number in range(first, last + 1)],
            corpus=plan.corpus,
        )
        runs.record(connection, ref.run, f"upsert {part}", asdict(report))


def reconcile(services: Services, ref: RunRef) -> None:
    """Account for every item: reused, succeeded or dead-lettered, or the run fails."""
    plan = Plan.load(services.storage, ref.uri)
    with services.ledger() as connection:
        if plan.request.dry_run:
            runs.record(connection, ref.run, "reconcile", {"dry_run": True})
            runs.finish(connection, ref.run, "dry_run")
            return
        only = None
        if plan.request.replay is not None:
            only = replaying.read_replayed(services.storage, ref)["key"].combine_chunks()
        accounts = reconciling.reconcile(
            connection,
            services.storage,
            plan.space_of(),
            run=replaying.scope_of(plan, ref),
            rows=rows_of(services, ref),
            only=only,
        )
        runs.record(connection, ref.run, "reconcile", asdict(accounts))
    log.info("Accounts: %s", accounts)


def publish(services: Services, ref: RunRef) -> None:
    """Send readers to the new index where it's whole and sound; else say what is still missing.

    A replay or an extraction adds to an index and publishes none.
    """
    plan = working_plan(services, ref)
    config = plan.corpus_config()
    with services.ledger() as connection:
        if plan.extraction is not None:
            log.info("Publish: %s", extracting.close(connection, ref, plan))
            return
        version = versions.find(connection, plan.version)
        if version is None:
            runs.finish(connection, ref.run, "succeeded")
            raise NothingToDo("nothing was ever embedded for this index")
        space = plan.space_of()
        store = services.store(config.index.store, config.index.url)
        if plan.request.replay is not None:
            reason = f"{plan.version} ({version.state}) holds what was answered"
            runs.record(connection, ref.run, "publish", {"reason": reason})
            store.compact(plan.version)
            runs.finish(connection, ref.run, "succeeded")
            return
        unaccounted = 0
        if plan.whole:
            verified = verifying.verify(
                connection,
                services.storage,
                store,
                corpus=plan.corpus,
                version=plan.version,
                rows=rows_of(services, ref),
            )
            runs.record(connection, ref.run, "verify", asdict(verified))
            unaccounted = verified.unaccounted
        report = publishing.publish(
            connection,
            services.storage,
            corpus=plan.corpus,
            version=plan.version,
            pointer=LivePointer(
                index=plan.version,
                store=config.index.store,
                store_url=config.index.url,
                model=space.model,
                dimensions=version.dimensions,
                space=space.id,
                chunking=config.chunking.fingerprint,
                provider=config.embedding.provider,
                endpoint=space.endpoint,
                connection=config.embedding.connection,
                run=ref.run,
                params=dict(space.params),
            ),
            # Also those in which something couldn't be read: it is named in the report, it deletes
            # nothing, and it doesn't stop the good rest.
            covered=list(plan.partitions()),
            known=list(plan.partitions()),
            whole=plan.whole,
            unaccounted=unaccounted,
        )
        runs.record(connection, ref.run, "publish", asdict(report))
        store.compact(plan.version)
        runs.finish(connection, ref.run, "succeeded")
    log.info("Publish: %s", report.reason)


def report(services: Services, ref: RunRef) -> reporting.Report | None:
    """Write the run's report, whatever happened before."""
    return reporting.finish(services, ref)
