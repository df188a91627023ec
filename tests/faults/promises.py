"""What is promised, and how it is judged.

**Nothing is paid for twice.** Judge: the emulator's own books. It charges a request when it has done
it, and its output files say which of them it answered well. No item gets a second good answer, and
none is charged at all without an answer, but for those that the test's faults spoilt.

**Nothing is lost.** Each item of each run has a result, or else a dead letter that stands. Readers find
every document's newest text with the vector of that very text, no deleted document, nothing twice.
What the ledger says was used is what the provider charged.

**Nothing is left behind** once all runs are over: no batch that runs, no submission that isn't landed
or void, no reservation, no lock; and no upload but what `compare --clean` finds and takes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from include.batches.compare import clean, compare
from include.emulator.embeddings import HashEmbedder
from include.ledger.connect import connect
from include.requests import results
from include.requests.keys import item_key
from include.stores.lancedb import LanceStore
from tests.faults.world import CORPUS, DIMENSIONS, Books, World

Row = tuple[str, str, str, bytes]
"""An index row: its document, text, metadata and vector."""


@dataclass(frozen=True)
class End:
    """How it all ended, in what doesn't depend on how it came to that."""

    charges: dict[str, int]
    index: dict[str, Row]
    letters: frozenset[tuple[str, str, str, str]]
    runs: dict[str, tuple[str, Any]]
    published: str


def end_of(world: World) -> End:
    """The end of a world whose runs are over."""
    letters = world.rows("select key, class, code, state from dead_letters")
    runs = world.rows("select run, state, counts -> 'reconcile' as accounts from runs")
    return End(
        charges=world.books()["charges"],
        index=_index(world),
        letters=frozenset((row["key"], row["class"], row["code"], row["state"]) for row in letters),
        runs={row["run"]: (row["state"], row["accounts"]) for row in runs},
        published=str(_pointer(world).get("index", "")),
    )


def broken(world: World, documents: Mapping[str, list[str]], *, spoilt: int = 0) -> list[str]:
    """Which promises don't hold, in sentences; [] where all do.

    `documents` are all that ever were, each with its texts from the oldest to the newest; [] or an
    empty last text is a deleted one. `spoilt` is how many useless answers of an item may be charged.
    """
    # What is left now is left: no fault is in the way of the cleaning.
    world.emulator.faults()
    with connect(world.ledger_url) as ledger:
        clean(ledger, world.provider, compare(ledger, world.provider, "default"))
    books = world.books()
    spaces = world.rows("select space, description ->> 'endpoint' as endpoint from spaces")
    answered = sum((_results(world, row["space"]) for row in spaces), Counter[str]())
    (embedded,) = [row["space"] for row in spaces if row["endpoint"] == "/v1/embeddings"]
    standing = {
        row["key"]
        for row in world.rows(
            "select key from dead_letters where state in ('open', 'replaying', 'discarded')"
        )
    }
    return [
        *_paid_twice(world, books, spoilt),
        *_lost(world, answered, standing),
        *_misread(world, documents, embedded, answered),
        *_books_differ(world, books),
        *_left_behind(world, books),
    ]


def _paid_twice(world: World, books: Books, spoilt: int) -> Iterator[str]:
    good = Counter(key for batch in books["batches"] for key in _answered_well(world, batch))
    charges: dict[str, int] = books["charges"]
    for key, times in good.items():
        if times > 1:
            yield f"item {key} was answered well {times} times, and paid for each time"
    for key, times in charges.items():
        if times - good[key] > spoilt:
            yield f"item {key} was charged {times} times for {good[key]} good answers"


@dataclass(frozen=True)
class Answer:
    """A line of a batch's results: whether it answers its one item well, and the tokens it tells of."""

    custom_id: str
    good: bool
    tokens: int


def _answers(world: World, batch: Mapping[str, Any]) -> Iterator[Answer]:
    """What a batch's results say of lines that are ours, as they lie on the emulator's disk."""
    openai = batch["provider"] == "openai"
    name = batch["output_file_id"] if openai else f"{batch['id']}.results"
    path = world.emulator.data / "files" / str(name)
    for line in map(json.loads, path.read_bytes().splitlines() if path.is_file() else ()):
        if not line["custom_id"].startswith("foreign"):
            yield (_of_openai if openai else _of_anthropic)(line)


def _of_openai(line: dict[str, Any]) -> Answer:
    body = line["response"]["body"]
    good = line["response"]["status_code"] == 200 and len(body["data"]) == 1
    return Answer(line["custom_id"], good, body["usage"]["prompt_tokens"])


def _of_anthropic(line: dict[str, Any]) -> Answer:
    if line["result"]["type"] != "succeeded":
        return Answer(line["custom_id"], False, 0)
    message = line["result"]["message"]
    told = message["usage"]
    tokens = told["input_tokens"] + told["cache_creation_input_tokens"] + told["cache_read_input_tokens"]
    return Answer(line["custom_id"], message["stop_reason"] == "end_turn", tokens)


def _answered_well(world: World, batch: Mapping[str, Any]) -> set[str]:
    """The items that a batch answers well, however often."""
    return {answer.custom_id for answer in _answers(world, batch) if answer.good}


def _tokens_told(world: World, batch: Mapping[str, Any]) -> int:
    """The prompt tokens that a batch's results tell of, of each line once. Where no line does, those that
    the batch tells of."""
    told = {answer.custom_id: answer.tokens for answer in _answers(world, batch)}
    return sum(told.values()) or (batch.get("usage") or {}).get("input_tokens", 0)


def _lost(world: World, answered: Counter[str], standing: set[str]) -> Iterator[str]:
    for key, files in answered.items():
        if files > 1:
            yield f"item {key} has {files} results"
        if key in standing:
            yield f"item {key} has a result and a dead letter that stands"
    for run in world.rows("select run, state, plan_uri from runs where state <> 'cancelled'"):
        if run["state"] != "succeeded":
            yield f"{run['run']} is {run['state']}"
        for path in world.storage.list(f"{run['plan_uri'].removesuffix('plan.json')}rows", ".parquet"):
            if "range-" in path:
                with world.storage.parquet_file(path) as file:
                    keys = {key.hex() for key in file.read(columns=["key"])["key"].to_pylist()}
                for key in keys - answered.keys() - standing:
                    yield f"item {key} of {run['run']} is lost"


def _misread(
    world: World, documents: Mapping[str, list[str]], space: str, answered: Counter[str]
) -> Iterator[str]:
    held: dict[str, list[tuple[str, bytes]]] = {}
    for document, text, _, vector in _index(world).values():
        held.setdefault(document, []).append((text, vector))
    for document in held.keys() - documents.keys():
        yield f"the index holds document {document}, which never was"
    for document, texts in documents.items():
        newest = texts[-1] if texts else ""
        found = held.get(document, [])
        wanted = [newest] if newest else []
        if newest and item_key(space, newest).hex() not in answered:
            # Its newest text has no answer: readers keep the last one that had, or have none.
            wanted = [text for text, _ in found if text in texts[:-1]][:1]
        if sorted(text for text, _ in found) != wanted:
            yield f"of document {document} readers find {[text for text, _ in found]}, not {wanted}"
        for text, vector in found:
            if vector != vector_of(text):
                yield f"the text {text!r} of document {document} has the vector of another"


def vector_of(text: str) -> bytes:
    """The vector that the emulator gives for a text, as float32 bytes."""
    return HashEmbedder().embed([text], DIMENSIONS)[0].astype(np.float32).tobytes()


def _books_differ(world: World, books: Books) -> Iterator[str]:
    ours = {
        row["batch_id"]: row
        for row in world.rows("select batch_id, state, usage from submissions where batch_id is not null")
    }
    for batch in books["batches"]:
        row = ours.get(batch["id"])
        if row is None:
            yield f"batch {batch['id']} at the provider is unknown to the ledger"
        elif row["state"] == "landed" and row["usage"]["input"] != (told := _tokens_told(world, batch)):
            yield f"batch {batch['id']}: the ledger says {row['usage']}, its output file {told} tokens"


def _left_behind(world: World, books: Books) -> Iterator[str]:
    for batch in books["batches"]:
        status = batch.get("status") or batch["processing_status"]
        if status in ("validating", "in_progress", "finalizing", "cancelling", "canceling"):
            yield f"batch {batch['id']} still is {status}"
    for file in books["files"]:
        if file["purpose"] == "batch":
            yield f"upload {file['id']} ({file['filename']}) is left at the provider"
    # What a cancelled run had at the provider ends there, and is landed by whoever wants it.
    for row in world.rows(
        "select s.id, s.state, s.reason from submissions s join runs using (run)"
        " where s.state not in ('landed', 'void') and (runs.state <> 'cancelled' or s.state = 'planned')"
    ):
        yield f"submission {row['id']} is {row['state']}: {row['reason']}"
    for row in world.rows(
        "select id from submissions where state in ('landed', 'void')"
        " and reserved_tokens + reserved_requests + reserved_usd <> 0"
    ):
        yield f"submission {row['id']} still reserves room"
    locks = world.rows(
        "select count(*) as held from pg_locks where locktype = 'advisory'"
        " and database = (select oid from pg_database where datname = current_database())"
    )
    if locks[0]["held"]:
        yield f"{locks[0]['held']} advisory locks are held"


# --------------------------------------------------------------------------- reading


def _pointer(world: World) -> dict[str, Any]:
    path = f"corpora/{CORPUS}/live.json"
    return dict(world.storage.read_json(path)) if world.storage.exists(path) else {}


def _index(world: World) -> dict[str, Row]:
    """The rows of the index that readers read, by chunk id."""
    index = _pointer(world).get("index")
    if not index:
        return {}
    store = LanceStore(f"file://{world.folder}/index")
    ids = [str(one) for table in store.ids(index) for one in table["chunk_id"].to_pylist()]
    assert len(ids) == len(set(ids)), "the index holds a chunk twice"
    rows: pa.Table = store.fetch(index, ids)
    return {
        row["chunk_id"]: (
            row["document_id"],
            row["text"],
            row["metadata"],
            np.array(row["vector"], np.float32).tobytes(),
        )
        for row in rows.to_pylist()
    }


def _results(world: World, space: str) -> Counter[str]:
    """In how many places of the results each key is."""
    found: Counter[str] = Counter()
    for path in results.files(world.storage, space):
        with world.storage.parquet_file(path) as file:
            found.update(key.hex() for key in file.read(columns=["key"])["key"].to_pylist())
    return found
