"""The command line: `python -m include.cli --help`. Looks at the ledger, asks an index, cancels.

It reads the settings `AIRFLOW__BATCH_INFERENCE__*` and the connections `AIRFLOW_CONN_*` of its
environment.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, astuple
from datetime import datetime
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from include.contracts import JSON
from include.errors import BatchInferenceError, ConfigError
from include.settings import load_settings

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
# Wider than any terminal: an id that is wrapped can't be copied.
console = Console(highlight=False, width=2000)
STEPS = (
    "prepare",
    "estimate",
    "probe",
    "pack",
    "pack_retry",
    "dead_letters",
    "upsert",
    "reconcile",
    "verify",
    "publish",
)


def errors_in_words(function: Callable[P, R]) -> Callable[P, R]:
    """An error of ours is one line and exit code 1, not a traceback."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BatchInferenceError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise typer.Exit(1) from None

    return wrapped


def _safe(run: str) -> str:
    """A run's name as the ledger has it, also where it's given with Airflow's own run id."""
    dag, slash, name = run.partition("/")
    return dag + slash + re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


RunName = Annotated[str, typer.Argument(help="A run, as `runs` names it.", parser=_safe)]


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table, a row a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(escape(_text(value)) for value in row))
    print(title)
    console.print(table, soft_wrap=True)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items() if one not in (None, {}, []))
    return str(value)


@app.callback()
def main(verbose: Annotated[bool, typer.Option(help="Show the log.")] = False) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


@app.command()
@errors_in_words
def migrate() -> None:
    """Bring the ledger's schema to this version."""
    from include.ledger.connect import migrate as run

    applied = run(load_settings().ledger_url)
    print("\n".join(f"applied {name}" for name in applied) or "the ledger is up to date")


@app.command("sample-documents")
@errors_in_words
def sample_documents() -> None:
    """Write the bundled corpus's documents (Python's help topics) to the storage root."""
    from include.corpora.python_docs import write_documents
    from include.storage import Storage

    storage = Storage(load_settings().storage_root)
    for file in write_documents(storage):
        print(storage.url(file))


@app.command()
@errors_in_words
def ask(
    question: Annotated[str, typer.Argument(help="A question in plain words.")],
    corpus: Annotated[str, typer.Option(help="The corpus to ask.")] = "python_docs",
    k: Annotated[int, typer.Option(help="How many hits.", min=1)] = 3,
    where: Annotated[
        list[str] | None, typer.Option(help="NAME=TEXT: only chunks whose metadata says so; may be repeated.")
    ] = None,
    metadata: Annotated[bool, typer.Option(help="Show each hit's metadata.")] = False,
) -> None:
    """Search the live index of a corpus, as an application would."""
    from include.workloads.asking import ask as run
    from include.workloads.clients import services

    wanted: dict[str, JSON] = {}
    for pair in where or ():
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise ConfigError(f"--where is {pair!r}; say NAME=TEXT, such as keywords=loop")
        wanted[name] = text
    for rank, hit in enumerate(run(services(), corpus, question, k, wanted), 1):
        title = hit.metadata.get("title") or hit.document_id
        print(f"{rank}. {title} [{hit.document_id}] score {hit.score:.3f}")
        text = " ".join(hit.text.split())
        print(f"   {text[:200]}{'…' if len(text) > 200 else ''}")
        if hit.metadata.get("url"):
            print(f"   {hit.metadata['url']}")
        if metadata:
            print(f"   {json.dumps(dict(hit.metadata), ensure_ascii=False)}")


@app.command()
@errors_in_words
def runs(
    corpus: Annotated[str | None, typer.Option(help="Only this corpus.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 20,
) -> None:
    """List the runs, newest first, and what each waits for or was stopped by."""
    from include.batches import runs as ledger_runs
    from include.batches.story import waits
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        found = ledger_runs.recent(connection, corpus=corpus, limit=limit)
        waiting = waits(connection, [r.run for r in found])
    show(
        "Runs",
        ("run", "state", "estimated $", "started", "finished", "why"),
        (
            (r.run, r.state, r.estimated_usd, r.started_at, r.finished_at, r.stopped or waiting.get(r.run))
            for r in found
        ),
    )


@app.command("run")
@errors_in_words
def show_run(run: RunName) -> None:
    """Show one run: what each step reported, and its shards."""
    from include.batches import runs as ledger_runs
    from include.batches import submissions
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        found = ledger_runs.get(connection, run)
        listed = submissions.listed_by(connection, run)
    steps = sorted(found.counts.items(), key=lambda step: (STEPS.index(step[0].split()[0]), step[0]))
    print(
        f"{found.run} is {found.state}" + (f", and sends nothing more: {found.stopped}" * bool(found.stopped))
    )
    show("Steps", ("step", "counts"), steps)
    show(
        "Submissions of its shards",
        ("submission", "shard", "attempt", "state", "status", "batch", "paid by", "since", "why"),
        (
            (
                *(s.id, s.shard[:12], s.attempt, s.state, s.provider_status, s.batch_id),
                *(s.run, s.queued_at or s.created_at or s.planned_at, s.reason),
            )
            for s in listed
        ),
    )


@app.command("submissions")
@errors_in_words
def show_submissions(
    run: Annotated[str, typer.Argument(help="The run that pays for them.")],
) -> None:
    """List the submissions that a run pays for, with their cost."""
    from include.batches import submissions
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        found = submissions.of_run(connection, run)
    show(
        "Submissions",
        ("submission", "shard", "attempt", "state", "lines", "batch", "created", "ended", "cost $", "why"),
        (
            (
                s.id,
                s.shard[:12],
                s.attempt,
                s.state,
                s.lines,
                s.batch_id,
                s.created_at,
                s.ended_at,
                s.cost_usd,
                s.reason,
            )
            for s in found
        ),
    )


@app.command()
@errors_in_words
def story(
    name: Annotated[str, typer.Argument(help="A submission, its batch at the provider, or its shard.")],
) -> None:
    """Tell a submission's whole story: who asked, what was sent, what came of it, what it cost."""
    from include.batches.story import story as tell
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        console.print("\n".join(tell(connection, name).lines()), markup=False)


@app.command()
@errors_in_words
def cancel(run: RunName) -> None:
    """Cancel a run: it sends nothing more, and what no other run waits for stops at the provider."""
    from include.batches import runs as ledger_runs
    from include.batches.cancel import cancel_run
    from include.workloads.clients import services
    from include.workloads.plan import Plan

    outside = services()
    with outside.ledger() as connection:
        found = ledger_runs.get(connection, run)
        uri = (found.plan_uri or "").removesuffix("/plan.json")
        provider = outside.endpoint(*Plan.load(outside.storage, uri).asks()).provider
        done = cancel_run(connection, outside.storage, provider, run)
    if found.state != "running":
        print(f"{run} is {found.state}: it sends nothing more")
    show("Cancelled", ("what", "submissions"), ((name, ids) for name, ids in asdict(done).items() if ids))


@app.command()
@errors_in_words
def compare(
    connection: Annotated[str, typer.Option(help="The connection whose account is looked at.")] = (
        "openai_default"
    ),
    provider: Annotated[str, typer.Option(help="The connection's protocol.")] = "openai",
    clean: Annotated[bool, typer.Option(help="Delete uploads of ours that no batch uses.")] = False,
) -> None:
    """Compare the ledger with the batches and files that the provider holds."""
    from include.batches.compare import clean as delete
    from include.batches.compare import compare as look
    from include.workloads.clients import services

    outside = services()
    holder = outside.endpoint(provider, connection).provider
    with outside.ledger() as ledger:
        found = look(ledger, holder, outside.settings.deployment)
        print(f"{found.batches:,} batches and {found.files:,} files of ours are at account {holder.account}")
        for title, differences in (
            ("Batches that the ledger doesn't know", found.unknown),
            ("Batches that the provider doesn't list", found.lost),
            ("Batches in another state", found.differing),
            ("Files that no batch uses", found.orphans),
        ):
            if differences:
                columns = ("name", "submission", "ledger", "provider", "what to do")
                show(title, columns, (astuple(difference) for difference in differences))
        if clean:
            print(f"{len(delete(ledger, holder, found)):,} files deleted")


@app.command()
@errors_in_words
def resume(run: RunName) -> None:
    """Let a run send again that stopped by itself: its failed tasks can be cleared while it still works."""
    from include.batches import runs as ledger_runs
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        ledger_runs.resume(connection, run)
    print(f"{run} may send again: clear its failed tasks with all downstream")


@app.command("dead-letters")
@errors_in_words
def dead_letters(
    corpus: Annotated[str | None, typer.Option(help="Only this corpus.")] = None,
    state: Annotated[str, typer.Option(help="open, replaying, resolved or discarded.")] = "open",
    workload: Annotated[str | None, typer.Option(help="Only this workload's.")] = None,
    run: Annotated[str | None, typer.Option(help="Only those of this run.", parser=_safe)] = None,
    limit: Annotated[int, typer.Option(min=1)] = 50,
) -> None:
    """List the requests that failed for good, newest first."""
    from include.batches import dead_letters as letters
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        found = letters.find(
            connection,
            workload=workload,
            corpus=corpus,
            state=letters.known_state(state),
            run=run,
            limit=limit,
        )
    show(
        "Dead letters",
        ("id", "workload", "corpus", "document", "class", "code", "message", "attempts", "opened", "run"),
        (
            (
                *(d.id, d.workload, d.corpus, d.document_id, d.cls, d.code, d.message[:200], d.attempts),
                *(d.opened_at, d.run),
            )
            for d in found
        ),
    )


@app.command()
@errors_in_words
def discard(
    ids: Annotated[list[int], typer.Argument(help="Dead letters, by id.")],
    reason: Annotated[str, typer.Option(help="Why, for whoever meets the gap later.")],
) -> None:
    """Give up on dead letters: their items stay blocked and aren't asked again."""
    from include.batches import dead_letters as letters
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        done = letters.discard(connection, ids, reason)
    print(
        f"{done} of {len(ids)} discarded" + ("" if done == len(ids) else "; the others aren't open letters")
    )


@app.command()
@errors_in_words
def indexes(corpus: Annotated[str, typer.Argument(help="A corpus.")]) -> None:
    """List the index versions of a corpus: which is live, which stands by, what each covers."""
    from include.indexes import versions
    from include.ledger.connect import connect

    with connect(load_settings().ledger_url) as connection:
        found = [
            (
                v.version,
                v.state,
                v.store,
                v.dimensions,
                v.metric,
                len(versions.covered(connection, v.version)),
            )
            for v in versions.of_corpus(connection, corpus)
        ]
    show("Indexes", ("version", "state", "store", "dimensions", "metric", "partitions"), found)


@app.command()
@errors_in_words
def rollback(corpus: Annotated[str, typer.Argument(help="A corpus.")]) -> None:
    """Send readers back to the index on standby."""
    from include.indexes.publish import rollback as back
    from include.workloads.clients import services

    outside = services()
    with outside.ledger() as connection:
        print(f"{corpus} reads {back(connection, outside.storage, corpus).index} now")


if __name__ == "__main__":
    app()
