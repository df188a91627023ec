"""Pack: what has no answer and isn't in flight becomes shards, registered all at once.

The order of reading is what keeps anything from being bought twice: the space's epoch first, then
the submissions in flight, then the results. What lands in between is seen as in flight; what is
registered in between raises the epoch, and the loser subtracts again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.batches import claims, dead_letters, failures, runs, shards, spaces, submissions
from include.batches.shard_files import ShardLimits, ShardWriter, keys_path
from include.batches.submissions import SubmissionRow
from include.contracts import BatchProvider, Limits, RunRef, Shard, Space
from include.errors import LedgerError, StorageError
from include.ledger.connect import Connection
from include.requests import results
from include.requests.key_sets import Resources
from include.requests.reuse import Plan, Reuse, Sources, planning
from include.storage import Storage

log = logging.getLogger(__name__)

_TRIES = 20
_LOG_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PackReport:
    """What became of a run's items in one round.

    `items` are distinct keys: `items = sent + joined + reused + blocked + refused`. `duplicates`
    are rows beyond the first of a key. `joined` items are in flight for another run; `blocked`
    ones have a dead letter; `refused` ones fit into no request. `tokens`, `lines` and `bytes` are
    those of the shards that this run had registered; `shards` is its list, in its lasting order.
    """

    shards: list[str]
    items: int
    sent: int
    joined: int
    reused: int
    blocked: int
    refused: int
    duplicates: int
    tokens: int
    lines: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the ledger and the storage held when the keys were divided. `listed` is what of the
    run's list still stands, `planned` what of that nobody sent yet, `void` the rest; `live` maps the
    key file of each other shard in flight to its submission."""

    epoch: int
    listed: list[shards.ListedShard]
    planned: list[shards.ListedShard]
    void: list[shards.ListedShard]
    live: dict[str, SubmissionRow]
    sources: Sources


def pack(
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
    round: int = shards.FIRST_ROUND,
    inputs_per_line: int = 1,
    reuse: Reuse | None = None,
    structured: bool = False,
    only: pa.Array[Any] | None = None,
    replayed: pa.Array[Any] | None = None,
    resources: Resources | None = None,
) -> PackReport:
    """Write and register the shards that this run still needs.

    `rows` are Parquet files of `RUN_ROW_SCHEMA`, relative to the storage root. `structured` says
    that their inputs are JSON objects, not text. `only` restricts them to these keys. `replayed` keys
    are asked although they have a dead letter. Running it
    again for the same run finds the run's own list; what the rows want beyond it is added, and what
    holds none of their items and wasn't sent yet is taken off it.
    Raises RunCancelled, or LedgerError for an unknown run, or where others registered in this space
    without end.
    """
    spaces.ensure(connection, space)
    target = ShardLimits.within(limits, inputs_per_line)

    def plan_submission(shard: Shard, attempt: int) -> str:
        return submissions.plan(
            connection,
            shard=shard,
            attempt=attempt,
            run=run.run,
            provider=provider.name,
            account=account,
            model=space.model,
            endpoint=space.endpoint,
            deployment=deployment,
        )

    for _ in range(_TRIES):
        runs.refuse_cancelled(connection, run.run)
        seen = _look(connection, storage, space, run, rows, round, reuse or Reuse(), only, replayed)
        with planning(storage, seen.sources, resources) as planned:
            plan = planned.plan
            writer = ShardWriter(storage, provider, space, target, structured=structured)
            writer.write(planned.missing_items(), _progress(plan.missing))
        for entry in seen.planned:
            if not plan.listed.get(keys_path(entry.shard.id)):
                claims.drop(connection, entry, f"run {run.run} doesn't want its items any more")
        joined = [(row.shard, row.attempt) for row in (seen.live[path] for path in plan.joined)]
        if (writer.shards or joined or seen.void) and not shards.register(
            connection,
            space_id=space.id,
            epoch=seen.epoch,
            run=run.run,
            round=round,
            new=writer.shards,
            joined=joined,
            void=seen.void,
            plan=plan_submission,
        ):
            log.info("Others registered shards in space %s meanwhile; subtracting again", space.id)
            continue
        failures.write(storage, refused_path(run, round), writer.refused)
        return _report(shards.of_run(connection, run.run, round), seen.listed, plan, writer)
    raise LedgerError(
        f"run {run.run!r}: others registered shards in space {space.id} during each of {_TRIES} tries;"
        " clear the task `pack` to try again"
    )


def _report(
    listed: Sequence[shards.ListedShard],
    before: Sequence[shards.ListedShard],
    plan: Plan,
    writer: ShardWriter,
) -> PackReport:
    paid = [entry.shard for entry in listed if not entry.joined]
    sent_before = sum(plan.listed.get(keys_path(entry.shard.id), 0) for entry in before if not entry.joined)
    return PackReport(
        shards=[entry.shard.id for entry in listed],
        items=plan.items,
        sent=sent_before + sum(shard.items for shard in writer.shards),
        joined=plan.in_flight + plan.own - sent_before,
        reused=plan.reused,
        blocked=plan.blocked,
        refused=len(writer.refused),
        duplicates=plan.rows - plan.items,
        tokens=sum(shard.tokens for shard in paid),
        lines=sum(shard.lines for shard in paid),
        bytes=sum(shard.bytes for shard in paid),
    )


def _progress(total: int) -> Callable[[int], None]:
    """Logs how many of the items are written, at most every ten seconds."""
    started = logged = time.monotonic()
    done = 0

    def report(more: int) -> None:
        nonlocal done, logged
        done += more
        moment = time.monotonic()
        if moment - logged >= _LOG_SECONDS:
            logged = moment
            log.info("Packed %d of %d items, %.0f/s", done, total, done / (moment - started))

    return report


def preview(
    connection: Connection,
    storage: Storage,
    space: Space,
    *,
    run: RunRef,
    rows: Sequence[str],
    account: str,
    reuse: Reuse | None = None,
    only: pa.Array[Any] | None = None,
    replayed: pa.Array[Any] | None = None,
    resources: Resources | None = None,
) -> Plan:
    """How the run's keys would divide now, for an estimate. Registers and writes nothing.

    What is planned at `account` and not sent yet counts as missing, with all that its shards hold,
    whoever planned it: the run that sends it pays for it, and that may be this one.
    """
    spaces.ensure(connection, space)
    seen = _look(connection, storage, space, run, rows, shards.FIRST_ROUND, reuse or Reuse(), only, replayed)
    with planning(storage, seen.sources, resources) as planned:
        plan = planned.plan
    for entry in seen.planned:
        wanted = plan.listed.get(keys_path(entry.shard.id), 0)
        row = submissions.get(connection, entry.shard.id, entry.attempt)
        if wanted and row is not None and row.account == account:
            plan.own -= wanted
            plan.missing += wanted
            plan.tokens += entry.shard.tokens
    for path, wanted in plan.joined.items():
        row = seen.live[path]
        if row.state == submissions.PLANNED and row.account == account:
            plan.in_flight -= wanted
            plan.missing += wanted
            plan.tokens += shards.get(connection, row.shard).tokens
    return plan


def refused_path(run: RunRef, round: int) -> str:
    """The items of a run that no request can carry, as a failures file."""
    return f"{run.uri}/refused-{round}.jsonl"


def round_failures(connection: Connection, storage: Storage, run: RunRef, round: int) -> list[str]:
    """The failures files of one round: of each shard that landed, and of what `pack` refused."""
    paths = [
        failures.of_attempt(entry.shard.id, entry.attempt)
        for entry in shards.of_run(connection, run.run, round)
    ]
    paths.append(refused_path(run, round))
    return [path for path in paths if storage.exists(path)]


def _look(
    connection: Connection,
    storage: Storage,
    space: Space,
    run: RunRef,
    rows: Sequence[str],
    round: int,
    reuse: Reuse,
    only: pa.Array[Any] | None,
    replayed: pa.Array[Any] | None,
) -> _Seen:
    """Read the epoch, then what is in flight, then the results. The order matters."""
    epoch = spaces.epoch(connection, space.id)
    listed, planned, void = _standing(connection, shards.of_run(connection, run.run, round))
    own = {entry.shard.id for entry in listed}
    live = {
        keys_path(row.shard): row for row in submissions.live(connection, space.id) if row.shard not in own
    }
    for path, row in live.items():
        if not storage.exists(path):
            raise _keys_lost(storage, path, f"attempt {row.attempt} at shard {row.shard} is in flight")
    return _Seen(
        epoch=epoch,
        listed=listed,
        planned=planned,
        void=void,
        live=live,
        sources=Sources(
            rows=rows,
            results=answers(connection, storage, space.id, run, reuse),
            own=_key_files(connection, storage, listed),
            live=list(live),
            blocked=_blocked(connection, run, space.id, replayed),
            only=only,
            since=reuse.since(runs.get(connection, run.run).started_at),
        ),
    )


def _blocked(
    connection: Connection, run: RunRef, space_id: str, replayed: pa.Array[Any] | None
) -> pa.Array[Any]:
    blocked = dead_letters.blocked_keys(connection, run, space_id)
    return blocked if replayed is None else blocked.filter(pc.invert(pc.is_in(blocked, replayed)))


def answers(connection: Connection, storage: Storage, space_id: str, run: RunRef, reuse: Reuse) -> list[str]:
    """The results files that count for a run under its reuse policy."""
    found = results.files(storage, space_id)
    if reuse.policy != "run":
        return found
    listed = {row.id for row in submissions.listed_by(connection, run.run)}
    return [path for path in found if results.submission_of(path) in listed]


def _standing(
    connection: Connection, listed: Sequence[shards.ListedShard]
) -> tuple[list[shards.ListedShard], list[shards.ListedShard], list[shards.ListedShard]]:
    """A list's entries that stand, those of them that nobody sent yet, and those whose attempt is void:
    nothing was paid for these, and since then others may have sent their items."""
    standing: list[shards.ListedShard] = []
    planned: list[shards.ListedShard] = []
    void: list[shards.ListedShard] = []
    for entry in listed:
        row = submissions.get(connection, entry.shard.id, entry.attempt)
        state = row.state if row is not None else ""
        (void if state == submissions.VOID else standing).append(entry)
        if state == submissions.PLANNED:
            planned.append(entry)
    return standing, planned, void


def _key_files(connection: Connection, storage: Storage, listed: Sequence[shards.ListedShard]) -> list[str]:
    """The key files of a run's own list. A landed shard's may be gone: its answers tell."""
    present = []
    for entry in listed:
        path = keys_path(entry.shard.id)
        if storage.exists(path):
            present.append(path)
            continue
        row = submissions.get(connection, entry.shard.id, entry.attempt)
        if row is None or row.state != submissions.LANDED:
            raise _keys_lost(storage, path, f"shard {entry.shard.id} hasn't landed")
    return present


def _keys_lost(storage: Storage, path: str, why: str) -> StorageError:
    return StorageError(
        f"{storage.url(path)} isn't there, and {why}: without it nobody knows what is asked, and it"
        " might be paid for twice; restore the file, or cancel what lists the shard"
    )
