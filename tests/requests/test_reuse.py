"""Planning: each distinct key of the rows falls into exactly one of the sets, whatever they hold."""

from __future__ import annotations

import tempfile

import numpy as np
import pendulum
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts import RUN_ROW_SCHEMA, SHARD_KEYS_SCHEMA
from include.requests import results
from include.requests.keys import item_keys
from include.requests.results import keys_array
from include.requests.reuse import Sources, planning
from include.storage import Storage

SPACE = "00" * 16
MOMENT = pendulum.datetime(2026, 11, 30, 12)
TEXTS = [f"text {number}" for number in range(12)]
SOME = st.sets(st.sampled_from(TEXTS))


def write_rows(storage: Storage, path: str, texts: list[str]) -> None:
    """One row a text; every other one names what is sent apart from what is shown."""
    rows = [
        {
            "chunk_id": "",
            "key": key,
            "document_id": f"of {text}",
            "content_hash": key,
            "metadata_hash": key,
            "partition": "all",
            "position": number,
            "text": f"shown: {text}" if number % 2 else text,
            "input": text if number % 2 else None,
            "tokens": 2,
            "metadata": "{}",
        }
        for number, (key, text) in enumerate(zip(item_keys(SPACE, texts), texts, strict=True))
    ]
    storage.write_parquet(path, pa.Table.from_pylist(rows, schema=RUN_ROW_SCHEMA))


def write_keys(storage: Storage, path: str, texts: set[str]) -> None:
    keys = item_keys(SPACE, sorted(texts))
    table = pa.table(
        [[key.hex() for key in keys], keys, list(range(len(keys))), [1] * len(keys)], schema=SHARD_KEYS_SCHEMA
    )
    storage.write_parquet(path, table)


def write_results(storage: Storage, path: str, texts: set[str]) -> None:
    with results.writing(storage, path, 2, MOMENT) as writer:
        count = len(texts)
        keys = b"".join(item_keys(SPACE, sorted(texts)))
        writer.write(keys, np.zeros((count, 2), np.float32), [1] * count, [0] * count, ["m"] * count)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), max_size=30), SOME, SOME, SOME, SOME, st.none() | SOME)
def test_every_key_is_in_one_set(
    rows: list[str],
    own: set[str],
    answered: set[str],
    live: set[str],
    blocked: set[str],
    only: set[str] | None,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(f"file://{folder}")
        write_rows(storage, "rows/0.parquet", rows[::2])
        write_rows(storage, "rows/1.parquet", rows[1::2])
        write_keys(storage, "own.parquet", own)
        write_keys(storage, "live.parquet", live)
        write_results(storage, "results.parquet", answered)
        sources = Sources(
            rows=["rows/0.parquet", "rows/1.parquet"],
            results=["results.parquet"],
            own=["own.parquet"],
            live=["live.parquet"],
            blocked=keys_array(b"".join(item_keys(SPACE, sorted(blocked)))),
            only=None if only is None else keys_array(b"".join(item_keys(SPACE, sorted(only)))),
        )
        with planning(storage, sources) as planned:
            plan = planned.plan
            columns = list(planned.missing_items())
            documents = planned.missing_documents(100)
    wanted = set(rows) if only is None else set(rows) & only
    rest = wanted - own
    missing = rest - answered - live - blocked
    assert plan.items == len(wanted)
    assert plan.rows == sum(text in wanted for text in rows)
    assert plan.own == len(wanted & own)
    assert plan.reused == len(rest & answered)
    assert plan.in_flight == len((rest - answered) & live)
    assert plan.blocked == len((rest - answered - live) & blocked)
    assert (plan.missing, plan.tokens) == (len(missing), 2 * len(missing))
    assert plan.listed == ({"own.parquet": plan.own} if plan.own else {})
    assert plan.joined == ({"live.parquet": plan.in_flight} if plan.in_flight else {})
    streamed = [row for some in columns for row in zip(*some, strict=True)]
    expected = sorted(zip(item_keys(SPACE, sorted(missing)), sorted(missing), strict=True))
    assert streamed == [(key, text, 2) for key, text in expected]
    assert documents == [(key.hex(), f"of {text}") for key, text in expected]


def test_answers_that_landed_too_early_do_not_count(storage: Storage) -> None:
    write_rows(storage, "rows.parquet", TEXTS)
    write_results(storage, "results.parquet", set(TEXTS[:5]))
    for since, reused in ((MOMENT, 5), (MOMENT.add(seconds=1), 0)):
        sources = Sources(rows=["rows.parquet"], results=["results.parquet"], since=since)
        with planning(storage, sources) as planned:
            assert planned.plan.reused == reused


def test_a_quote_in_a_path_is_a_character(storage: Storage) -> None:
    write_rows(storage, "it's/rows.parquet", TEXTS)
    with planning(storage, Sources(rows=["it's/rows.parquet"])) as planned:
        assert planned.plan.missing == len(TEXTS)


def test_without_rows_there_is_nothing_to_ask(storage: Storage) -> None:
    with planning(storage, Sources(rows=[])) as planned:
        assert planned.plan.items == 0
        assert list(planned.missing_items()) == []
