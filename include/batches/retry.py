"""The second attempt: everything of a run that may yet succeed, packed into as few shards as possible.

What is asked again: retryable and invalid outcomes, and the items of packed lines that failed, each
alone now. Asking an invalid answer once more is the one deliberate second charge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from include.batches import failures, shards
from include.batches.pack import PackReport, pack, round_failures
from include.contracts import BatchProvider, Limits, RunRef, Space
from include.ledger.connect import Connection
from include.requests.key_sets import Resources
from include.requests.results import keys_array
from include.requests.reuse import Reuse
from include.storage import Storage


def pack_retry(
    connection: Connection,
    storage: Storage,
    provider: BatchProvider,
    space: Space,
    limits: Limits,
    *,
    run: RunRef,
    rows: Sequence[str],
    account: str,
    deployment: str,
    reuse: Reuse | None = None,
    structured: bool = False,
    replayed: pa.Array[Any] | None = None,
    only: pa.Array[Any] | None = None,
    resources: Resources | None = None,
) -> PackReport:
    """Pack what failed in the first round as the run's second round; see `pack` for the rest.

    Shards of the first round that haven't landed are left out: their items are not failures yet. `only`
    are the keys to ask, where they aren't those that failed.
    """
    return pack(
        connection,
        storage,
        provider,
        space,
        limits,
        run=run,
        rows=rows,
        account=account,
        deployment=deployment,
        round=shards.SECOND_ROUND,
        inputs_per_line=1,
        reuse=reuse,
        structured=structured,
        only=asked_again(connection, storage, run) if only is None else only,
        replayed=replayed,
        resources=resources,
    )


def asked_again(connection: Connection, storage: Storage, run: RunRef) -> pa.Array[Any]:
    """The keys that the second attempt asks for, as 16-byte binaries."""

    def keys() -> Iterator[bytes]:
        for path in round_failures(connection, storage, run, shards.FIRST_ROUND):
            for failure in failures.read(storage, path):
                if failure.asked_again:
                    yield failure.key

    return keys_array(b"".join(keys()))
