"""From a range's answers to what is known of each document: windows merged, fields as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import orjson

from include.indexes.extracted import Entry
from include.requests import results
from include.requests.key_sets import Resources, opened
from include.storage import Storage
from include.workloads.extraction.merge import merge


@dataclass(slots=True)
class Collected:
    """The entries of a range. `rows = answered + unanswered`; of `incomplete` documents no window, or
    not each, has an answer, and they have no entry."""

    entries: list[Entry]
    rows: int = 0
    answered: int = 0
    incomplete: int = 0


def collect(storage: Storage, space_id: str, rows: str, *, per_chunk: bool) -> Collected:
    """What the rows of one range file are answered with, from the results of a space."""
    found = Collected([])
    for document_id, answers in groupby(_answers(storage, space_id, rows), lambda row: row.document_id):
        windows = list(answers)
        texts = [row.output for row in windows if row.output is not None]
        found.rows += len(windows)
        found.answered += len(texts)
        found.incomplete += len(texts) < len(windows)
        if per_chunk:
            found.entries += [
                Entry(document_id, row.chunk_id, row.content_hash, _plain(row.output))
                for row in windows
                if row.output is not None
            ]
        elif len(texts) == len(windows):
            whole = merge([orjson.loads(text) for text in texts])
            found.entries.append(
                Entry(document_id, None, windows[0].content_hash, orjson.dumps(whole).decode())
            )
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    document_id: str
    chunk_id: str
    content_hash: bytes
    output: str | None


def _answers(storage: Storage, space_id: str, rows: str) -> Iterator[_Row]:
    """The rows in document order, each with the newest answer to its key."""
    paths: Sequence[str] = results.files(storage, space_id)
    with opened(storage, Resources(memory_limit="512MB")) as sets:
        sets.files("rows", [rows], "key, document_id, chunk_id, content_hash, position")
        if paths:
            sets.files("results", paths, "key, output, landed_at")
            newest = (
                "select key, arg_max(output, landed_at) as output from results semi join rows using (key)"
            )
            sets.table("answers", f"{newest} group by key")
        else:
            sets.table("answers", "select ''::blob as key, ''::varchar as output where false")
        query = (
            "select document_id, chunk_id, content_hash, output from rows left join answers using (key)"
            " order by document_id, position"
        )
        for row in sets.rows(query):
            yield _Row(*row)


def _plain(output: str) -> str:
    """The answer as compact JSON, as a merged one would be."""
    return orjson.dumps(orjson.loads(output)).decode()
