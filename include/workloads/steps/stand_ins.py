"""Questions that stand in for others: a replay's changes, and corrections of what was answered badly.

The answer to what was asked in a question's place is stored under that question's own key as well, so
that the accounts, the index and the next run find it there.
"""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa

from include.contracts import KEY_BYTES, RunRef
from include.requests import aliases
from include.requests.results import key_list, keys_array
from include.storage import Storage
from include.workloads.plan import Plan
from include.workloads.steps.replaying import read_replayed

log = logging.getLogger(__name__)

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary(KEY_BYTES), nullable=False),
    pa.field("asked", pa.binary(KEY_BYTES), nullable=False),
]
STAND_IN_SCHEMA = pa.schema(_FIELDS)


def corrected_rows(ref: RunRef) -> str:
    """What is asked in the second attempt in place of what was answered badly."""
    return f"{ref.uri}/rows/corrected.parquet"


def corrected_keys(ref: RunRef) -> str:
    """Which question each of those stands in for: (key, asked)."""
    return f"{ref.uri}/rows/corrections.parquet"


def stand_in(storage: Storage, plan: Plan, ref: RunRef) -> str | None:
    """Store the answers to what stood in for the run's questions under their own keys too.

    Returns the file of columns (key, asked) that tells which did, None where none did.
    """
    pairs = _pairs(storage, ref, plan)
    if pairs.num_rows == 0 and plan.request.replay is None:
        return None
    path = f"{ref.uri}/rows/stand_ins.parquet"
    storage.write_parquet(path, pairs)
    asked_space = plan.asked_space().id
    originals: dict[bytes, list[bytes]] = {}
    for key, asked in zip(key_list(pairs["key"]), key_list(pairs["asked"]), strict=True):
        if (plan.space_id, key) != (asked_space, asked):
            originals.setdefault(asked, []).append(key)
    if originals:
        found = aliases.stand_in(
            storage, space_id=plan.space_id, asked_space_id=asked_space, asked=originals, run=ref.run
        )
        log.info("%d of %d questions are answered by what was asked in their place", found, len(originals))
    return path


def _pairs(storage: Storage, ref: RunRef, plan: Plan) -> pa.Table:
    """(key, asked): the questions of the run's rows, and what was asked in their place, corrections and
    a replay's changes together."""
    pairs: list[tuple[bytes, bytes]] = []
    replayed: dict[bytes, list[bytes]] | None = None
    if plan.request.replay is not None:
        table = read_replayed(storage, ref)
        pairs = list(zip(key_list(table["key"]), key_list(table["asked"]), strict=True))
        replayed = {}
        for key, asked in pairs:
            replayed.setdefault(asked, []).append(key)
    if storage.exists(corrected_keys(ref)):
        with storage.parquet_file(corrected_keys(ref)) as file:
            table = file.read()
        for first, asked in zip(key_list(table["key"]), key_list(table["asked"]), strict=True):
            keys = [first] if replayed is None else replayed.get(first, [])
            pairs += [(key, asked) for key in keys]
    return pa.table(
        [keys_array(b"".join(key for key, _ in pairs)), keys_array(b"".join(asked for _, asked in pairs))],
        schema=STAND_IN_SCHEMA,
    )
