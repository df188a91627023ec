"""The steps of a replay that differ: dead letters in place of sources, and answers under their keys.

A replay's rows are all current chunks of the documents whose letters it asks again, so `upsert` treats
it like any run. Beside them lie `rows/asked.parquet`, what is asked (a row a letter, of
`RUN_ROW_SCHEMA`), and `rows/replayed.parquet`, which letter each of those stands in for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.batches import dead_letters
from include.contracts import KEY_BYTES, RUN_ROW_SCHEMA, RunRef, Space
from include.corpora import tokens
from include.corpora.config import CorpusConfig
from include.ledger.connect import Connection
from include.requests.keys import item_key, item_keys
from include.requests.results import key_list
from include.storage import Storage
from include.workloads.current_chunks import CurrentChunks
from include.workloads.extraction.questions import Questions
from include.workloads.plan import EXTRACTION, Plan
from include.workloads.replay import Change, Replay
from include.workloads.services import Services
from include.workloads.steps.shared import RANGES, rows_of

log = logging.getLogger(__name__)

_REPLAYED_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary(KEY_BYTES), nullable=False),
    pa.field("asked", pa.binary(KEY_BYTES), nullable=False),
]
_REPLAYED = pa.schema(_REPLAYED_FIELDS)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a replay found: `letters = asked + unwanted + unfound`.

    `unwanted` letters are of texts that no document holds any more, and are resolved. `unfound` ones
    are of no stored chunk either, but some documents' chunks are of another chunking; they stay as
    they were. `elsewhere` counts letters that the filter didn't look at, by the model of their space.
    `chunks` are all of the `documents` that the asked letters are about, `tokens` are those of what is
    asked.
    """

    letters: int
    asked: int
    unwanted: int
    unfound: int
    documents: int
    chunks: int
    tokens: int
    elsewhere: dict[str, int]


def scope_of(plan: Plan, ref: RunRef) -> RunRef:
    """The run as the dead letters know it: a replay opens and closes those of another workload."""
    replayed = plan.request.replay
    return ref if replayed is None else replace(ref, workload=replayed.workload)


def asked_rows(ref: RunRef) -> str:
    """What a replay asks for, relative to the storage root."""
    return f"{ref.uri}/rows/asked.parquet"


def replayed_keys(ref: RunRef) -> str:
    """The letters' keys and what is asked for each, relative to the storage root."""
    return f"{ref.uri}/rows/replayed.parquet"


def read_replayed(storage: Storage, ref: RunRef) -> pa.Table:
    """The table (key, asked) of a replay, a row a letter that is asked."""
    with storage.parquet_file(replayed_keys(ref)) as file:
        return file.read()


@dataclass(frozen=True, slots=True)
class Asking:
    """What a run asks for: `rows` in `space`, only the items `only` where that is given.

    `scope` is the run as the dead letters know it; those of `replayed` don't block their items.
    """

    space: Space
    rows: list[str]
    scope: RunRef
    only: pa.Array[Any] | None = None
    replayed: pa.Array[Any] | None = None


def asking(services: Services, connection: Connection, ref: RunRef, plan: Plan) -> Asking:
    """What this run asks for: of a replay, the letters that it holds (in a dry run, would hold)."""
    if plan.request.replay is None:
        return Asking(plan.space_of(), rows_of(services, ref), ref)
    scope, table = scope_of(plan, ref), read_replayed(services.storage, ref)
    if not plan.request.dry_run:
        held = dead_letters.held_keys(connection, scope, plan.space_id)
        table = table.filter(pc.is_in(table["key"], held))
    asked, keys = table["asked"].combine_chunks(), table["key"].combine_chunks()
    return Asking(plan.asked_space(), [asked_rows(ref)], scope, asked, keys)


def write_rows(
    services: Services,
    connection: Connection,
    ref: RunRef,
    config: CorpusConfig,
    space: Space,
    replayed: Replay,
    *,
    dry_run: bool,
) -> Prepared:
    """Take the letters that want answers in `space`, and write the run's rows. A dry run takes none."""
    storage, scope = services.storage, replace(ref, workload=replayed.workload)
    choose = dead_letters.choose if dry_run else dead_letters.take
    keys = choose(connection, scope, space.id, replayed.which)
    structured = replayed.workload == EXTRACTION
    chunks: CurrentChunks | Questions = (Questions if structured else CurrentChunks)(
        connection, storage, config, space.id
    )
    found: dict[bytes, dict[str, Any]] = {}
    documents: set[str] = set()
    for table in chunks.with_keys(pa.array(keys, pa.binary(KEY_BYTES))):
        documents.update(map(str, table["document_id"].to_pylist()))
        for row in table.to_pylist():
            found.setdefault(row["key"], row)
    written = chunks.write_documents(ref, documents, RANGES)
    count = _write_asked(
        storage, ref, replayed.change.space(space), replayed.change, found, structured=structured
    )
    lost = [key for key in keys if key not in found]
    moot = chunks.all_are_stored()
    if lost and not dry_run:
        settle = dead_letters.resolve_unwanted if moot else dead_letters.let_go
        settle(connection, scope, space.id, lost)
    return Prepared(
        letters=len(keys),
        asked=len(found),
        unwanted=len(lost) if moot else 0,
        unfound=0 if moot else len(lost),
        documents=len(documents),
        chunks=written,
        tokens=count,
        elsewhere=dead_letters.in_other_spaces(connection, scope, space.id, replayed.which),
    )


def _write_asked(
    storage: Storage,
    ref: RunRef,
    space: Space,
    change: Change,
    found: Mapping[bytes, dict[str, Any]],
    *,
    structured: bool,
) -> int:
    """Write what is asked in `space` for each letter; returns how many tokens that is."""
    given = [str(row["text"] if row["input"] is None else row["input"]) for row in found.values()]
    if structured:
        change.refuse_shortening()
        inputs = given
        keys = [item_key(space.id, json.loads(text)) for text in given]
    else:
        inputs = [change.text(text) for text in given]
        keys = item_keys(space.id, inputs)
    counts = tokens.count(inputs)
    rows = [
        {**row, "key": key, "input": text, "tokens": count}
        for row, key, text, count in zip(found.values(), keys, inputs, counts.tolist(), strict=True)
    ]
    storage.write_parquet(asked_rows(ref), pa.Table.from_pylist(rows, RUN_ROW_SCHEMA))
    storage.write_parquet(replayed_keys(ref), pa.table([list(found), keys], schema=_REPLAYED))
    return int(counts.sum())


def let_go_of_blocked(connection: Connection, storage: Storage, plan: Plan, ref: RunRef) -> None:
    """Give back the letters whose changed question has a dead letter of its own: it is never asked."""
    scope, table = scope_of(plan, ref), read_replayed(storage, ref)
    blocked = dead_letters.blocked_keys(connection, scope, plan.asked_space().id)
    stuck = table.filter(pc.is_in(table["asked"], blocked))
    if plan.asked_space().id == plan.space_id:
        stuck = stuck.filter(pc.invert(pc.is_in(stuck["asked"], table["key"].combine_chunks())))
    keys = key_list(stuck["key"])
    if keys:
        dead_letters.let_go(connection, scope, plan.space_id, keys)
        log.warning("%d letters were not asked: what they would ask instead is a dead letter too", len(keys))
