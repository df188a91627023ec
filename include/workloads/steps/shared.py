"""What several steps share: the plan they work by, the run's row files, and how work is shared out."""

from __future__ import annotations

from include.batches import dead_letters, runs, shards
from include.batches.deadline import Deadline
from include.contracts import RunRef
from include.errors import ConfigError
from include.ledger.connect import Connection
from include.workloads.plan import Plan
from include.workloads.services import Endpoint, Services

MAX_PARTS = 1000
"""A mapped group may not be larger than Airflow's `max_map_length`, 1,024 by default."""
ROWS_PER_UPSERT = 50_000
RANGES = 16
"""Into how many ranges of document ids a run's rows are split."""
FIRST, SECOND = "shard", "retry"
_ROUNDS = {FIRST: shards.FIRST_ROUND, SECOND: shards.SECOND_ROUND}


class NothingToDo(Exception):
    """This step has nothing to do in this run; the message says why."""


def rows_of(services: Services, ref: RunRef) -> list[str]:
    """The run's row files, relative to the storage root."""
    found = services.storage.list(f"{ref.uri}/rows", ".parquet")
    return [path for path in found if path.rsplit("/", 1)[-1].startswith("range-")]


def working_plan(services: Services, ref: RunRef) -> Plan:
    """The plan of a run that spends. Raises NothingToDo in a dry run.

    A step that was cleared takes its run up again: until the run ends anew it counts as working.
    """
    plan = Plan.load(services.storage, ref.uri)
    if plan.request.dry_run:
        raise NothingToDo("this is a dry run: it ends after the estimate")
    with services.ledger() as connection:
        runs.reopen(connection, ref.run)
        if plan.request.replay is not None:
            dead_letters.take_again(connection, ref.run)
    return plan


def endpoint_of(services: Services, plan: Plan) -> Endpoint:
    """The provider that this run was planned for.

    Raises ConfigError where the connection points to another service by now: what that one answers
    would be kept as the first one's.
    """
    provider, connection = plan.asks()
    endpoint = services.endpoint(provider, connection)
    if endpoint.service != plan.space["service"]:
        raise ConfigError(
            f"connection {connection!r} points to service {endpoint.service!r}, and this run was "
            f"planned for {plan.space['service']!r}: point it back and clear this task, or start a new run"
        )
    return endpoint


def deadline_of(plan: Plan) -> Deadline:
    """The run's deadline, as its corpus sets it."""
    config = plan.corpus_config().deadline
    return Deadline(config.hours, config.then)


def parts(count: int, word: str) -> list[str]:
    """Labels to map over: at most 1,000, each for one shard or, of more than that, for several."""
    total = min(count, MAX_PARTS)
    return [f"{word} {number} of {total}" for number in range(1, total + 1)]


def listed(connection: Connection, ref: RunRef, plan: Plan, word: str) -> list[shards.ListedShard]:
    """The run's shards of one round, in its lasting order.

    Those of another space are left out: they were listed before `prepare` was cleared and the
    corpus's model changed. Their keys stay in flight for whoever wants them.
    """
    found = shards.of_run(connection, ref.run, _ROUNDS[word])
    return [entry for entry in found if entry.shard.space == plan.asked_space().id]


def shards_of(connection: Connection, ref: RunRef, plan: Plan, part: str) -> list[shards.ListedShard]:
    """The shards of one part: every n-th of the run's list, so that a list may grow."""
    word, number, _, total = part.split()
    return listed(connection, ref, plan, word)[int(number) - 1 :: int(total)]


def upsert_parts(rows: int) -> list[str]:
    """How the ranges are shared out: one task for about 50,000 rows, tasks being dear."""
    if rows == 0:
        return ["0-15"]
    parts = min(RANGES, -(-rows // ROWS_PER_UPSERT))
    size = -(-RANGES // parts)
    return [f"{first}-{min(first + size, RANGES) - 1}" for first in range(0, RANGES, size)]
