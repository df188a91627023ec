"""The report of a run: what was read, sent, landed and spent, and where everything lies.

Written to the run's folder as `report.md` for people and `report.json` for programs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from include.batches import claims, dead_letters, runs, spaces, submissions
from include.batches.runs import RunRow
from include.batches.submissions import SubmissionRow
from include.contracts import RunRef, Usage
from include.corpora.rows import read_bad_input
from include.errors import BatchInferenceError
from include.ledger.connect import Connection
from include.reference import price_for
from include.storage import Storage
from include.workloads.plan import EXTRACTION, Plan
from include.workloads.replay import REPLAY
from include.workloads.services import Services
from include.workloads.steps.shared import endpoint_of, upsert_parts

log = logging.getLogger(__name__)

_BAD_INPUT_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run. Dollars are list prices; `saved` is against real-time prices."""

    run: str
    corpus: str
    workload: str
    state: str
    partitions: int = 0
    documents_read: int = 0
    documents_new: int = 0
    documents_changed: int = 0
    documents_unchanged: int = 0
    documents_deleted: int = 0
    documents_bad: int = 0
    chunks: int = 0
    items: int = 0
    requests_reused: int = 0
    requests_joined: int = 0
    requests_sent: int = 0
    second_attempts: int = 0
    requests_landed: int = 0
    dead_letters: int = 0
    batches: int = 0
    chunks_indexed: int = 0
    chunks_deleted: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars_estimated: float = 0.0
    dollars_spent: float = 0.0
    dollars_saved: float = 0.0
    published: str = ""
    models_named: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bad_input: tuple[dict[str, Any], ...] = ()
    """The first rows of `bad_input.jsonl`."""
    places: dict[str, str] = field(default_factory=dict)


def places(storage: Storage, ref: RunRef, plan: Plan | None) -> dict[str, str]:
    """Where a person finds what the run made."""
    found = {"run": storage.url(ref.uri), "report": storage.url(f"{ref.uri}/report.md")}
    if plan is not None:
        found["results"] = storage.url(f"spaces/{plan.space_id}/results")
        found["index"] = f"{plan.corpus_config().index.store}: {plan.version}"
        live = f"corpora/{plan.corpus}/live.json"
        if storage.exists(live):
            found["live"] = storage.url(live)
    # Also of a run that stopped over it, and never had a plan.
    bad = f"{ref.uri}/bad_input.jsonl"
    if storage.exists(bad):
        found["bad input"] = storage.url(bad)
    return found


def write(storage: Storage, ref: RunRef, report: Report) -> None:
    """Write `report.json` and `report.md` to the run's folder."""
    storage.write_json(f"{ref.uri}/report.json", asdict(report))
    storage.write_bytes(f"{ref.uri}/report.md", markdown(report).encode())


def rows(report: Report) -> list[tuple[str, str]]:
    """The report's figures with their names, in reading order."""
    return [
        *_of_documents(report),
        ("requests wanted", f"{report.items:,}"),
        ("requests reused", f"{report.requests_reused:,}"),
        ("requests in flight elsewhere", f"{report.requests_joined:,}"),
        ("requests sent", f"{report.requests_sent:,} in {report.batches:,} batches"),
        ("of them second attempts", f"{report.second_attempts:,}"),
        ("requests landed", f"{report.requests_landed:,}"),
        ("dead letters", f"{report.dead_letters:,}"),
        ("chunks indexed", f"{report.chunks_indexed:,}"),
        ("chunks removed", f"{report.chunks_deleted:,}"),
        ("tokens", f"{report.input_tokens:,} in, {report.output_tokens:,} out"),
        ("dollars estimated", f"{report.dollars_estimated:.6f}"),
        ("dollars spent", f"{report.dollars_spent:.6f}"),
        ("dollars saved", f"{report.dollars_saved:.6f} against real-time prices"),
        ("model named by the service", ", ".join(report.models_named) or "none"),
        ("index", report.published or "unchanged"),
    ]


def _of_documents(report: Report) -> list[tuple[str, str]]:
    """What a workload reads, in its own terms: only an ingest compares documents with those it knows."""
    read = ("documents read", f"{report.documents_read:,} in {report.partitions:,} partitions")
    if report.workload == EXTRACTION:
        left_out = ("of them left out", f"{report.documents_bad:,}")
        return [read, left_out, ("windows of their text", f"{report.chunks:,}")]
    if report.workload == REPLAY:
        return [("chunks of the letters' documents", f"{report.chunks:,}")]
    of_them = (
        f"{report.documents_new:,} new, {report.documents_changed:,} changed, "
        f"{report.documents_unchanged:,} unchanged, {report.documents_deleted:,} deleted, "
        f"{report.documents_bad:,} refused"
    )
    return [read, ("of them", of_them), ("chunks", f"{report.chunks:,}")]


def markdown(report: Report) -> str:
    """The report for people."""
    lines = [f"# {report.workload} of {report.corpus}: {report.state}", "", f"Run `{report.run}`.", ""]
    lines += ["| what | how much |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows(report)]
    if report.notes:
        lines += ["", "## Notes", *(f"- {note}" for note in report.notes)]
    if report.bad_input:
        lines += ["", "## Bad input", "", "| file | line | document | what is wrong | what was done |"]
        lines += ["|---|---|---|---|---|", *map(_bad_input_line, report.bad_input)]
    lines += ["", "## Where everything lies", *(f"- {name}: `{at}`" for name, at in report.places.items())]
    return "\n".join(lines) + "\n"


def _bad_input_line(bad: Mapping[str, Any]) -> str:
    told = (bad["file"], bad["line"], bad["document_id"], f"{bad['reason']}: {bad['detail']}", bad["done"])
    cells = (" ".join(str("" if cell is None else cell).split()).replace("|", "\\|") for cell in told)
    return f"| {' | '.join(cells)} |"


def merged(counts: Mapping[str, Any], step: str, name: str, default: Any = 0) -> Any:
    """A figure that a step recorded, or the default where it never ran."""
    return (counts.get(step) or {}).get(name, default)


def _sum(found: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(int(counts.get(name) or 0) for counts in found)


def finish(services: Services, ref: RunRef) -> Report | None:
    """Gather the run's figures from the ledger, write its report, and log it.

    A run whose `prepare` failed before it could say anything has none.
    """
    storage = services.storage
    plan = Plan.load(storage, ref.uri) if storage.exists(f"{ref.uri}/plan.json") else None
    with services.ledger() as connection:
        row = runs.find(connection, ref.run)
        if row is None:
            log.warning("Run %s isn't in the ledger: `prepare` failed before it was recorded", ref.run)
            return None
        if row.state == "running":
            runs.finish(connection, ref.run, "failed")
            row = runs.get(connection, ref.run)
        dead_letters.put_back(connection, ref.run)
        # What it never sent others may send, and must see in their estimate.
        claims.release(connection, None, ref.run, f"run {ref.run} is {row.state}")
        if plan is not None:
            _sweep(services, connection, ref, plan)
        paid = submissions.of_run(connection, ref.run)
        proof = spaces.proof(connection, row.space) if row.space else None
    report = gather(row, paid, plan, proof.model_named if proof else "", places(storage, ref, plan))
    report = replace(report, bad_input=tuple(read_bad_input(storage, ref, _BAD_INPUT_SHOWN)))
    write(storage, ref, report)
    for name, value in rows(report):
        log.info("%s: %s", name, value)
    return report


def _sweep(services: Services, connection: Connection, ref: RunRef, plan: Plan) -> None:
    """Delete uploads that nothing uses any more. They cost nothing, so an error here fails no report."""
    if not claims.abandoned_uploads(connection, ref.run):
        return
    try:
        swept = claims.sweep(connection, endpoint_of(services, plan).provider, ref.run)
        log.info("%d uploads that nothing uses are deleted", swept)
    except BatchInferenceError as error:
        log.warning("Uploads that nothing uses are left for the command `compare`: %s", error)


def gather(
    row: RunRow, paid: list[SubmissionRow], plan: Plan | None, proven: str, where: dict[str, str]
) -> Report:
    """A run's figures: what its steps reported, and what its submissions cost."""
    counts: dict[str, dict[str, Any]] = {step: dict(found) for step, found in row.counts.items()}
    landed = [submission for submission in paid if submission.landed_at is not None]
    usage = sum((_usage(submission) for submission in landed), Usage())
    space = plan.asked_space() if plan else None
    price = price_for(space.protocol, space.model) if space else None
    spent = sum(submission.cost_usd or 0.0 for submission in landed)
    saved = (price.cost(usage, batch=False) - spent) if price else 0.0
    # By the parts of the last `prepare`: an earlier try of the run may have had others.
    chunks = int(merged(counts, "prepare", "chunks"))
    upserts = [counts.get(f"upsert {part}", {}) for part in upsert_parts(chunks)]
    notes = list(plan.disagreements) if plan else []
    models = _models(landed)
    moved = [name for name in models if proven and name != proven]
    if moved:
        notes.append(f"the service answered as {', '.join(moved)}, and as {proven} when it was probed")
    if row.stopped:
        notes.append(f"it stopped sending: {row.stopped}")
    notes += _of_reading(counts, plan)
    notes += _of_letters(counts, plan)
    lacking = int(merged(counts, "verify", "unaccounted"))
    documents_bad = int(merged(counts, "prepare", "bad"))
    if lacking:
        unread = "their documents are bad input, and keep a new index waiting; or " if documents_bad else ""
        notes.append(
            f"the index lacks {lacking:,} chunks that no dead letter explains: {unread}another run is "
            "loading them, or the index was lost; a run of all partitions refills it without a request"
        )
    published = str(merged(counts, "publish", "reason", ""))
    if not landed and price is None and merged(counts, "pack", "sent"):
        notes.append("no price is known for this model; see include/config/prices.yaml")
    return Report(
        run=row.run,
        corpus=row.corpus,
        workload=row.workload,
        state=row.state,
        partitions=len(merged(counts, "prepare", "partitions", {})),
        documents_read=merged(counts, "prepare", "read"),
        documents_new=merged(counts, "prepare", "new"),
        documents_changed=merged(counts, "prepare", "changed"),
        documents_unchanged=merged(counts, "prepare", "unchanged"),
        documents_deleted=merged(counts, "prepare", "deleted"),
        documents_bad=documents_bad,
        chunks=chunks,
        items=merged(counts, "reconcile", "items", merged(counts, "estimate", "items")),
        requests_reused=merged(counts, "reconcile", "reused", merged(counts, "estimate", "reused")),
        requests_joined=merged(counts, "pack", "joined"),
        requests_sent=merged(counts, "pack", "sent") + merged(counts, "pack_retry", "sent"),
        second_attempts=merged(counts, "pack_retry", "sent"),
        requests_landed=_sum((submission.counts for submission in landed), "succeeded"),
        dead_letters=merged(counts, "reconcile", "dead_lettered"),
        batches=sum(1 for submission in paid if submission.batch_id is not None),
        chunks_indexed=_sum(upserts, "upserted"),
        chunks_deleted=_sum(upserts, "deleted"),
        input_tokens=usage.input,
        output_tokens=usage.output,
        dollars_estimated=row.estimated_usd or 0.0,
        dollars_spent=spent,
        dollars_saved=saved,
        published=published,
        models_named=models,
        notes=tuple(notes),
        places=where,
    )


def _of_reading(counts: Mapping[str, Any], plan: Plan | None) -> list[str]:
    """What a person should know of the sources."""
    notes = []
    bad = merged(counts, "prepare", "bad_input", {})
    if bad:
        kinds = ", ".join(f"{number:,} {reason}" for reason, number in bad.items())
        notes.append(f"bad input was left out or mended ({kinds}): bad_input.jsonl names each, file and line")
    if plan is not None and not merged(counts, "prepare", "partitions", {}):
        asked = plan.request.wanted_partitions(dated=plan.corpus_config().source.dated)
        if asked:
            notes.append(f"the source has none of the partitions {', '.join(asked)}; nothing was read")
    return notes


def _of_letters(counts: Mapping[str, Any], plan: Plan | None) -> list[str]:
    """What became of the letters of a replay."""
    if plan is None or plan.request.replay is None:
        return []
    found = counts.get("prepare") or {}
    notes = [
        f"{found.get('letters', 0):,} dead letters match, {found.get('asked', 0):,} of them are asked again, "
        f"{merged(counts, 'dead_letters', 'resolved'):,} are resolved"
    ]
    if found.get("unwanted"):
        notes.append(f"{found['unwanted']:,} are of texts that no document holds any more: they are closed")
    if found.get("unfound"):
        notes.append(
            f"{found['unfound']:,} are of no chunk that is stored in the index's chunking: run the ingest"
        )
    for model, letters in (found.get("elsewhere") or {}).items():
        notes.append(f"{letters:,} more are for {model} in another space, which this index isn't built with")
    return notes


def _models(landed: Iterable[SubmissionRow]) -> tuple[str, ...]:
    """The models that the responses named, sorted."""
    named: set[str] = set()
    for submission in landed:
        models = submission.counts.get("models")
        named.update(str(name) for name in (models if isinstance(models, list) else ()))
    return tuple(sorted(named))


def _usage(submission: SubmissionRow) -> Usage:
    known: dict[str, Any] = dict(submission.usage)
    return Usage(**{name: int(known.get(name) or 0) for name in Usage.__dataclass_fields__})
