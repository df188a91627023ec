"""What the tests of submitting share: a shard in storage and ledger, a provider on the emulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from openai import AsyncOpenAI, OpenAI

from include.batches import submissions
from include.batches.sending import Submitted, Waiting
from include.batches.shard_files import keys_path, requests_path
from include.batches.submissions import SubmissionRow
from include.batches.submit import submit
from include.contracts import SHARD_KEYS_SCHEMA, BatchProvider, Item, Limits, Price, Shard, Space
from include.ledger import clock
from include.ledger.connect import Connection
from include.providers.openai import OpenAIBatches
from include.providers.prompts import question
from include.requests.keys import item_key
from include.settings import Settings
from include.storage import Storage
from tests.emulators import Tenant

SPACE = Space("openai", "emulator", "/v1/embeddings", "text-embedding-3-small", {"dimensions": 8})
ACCOUNT = "acme"
LIMITS = Limits(requests_per_batch=50_000, bytes_per_batch=200_000_000)
PRICE = Price(input=0.02)
SETTINGS = Settings(
    storage_root="", ledger_url="", poll_seconds=1, admission_seconds=1, unknown_grace_seconds=100
)


def openai_provider(
    base_url: str, project: str | None = None, *, account: str = ACCOUNT, key: str = "sk-test"
) -> OpenAIBatches:
    """The provider on this server, from one of its projects; the SDK retries, as in Airflow's hook."""
    return OpenAIBatches(
        OpenAI(base_url=base_url, api_key=key, project=project, timeout=30, max_retries=1),
        AsyncOpenAI(base_url=base_url, api_key=key, project=project, timeout=30, max_retries=1),
        account=account,
    )


def add_run(ledger: Connection, run: str = "run", *, budget: float | None = None, priority: int = 0) -> str:
    """A running run."""
    ledger.execute(
        "insert into runs (run, workload, corpus, state, priority, budget_usd, started_at)"
        " values (%s, 'initial_ingest', 'docs', 'running', %s, %s, batch_inference.now())",
        (run, priority, budget),
    )
    return run


def add_shard(
    ledger: Connection,
    storage: Storage,
    texts: Sequence[str],
    *,
    run: str = "run",
    account: str = ACCOUNT,
    space: Space = SPACE,
    tokens: int | None = None,
    writer: BatchProvider | None = None,
) -> Shard:
    """A shard with one line a text, packed and planned as `pack` leaves it."""
    ledger.execute(
        "insert into spaces (space, description) values (%s, '{}') on conflict do nothing", (space.id,)
    )
    provider = writer or OpenAIBatches(None, None, account=account)
    embeds = space.endpoint == SPACE.endpoint
    items = [
        Item(item_key(space.id, text), text if embeds else question(text), len(text.split()))
        for text in texts
    ]
    body = b"".join(provider.line(space, [item], item.key.hex()) for item in items)
    shard = Shard(
        id=item_key(space.id, "\n".join(texts)).hex(),
        space=space.id,
        items=len(items),
        lines=len(items),
        bytes=len(body),
        tokens=tokens if tokens is not None else sum(item.tokens for item in items),
    )
    storage.write_bytes(requests_path(shard.id), body)
    columns = [[item.key.hex() for item in items], [item.key for item in items], list(range(len(items)))]
    keys = pa.table([*columns, [item.tokens for item in items]], schema=SHARD_KEYS_SCHEMA)
    storage.write_parquet(keys_path(shard.id), keys)
    ledger.execute(
        "insert into shards values (%s, %s, %s, %s, %s, %s, batch_inference.now())",
        dataclasses.astuple(shard),
    )
    list_shard(ledger, shard, run)
    submissions.plan(
        ledger,
        shard=shard,
        attempt=1,
        run=run,
        provider=provider.name,
        account=account,
        model=space.model,
        endpoint=space.endpoint,
        deployment="test",
    )
    return shard


def list_shard(ledger: Connection, shard: Shard, run: str, *, joined: bool = False) -> None:
    """Put the shard on a run's list."""
    ledger.execute(
        "insert into run_shards select %s, 1, count(*), %s, 1, %s from run_shards where run = %s",
        (run, shard.id, joined, run),
    )


def attempt_of(ledger: Connection, shard_id: str, run: str = "run") -> int:
    """The attempt that a run's list names now."""
    found = ledger.execute(
        "select attempt from run_shards where run = %s and shard = %s", (run, shard_id)
    ).fetchone()
    assert found is not None
    return int(found["attempt"])


def row_of(ledger: Connection, shard: Shard) -> SubmissionRow:
    """The newest attempt's submission."""
    row = submissions.latest(ledger, shard.id)
    assert row is not None
    return row


def send(
    ledger: Connection,
    storage: Storage,
    provider: BatchProvider,
    shard_id: str,
    *,
    run: str = "run",
    limits: Limits = LIMITS,
    **options: Any,
) -> Submitted | Waiting:
    """Run the step `submit` for the attempt that the run's list names."""
    options.setdefault("settings", SETTINGS)
    options.setdefault("price", PRICE)
    return submit(
        ledger, storage, provider, limits, shard_id, attempt_of(ledger, shard_id, run), run=run, **options
    )


def advance(ledger: Connection, emulator: Tenant, seconds: float) -> None:
    """Move the ledger's clock and the emulator's together."""
    clock.advance(ledger, seconds)
    emulator.advance(seconds)


def batches(emulator: Tenant) -> list[dict[str, Any]]:
    """What the emulator's books say was created."""
    return list(emulator.state()["batches"])
