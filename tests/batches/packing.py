"""What the tests of packing and landing share: a run with rows, and a batch taken through its life."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from include.batches import bury as burying
from include.batches import pack as packing
from include.batches import reconcile as reconciling
from include.batches import retry as retrying
from include.batches import runs, shards, submissions, watch
from include.batches.bury import BuryReport
from include.batches.land import LandReport, land
from include.batches.pack import PackReport
from include.batches.reconcile import Accounts
from include.batches.sending import Submitted
from include.batches.shard_files import requests_path
from include.batches.submit import submit
from include.contracts import RUN_ROW_SCHEMA, Limits, Price, RunRef
from include.ledger import clock
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.requests import results
from include.requests.keys import item_keys
from include.storage import Storage
from tests.batches.submitting import ACCOUNT, LIMITS, SETTINGS, SPACE
from tests.emulators import Emulator

DIMENSIONS = 8
OFFLINE = OpenAIBatches(None, None, account=ACCOUNT)
"""Writes lines; for what needs no wire."""
SMALL = Limits(requests_per_batch=4, bytes_per_batch=200_000_000)


def run_rows(texts: Sequence[str], *, tokens: int | None = None, space_id: str = SPACE.id) -> pa.Table:
    """Rows of a run, one a text; document and chunk are named after the text's place."""
    keys = item_keys(space_id, texts)
    count = len(texts)
    hashes = [b"\0" * 16] * count
    return pa.table(
        [
            [str(uuid.UUID(int=number)) for number in range(count)],
            keys,
            [f"document-{number}" for number in range(count)],
            hashes,
            hashes,
            ["all"] * count,
            list(range(count)),
            list(texts),
            [None] * count,
            [len(text.split()) if tokens is None else tokens for text in texts],
            ["{}"] * count,
        ],
        schema=RUN_ROW_SCHEMA,
    )


class Bench:
    """One run on one ledger, storage and provider; its steps with all arguments filled in."""

    def __init__(
        self,
        ledger: Connection,
        storage: Storage,
        provider: OpenAIBatches,
        texts: Sequence[str],
        *,
        run: str = "run",
        corpus: str = "docs",
    ) -> None:
        self.ledger, self.storage, self.provider = ledger, storage, provider
        self.run = RunRef(run, "initial_ingest", corpus, f"runs/initial_ingest/{corpus}/{run}")
        runs.create(ledger, self.run, space=SPACE.id)
        self.rows: list[str] = []
        self.write_rows(texts)

    def write_rows(self, texts: Sequence[str], **options: Any) -> None:
        """Write the run's rows, in two ranges."""
        table = run_rows(texts, **options)
        middle = len(texts) // 2
        self.rows = []
        for number, part in enumerate((table.slice(0, middle), table.slice(middle))):
            path = f"{self.run.uri}/rows/range-{number:02d}.parquet"
            self.storage.write_parquet(path, part)
            self.rows.append(path)

    def pack(self, limits: Limits = LIMITS, **options: Any) -> PackReport:
        """The step `pack`."""
        return packing.pack(
            self.ledger,
            self.storage,
            self.provider,
            SPACE,
            limits,
            run=self.run,
            rows=self.rows,
            account=self.provider.account,
            deployment="test",
            **options,
        )

    def pack_retry(self, limits: Limits = LIMITS, **options: Any) -> PackReport:
        """The step `pack_retry`."""
        return retrying.pack_retry(
            self.ledger,
            self.storage,
            self.provider,
            SPACE,
            limits,
            run=self.run,
            rows=self.rows,
            account=self.provider.account,
            deployment="test",
            **options,
        )

    def process(self, emulator: Emulator, round: int = 1, **options: Any) -> list[LandReport]:
        """Submit a round's shards, let the emulator's day pass, and land them."""
        for entry in self.listed(round):
            self.submit(entry)
        listed = self.listed(round)
        emulator.advance(25 * 3600)
        for entry in listed:
            self.watch(entry)
        return [self.land(entry, **options) for entry in listed]

    def submit(self, entry: shards.ListedShard) -> None:
        """The step `submit` of one shard."""
        row = submissions.get(self.ledger, entry.shard.id, entry.attempt)
        assert row is not None
        if row.state == submissions.PLANNED:
            submitted = submit(
                self.ledger,
                self.storage,
                self.provider,
                LIMITS,
                entry.shard.id,
                entry.attempt,
                run=self.run.run,
                settings=SETTINGS,
            )
            assert isinstance(submitted, Submitted), submitted

    def watch(self, entry: shards.ListedShard) -> None:
        """The step `wait_for_batch` of one shard, whose batch has ended."""
        row = submissions.get(self.ledger, entry.shard.id, entry.attempt)
        assert row is not None and row.batch_id is not None
        watch.record(self.ledger, row, self.provider.status(row.batch_id), settings=SETTINGS)

    def land(self, entry: shards.ListedShard, **options: Any) -> LandReport:
        """The step `land` of one shard."""
        options.setdefault("dimensions", DIMENSIONS)
        return land(
            self.ledger,
            self.storage,
            self.provider,
            SPACE,
            Price(input=0.02),
            entry.shard.id,
            entry.attempt,
            **options,
        )

    def listed(self, round: int = 1) -> list[shards.ListedShard]:
        """The run's list of one round."""
        return shards.of_run(self.ledger, self.run.run, round)

    def sent_texts(self, round: int = 1) -> list[str]:
        """Every input in the request files of a round's list, in order."""
        return [text for entry in self.listed(round) for text in shard_texts(self.storage, entry.shard.id)]

    def bury(self) -> BuryReport:
        """The step `dead_letters`."""
        return burying.bury(self.ledger, self.storage, SPACE, run=self.run, rows=self.rows)

    def reconcile(self) -> Accounts:
        """The step `reconcile`."""
        return reconciling.reconcile(self.ledger, self.storage, SPACE, run=self.run, rows=self.rows)


def shard_texts(storage: Storage, shard_id: str) -> list[str]:
    """The inputs in a shard's request file, in order."""
    texts: list[str] = []
    for line in storage.read_bytes(requests_path(shard_id)).splitlines():
        given = orjson.loads(line)["body"]["input"]
        texts.extend([given] if isinstance(given, str) else given)
    return texts


def land_results(bench: Bench, texts: Sequence[str], submission: str, age_seconds: float = 0.0) -> None:
    """A results file with an answer to each text, as a landing that long ago left it."""
    landed_at = clock.now(bench.ledger).subtract(seconds=age_seconds)
    path = results.path(SPACE.id, submission)
    with results.writing(bench.storage, path, DIMENSIONS, landed_at) as writer:
        count = len(texts)
        writer.write(
            b"".join(item_keys(SPACE.id, texts)),
            np.ones((count, DIMENSIONS), np.float32),
            [1] * count,
            [0] * count,
            ["m"] * count,
        )
