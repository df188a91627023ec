"""The steps of a metadata extraction that differ: what is asked and taken, corrected and brought home.

An answer that can't be taken is asked once more, told what was wrong with it. That is another question,
with a key of its own, in `rows/corrected.parquet`; its answer then stands under the first one's key, so
that the accounts and the next run find it there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from include.batches import failures, runs, shards, spaces
from include.batches.failures import Failure
from include.batches.pack import round_failures
from include.contracts import RUN_ROW_SCHEMA, Outcome, OutcomeClass, RunRef
from include.corpora import tokens
from include.errors import ProviderRefused, ProviderUnavailable
from include.indexes import extracted, versions
from include.ledger.connect import Connection
from include.requests.key_sets import Resources, opened
from include.requests.keys import item_key
from include.requests.results import keys_array
from include.storage import Storage
from include.workloads.extraction import prompt
from include.workloads.extraction.collect import collect
from include.workloads.extraction.questions import Prepared, Questions, holders_path
from include.workloads.extraction.reading import Selection
from include.workloads.extraction.shape import Shape
from include.workloads.plan import Plan, Request
from include.workloads.services import Services
from include.workloads.steps.replaying import asking
from include.workloads.steps.shared import RANGES, endpoint_of
from include.workloads.steps.stand_ins import STAND_IN_SCHEMA, corrected_keys, corrected_rows
from include.workloads.targets import Target

log = logging.getLogger(__name__)

PROBE_TEXT = "<document>\nThe quick brown fox jumps over the lazy dog.\n</document>"
OFF_SCHEMA = "off_schema"


def write_rows(
    services: Services, connection: Connection, ref: RunRef, request: Request, target: Target
) -> Prepared:
    """Write what the documents that the request selects are asked."""
    wanted = request.wanted_partitions(dated=target.config.source.dated)
    questions = Questions(connection, services.storage, target.config, target.space.id)
    return questions.write(ref, Selection(wanted, request.limit, request.sample), RANGES)


def acceptance(plan: Plan) -> Callable[[Outcome], Outcome] | None:
    """What judges this run's answers by their schema; None for a run that embeds."""
    config = plan.extraction
    if config is None:
        return None
    shape = Shape(config.fields)

    def accept(outcome: Outcome) -> Outcome:
        if outcome.cls is not OutcomeClass.SUCCEEDED:
            return outcome
        fault = shape.fault(str(outcome.values[0]))
        if fault is None:
            return outcome
        return replace(outcome, cls=OutcomeClass.INVALID, code=OFF_SCHEMA, message=fault)

    return accept


def output_tokens(connection: Connection, plan: Plan) -> int:
    """Tokens that an answer of this run is expected to have: what answers in its space had so far, and
    the most they may have where there are none. 0 for a run that embeds."""
    config = plan.extraction
    if config is None:
        return 0
    row = connection.execute(
        "select sum((m.usage ->> 'output')::bigint) as output, sum(m.lines) as lines"
        " from submissions m join shards s on s.shard = m.shard where s.space = %s and m.state = 'landed'",
        (plan.asked_space().id,),
    ).fetchone()
    if row is None or not row["lines"] or not row["output"]:
        return config.max_tokens
    return min(config.max_tokens, -(-int(row["output"]) // int(row["lines"])))


def prove(services: Services, connection: Connection, plan: Plan) -> None:
    """One real-time question in the run's own space: proves key, model and parameters."""
    space, endpoint = plan.asked_space(), endpoint_of(services, plan)
    outcome = endpoint.provider.probe(space, PROBE_TEXT)
    if outcome.cls is OutcomeClass.RETRYABLE:
        raise ProviderUnavailable(
            f"the probe of {space.model} failed for now: {outcome.code} {outcome.message}"
        )
    # What it says of a fox doesn't matter: it was understood, and answered.
    if outcome.cls not in (OutcomeClass.SUCCEEDED, OutcomeClass.INVALID):
        raise ProviderRefused(
            f"the probe of {space.model} at {space.service} failed: {outcome.code} {outcome.message}; "
            "nothing was sent. Mend the connection, the model or its parameters",
            code=outcome.code,
        )
    spaces.mark_proven(connection, space.id, dimensions=None, model_named=outcome.model)
    log.info("Proven: %s answers as %s", space.model, outcome.model)


# --------------------------------------------------------------------------- corrections


@dataclass(frozen=True, slots=True)
class SecondAttempt:
    """What `pack_retry` asks: rows to take items from, and which of them."""

    rows: list[str]
    only: pa.Array[Any]


def second_attempt(services: Services, connection: Connection, ref: RunRef, plan: Plan) -> SecondAttempt:
    """Write the corrections of what was answered badly; unlucky questions are asked as they are."""
    storage = services.storage
    asked = asking(services, connection, ref, plan)
    failed = {
        failure.key: failure
        for path in round_failures(connection, storage, ref, shards.FIRST_ROUND)
        for failure in failures.read(storage, path)
        if failure.asked_again
    }
    bad = {key: one for key, one in failed.items() if one.cls is OutcomeClass.INVALID}
    rows = list(_corrections(storage, asked.rows, bad, asked.space.id))
    storage.write_parquet(corrected_rows(ref), pa.Table.from_pylist([row for _, row in rows], RUN_ROW_SCHEMA))
    pairs = pa.table(
        [
            keys_array(b"".join(key for key, _ in rows)),
            keys_array(b"".join(row["key"] for _, row in rows)),
        ],
        schema=STAND_IN_SCHEMA,
    )
    storage.write_parquet(corrected_keys(ref), pairs)
    corrected = {key for key, _ in rows}
    keys = [key for key in failed if key not in corrected] + [row["key"] for _, row in rows]
    return SecondAttempt([*asked.rows, corrected_rows(ref)], keys_array(b"".join(keys)))


def _corrections(
    storage: Storage, rows: list[str], bad: dict[bytes, Failure], space_id: str
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(the key that was answered badly, the row that asks it anew), each key once."""
    if not bad or not rows:
        return
    with opened(storage, Resources(memory_limit="512MB")) as sets:
        sets.files("rows", rows, ", ".join(RUN_ROW_SCHEMA.names))
        sets.keys("bad", keys_array(b"".join(bad)))
        columns = ", ".join(f"any_value({name})" for name in RUN_ROW_SCHEMA.names if name != "key")
        query = f"select key, {columns} from rows semi join bad using (key) group by key order by key"
        names = ["key", *(name for name in RUN_ROW_SCHEMA.names if name != "key")]
        for values in sets.rows(query):
            row = dict(zip(names, values, strict=True))
            failure = bad[row["key"]]
            reason = f"{failure.code.replace('_', ' ')}: {failure.message}"
            question = prompt.correction(json.loads(row["input"]), failure.answer, reason)
            text = json.dumps(question, ensure_ascii=False)
            count = int(tokens.count([text])[0])
            yield row["key"], {**row, "key": item_key(space_id, question), "input": text, "tokens": count}


# --------------------------------------------------------------------------- home


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of a range's answers: `rows = answered + no_result`; `incomplete` documents wait for some.

    `documents` have new fields, `upserted` chunks of the indexes were given them.
    """

    rows: int = 0
    answered: int = 0
    no_result: int = 0
    incomplete: int = 0
    documents: int = 0
    upserted: int = 0

    def __add__(self, other: Brought) -> Brought:
        return Brought(*(getattr(self, name) + getattr(other, name) for name in Brought.__slots__))


def bring(
    services: Services, connection: Connection, ref: RunRef, plan: Plan, numbers: Iterable[int]
) -> Brought:
    """Merge the answers to some ranges, keep them, and put them into the metadata of every index that a
    run writes to."""
    config = plan.extraction
    assert config is not None
    storage = services.storage
    stores = {
        one.version: services.store(one.store, one.store_url)
        for one in versions.writable(connection, plan.corpus)
    }
    stores = {version: store for version, store in stores.items() if store.exists(version)}
    total = Brought()
    for number in numbers:
        rows = f"{ref.uri}/rows/range-{number:02d}.parquet"
        found = collect(storage, plan.space_id, rows, per_chunk=config.per == "chunk")
        documents, changed = extracted.bring(
            connection,
            storage,
            stores,
            run=ref,
            number=number,
            ranges=RANGES,
            entries=found.entries,
            holders=lambda number=number: _holders(storage, ref, number),  # type: ignore[misc]
        )
        waiting = found.rows - found.answered
        total += Brought(found.rows, found.answered, waiting, found.incomplete, documents, changed)
    log.info("Ranges %s: %s", numbers, total)
    return total


def _holders(storage: Storage, ref: RunRef, number: int) -> Iterator[pa.RecordBatch]:
    with storage.parquet_file(holders_path(ref, number)) as file:
        yield from file.iter_batches(10_000)


def close(connection: Connection, ref: RunRef, plan: Plan) -> str:
    """End the run, and say where its fields are; nothing is published, readers see them at once."""
    parts = [
        found for step, found in runs.get(connection, ref.run).counts.items() if step.startswith("upsert ")
    ]
    documents = sum(int(str(found.get("documents") or 0)) for found in parts)
    names = [one.version for one in versions.writable(connection, plan.corpus)]
    reason = f"{documents:,} documents have new fields in {', '.join(names) or 'no index yet'}"
    runs.record(connection, ref.run, "publish", {"reason": reason})
    runs.finish(connection, ref.run, "succeeded")
    return reason
