"""The steps before any money is spent: read, estimate, ask, prove."""

from __future__ import annotations

import logging
from dataclasses import asdict

import pendulum

from include.batches import pack as packing
from include.batches import runs, spaces
from include.contracts import JSON, OutcomeClass, RunRef, Usage
from include.corpora import prepare as preparing
from include.corpora.config import CorpusConfig, load_all
from include.errors import BudgetExceeded, ConfigError, ProviderRefused, ProviderUnavailable
from include.indexes import versions
from include.ledger import clock
from include.ledger.connect import Connection
from include.reference import limits_for, price_for
from include.workloads.extraction.questions import Prepared
from include.workloads.plan import EXTRACTION, Plan, Request
from include.workloads.services import Services
from include.workloads.steps import extracting, replaying
from include.workloads.steps.replaying import asking
from include.workloads.steps.shared import RANGES, endpoint_of, upsert_parts, working_plan
from include.workloads.targets import Target, resolve
from include.workloads.targets import extracting as extracting_target

log = logging.getLogger(__name__)

PROBE_TEXT = "The quick brown fox jumps over the lazy dog."
PROOF_HOURS = 24.0
"""A space that a probe proved within this time isn't probed again."""


def prepare(services: Services, ref: RunRef, request: Request) -> list[str]:
    """Freeze the plan, read the sources, write the run's rows; returns the parts of `upsert`.

    A replay reads dead letters and stored chunks in place of the sources, an extraction stored chunks.
    """
    storage = services.storage
    config = load_config(services, ref.corpus)
    with services.ledger() as connection:
        target = resolve(services, connection, config)
        worked = request.replay.workload if request.replay else ref.workload
        if worked == EXTRACTION:
            target = extracting_target(services, target)
        asked = request.replay.change.space(target.space) if request.replay else target.space
        for space in {target.space.id: target.space, asked.id: asked}.values():
            spaces.ensure(connection, space)
        budget = request.budget_usd if request.budget_usd is not None else config.budget.run_usd
        runs.create(
            connection,
            ref,
            plan_uri=f"{ref.uri}/plan.json",
            space=target.space.id,
            priority=request.priority,
            budget_usd=budget,
        )
        counts = asdict(_read(services, connection, ref, request, target))
        Plan(
            run=ref.run,
            workload=ref.workload,
            corpus=ref.corpus,
            request=request,
            config=target.config.to_plan(),
            space=target.space.describe(),
            space_id=target.space.id,
            account=target.endpoint.account,
            version=target.version,
            deployment=services.settings.deployment,
            created_at=str(runs.get(connection, ref.run).started_at),
            disagreements=target.disagreements,
            prepared=counts,
            asked=asked.describe(),
        ).save(storage, ref)
        runs.record(connection, ref.run, "prepare", counts)
    log.info("Prepared: %s", counts)
    return upsert_parts(int(counts["chunks"]))


def _read(
    services: Services, connection: Connection, ref: RunRef, request: Request, target: Target
) -> preparing.PrepareReport | replaying.Prepared | Prepared:
    """Write the run's rows: from the sources, from dead letters, or from what is stored."""
    if request.replay is not None:
        return replaying.write_rows(
            services, connection, ref, target.config, target.space, request.replay, dry_run=request.dry_run
        )
    if ref.workload == EXTRACTION:
        return extracting.write_rows(services, connection, ref, request, target)
    wanted = request.wanted_partitions(dated=target.config.source.dated)
    space = target.space
    limits = limits_for(space.protocol, space.endpoint, space.model, account=target.endpoint.account)
    return preparing.prepare(
        connection,
        services.storage,
        target.config,
        run=ref,
        space_id=space.id,
        partitions=None if wanted is None else list(wanted),
        sample=request.sample,
        limit=request.limit,
        ranges=RANGES,
        limits=limits,
        dry_run=request.dry_run,
        sql=services.sql,
    )


def estimate(services: Services, ref: RunRef) -> None:
    """Say what the run will send and cost, and fail where that passes its budget."""
    plan = Plan.load(services.storage, ref.uri)
    with services.ledger() as connection:
        asked = asking(services, connection, ref, plan)
        space = asked.space
        found = packing.preview(
            connection,
            services.storage,
            space,
            run=asked.scope,
            rows=asked.rows,
            account=endpoint_of(services, plan).account,
            only=asked.only,
            replayed=asked.replayed,
        )
        price = price_for(space.protocol, space.model)
        usage = Usage(input=found.tokens, output=found.missing * extracting.output_tokens(connection, plan))
        dollars = price.cost(usage, batch=True) if price else None
        real_time = price.cost(usage, batch=False) if price else None
        row = runs.get(connection, ref.run)
        counts: dict[str, JSON] = {
            "rows": found.rows,
            "items": found.items,
            "reused": found.reused,
            "in_flight": found.in_flight,
            "blocked": found.blocked,
            "to_send": found.missing,
            "tokens": found.tokens,
            "output_tokens": usage.output,
            "dollars": dollars,
            "dollars_real_time": real_time,
        }
        runs.record(connection, ref.run, "estimate", counts)
        if dollars is not None:
            runs.record_estimate(connection, ref.run, dollars)
    log.info("Estimate: %s", counts)
    if dollars is None:
        log.warning(
            "No price is known for %s model %s: add it to include/config/prices.yaml",
            space.protocol,
            space.model,
        )
        if row.budget_usd is not None and found.missing:
            raise BudgetExceeded(
                f"the run has a budget of ${row.budget_usd:.2f} and the price of {space.model} isn't known: "
                "add it to include/config/prices.yaml, or run without a budget"
            )
    elif row.budget_usd is not None and dollars > row.budget_usd:
        raise BudgetExceeded(
            f"sending {found.missing:,} items of {found.tokens:,} tokens is estimated at ${dollars:.4f}, "
            f"over the run's budget of ${row.budget_usd:.4f}; raise `budget_usd`, or take fewer partitions"
        )


def approval_question(services: Services, ref: RunRef) -> str | None:
    """What a person is asked before money is spent; None where nobody need be.

    Raises NothingToDo in a dry run.
    """
    plan = working_plan(services, ref)
    with services.ledger() as connection:
        counts = runs.get(connection, ref.run).counts.get("estimate", {})
    dollars = counts.get("dollars")
    above = plan.corpus_config().approval_above_usd
    asked = plan.request.approve or (
        above is not None and isinstance(dollars, int | float) and dollars > above
    )
    if not asked or not counts.get("to_send"):
        return None
    cost = f"${dollars:.4f}" if isinstance(dollars, int | float) else "an unknown amount (no price known)"
    return (
        f"{plan.workload} of {plan.corpus} will send {counts['to_send']:,} requests of "
        f"{counts['tokens']:,} tokens to {plan.space['model']}, estimated at {cost}. "
        f"{counts['reused']:,} results are reused."
    )


def probe(services: Services, ref: RunRef) -> None:
    """One real-time call that proves credentials, model and dimensions, before anything is sent.

    Then the index is made, or checked: its dimensions and metric must fit. The call is left out where
    nothing is to be sent or the space was proven lately, unless the model's width isn't known yet.
    """
    plan = working_plan(services, ref)
    space, config = plan.asked_space(), plan.corpus_config()
    with services.ledger() as connection:
        proof = spaces.proof(connection, space.id)
        to_send = runs.get(connection, ref.run).counts.get("estimate", {}).get("to_send")
        unknown = config.embedding.dimensions is None and proof is None and _items(connection, ref) > 0
        lately = proof is not None and _hours_since(connection, proof.proven_at) <= PROOF_HOURS
        if plan.extraction is not None:
            if to_send and not lately:
                extracting.prove(services, connection, plan)
            runs.record(connection, ref.run, "probe", {"called": bool(to_send and not lately)})
            return
        call = unknown or bool(to_send and not lately)
        if call:
            proof = _prove(services, connection, plan)
        dimensions = config.embedding.dimensions or (proof.dimensions if proof else None)
        if dimensions is None:
            log.info("Nothing is to be sent, and no index is made")
            return
        version = versions.create(
            connection,
            version=plan.version,
            corpus=plan.corpus,
            store=config.index.store,
            store_url=config.index.url,
            space=plan.space_id,
            chunking=config.chunking.fingerprint,
            metric=config.metric,
            dimensions=dimensions,
            run=ref.uri,
        )
        if to_send:
            services.store(config.index.store, config.index.url).ensure(version.spec)
        runs.record(connection, ref.run, "probe", {"dimensions": dimensions, "called": call})


def _prove(services: Services, connection: Connection, plan: Plan) -> spaces.Proof | None:
    space, config = plan.asked_space(), plan.corpus_config()
    endpoint = endpoint_of(services, plan)
    outcome = endpoint.provider.probe(space, PROBE_TEXT)
    if outcome.cls is OutcomeClass.RETRYABLE:
        raise ProviderUnavailable(
            f"the probe of {space.model} failed for now: {outcome.code} {outcome.message}"
        )
    if outcome.cls is not OutcomeClass.SUCCEEDED:
        raise ProviderRefused(
            f"the probe of {space.model} at {space.service} failed: {outcome.code} {outcome.message}; "
            "nothing was sent. Mend the connection, the model or its parameters",
            code=outcome.code,
        )
    width = len(outcome.values[0])
    wanted = config.embedding.dimensions
    if wanted is not None and width != wanted:
        raise ConfigError(
            f"{space.model} at {space.service} returns {width} dimensions, and the corpus asks for {wanted}: "
            "mend embedding.dimensions, or take a model that can be shortened; nothing was sent"
        )
    spaces.mark_proven(connection, space.id, dimensions=width, model_named=outcome.model)
    log.info("Proven: %s answers with %d dimensions as %s", space.model, width, outcome.model)
    return spaces.proof(connection, space.id)


def load_config(services: Services, corpus: str) -> CorpusConfig:
    """The corpus's YAML as it is now, its placeholders filled in."""
    directory = services.settings.corpora_dir
    found = load_all(directory).get(corpus)
    if isinstance(found, ConfigError):
        raise found
    if found is None:
        raise ConfigError(f"{directory} has no YAML of the corpus {corpus!r}")
    return found.resolve(services.settings.storage_root)


def _hours_since(connection: Connection, moment: pendulum.DateTime) -> float:
    return (clock.now(connection) - moment).total_seconds() / 3600.0


def _items(connection: Connection, ref: RunRef) -> int:
    return int(runs.get(connection, ref.run).counts.get("estimate", {}).get("items", 0))  # type: ignore[arg-type]
