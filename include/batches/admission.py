"""Admission: room at the account is reserved in the ledger before a batch is created.

Against (account, model): enqueued tokens and requests. Against the account: enqueued requests of all
its models, live batches and creations an hour. Against the run and the account's month: dollars. All
in one transaction under the account's lock, so two runs on one account never promise the same room
twice. First come, first served within a priority; who stands in line without asking for a while loses
the place, so a dead run holds nobody up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from include.batches import submissions
from include.batches.submissions import SubmissionRow
from include.contracts import Limits, Price, Shard, Usage
from include.errors import BudgetExceeded, ConfigError
from include.ledger import clock
from include.ledger.connect import Connection
from include.ledger.locks import lock_number
from include.reference import account_budget

log = logging.getLogger(__name__)

QUIET_SHARE = 1 / 12
"""Complaints within this share of a cool-down are about the same full queue and don't halve again."""
MOST_HALVINGS = 4
QUEUE_PLACE_SECONDS = 900.0
"""Who hasn't asked for room for so long has left the line."""


@dataclass(frozen=True, slots=True)
class Want:
    """What one shard needs: prompt tokens, requests (lines), and dollars at batch price if known.

    `account_usd_per_month` is what the account's batches may cost in a calendar month, None if uncapped.
    """

    tokens: int
    requests: int
    usd: float | None
    account_usd_per_month: float | None = None


def want_of(shard: Shard, price: Price | None, output_tokens_per_line: int, account: str) -> Want:
    """What a shard needs; without a price its dollars are unknown, and a budget can't be kept."""
    output = shard.lines * output_tokens_per_line
    usd = price.cost(Usage(input=shard.tokens, output=output), batch=True) if price else None
    return Want(shard.tokens, shard.lines, usd, account_budget(account))


def ask(connection: Connection, row: SubmissionRow, want: Want, limits: Limits, run: str) -> str:
    """Why there is no room now, or "" when there is. Without room the submission stands in line.

    Reserves nothing: for a look before the upload.
    """
    with _account_locked(connection, row.account):
        reason = _no_room(connection, row, want, limits, run)
        if reason:
            submissions.queue(connection, row, reason)
        return reason


def reserve(
    connection: Connection, row: SubmissionRow, want: Want, limits: Limits, run: str
) -> SubmissionRow | str:
    """Reserve room and money and announce the create, in one transaction; or the reason for waiting.

    Raises BudgetExceeded where the run's or the account's budget doesn't hold it.
    """
    with _account_locked(connection, row.account):
        check_budget(connection, row, want, run)
        reason = _no_room(connection, row, want, limits, run)
        if reason:
            submissions.queue(connection, row, reason)
            return reason
        reserved = submissions.start_creating(
            connection, row, run=run, tokens=want.tokens, requests=want.requests, usd=want.usd or 0.0
        )
        return reserved if reserved is not None else "another process advanced this submission"


def check_budget(connection: Connection, row: SubmissionRow, want: Want, run: str) -> None:
    """Raise BudgetExceeded where what is spent and reserved, and this shard, pass a budget.

    The run's budget stands in the ledger, the account's for a calendar month in `limits.yaml`.
    """
    found = connection.execute("select budget_usd from runs where run = %s", (run,)).fetchone()
    budget = found["budget_usd"] if found else None
    month = want.account_usd_per_month
    if budget is None and month is None:
        return
    if want.usd is None:
        raise ConfigError(
            f"no price is known for {row.provider} model {row.model}, so no budget can be kept:"
            " add it to config/prices.yaml, or take the budget away"
        )
    if budget is not None:
        committed = _committed(connection, row, "run = %s", run)
        _hold_budget(committed, want.usd, budget, f"run {run}")
    if month is not None:
        start = clock.now(connection).start_of("month")
        committed = _committed(connection, row, "account = %s and creating_at >= %s", row.account, start)
        _hold_budget(committed, want.usd, month, f"account {row.account} in {start.format('MMMM YYYY')}")


def halve(connection: Connection, account: str, model: str, reason: str, *, cool_down_seconds: float) -> None:
    """The provider said that the queue is full: work with half the limit for a cool-down.

    Somebody else uses the account, or its limit is lower than we know.
    """
    with _account_locked(connection, account):
        changed = connection.execute(
            "insert into account_limits as l (account, model, halved, until)"
            " values (%(account)s, %(model)s, 1, batch_inference.now() + make_interval(secs => %(cool)s))"
            " on conflict (account, model) do update set"
            " halved = case when l.until < batch_inference.now() then 1"
            " else least(l.halved + 1, %(most)s) end, until = excluded.until"
            " where l.until < batch_inference.now() + make_interval(secs => %(cool)s - %(quiet)s)"
            " returning halved",
            {
                "account": account,
                "model": model,
                "cool": cool_down_seconds,
                "quiet": cool_down_seconds * QUIET_SHARE,
                "most": MOST_HALVINGS,
            },
        ).fetchone()
    if changed:
        log.warning(
            "Account %s, model %s: working with 1/%d of the limits for %.1f hours (%s)",
            account,
            model,
            2 ** changed["halved"],
            cool_down_seconds / 3600,
            reason,
        )


def _no_room(connection: Connection, row: SubmissionRow, want: Want, limits: Limits, run: str) -> str:
    ahead = _ahead(connection, row, run)
    if ahead:
        return f"{ahead} submission{'s' if ahead > 1 else ''} for {row.model} stand ahead in line"
    used = connection.execute(
        "select coalesce(sum(reserved_tokens) filter (where model = %(model)s), 0)::bigint as tokens,"
        " coalesce(sum(reserved_requests) filter (where model = %(model)s), 0)::bigint as requests,"
        " coalesce(sum(reserved_requests), 0)::bigint as all_requests, count(*) as batches from submissions"
        " where account = %(account)s and state = any(%(open)s)",
        {"account": row.account, "model": row.model, "open": list(submissions.OPEN)},
    ).fetchone()
    assert used is not None
    halvings = _halvings(connection, row)
    for name, taken, wanted, limit in (
        (f"tokens of {row.model}", used["tokens"], want.tokens, limits.enqueued_tokens),
        (f"requests of {row.model}", used["requests"], want.requests, limits.enqueued_requests),
        ("requests of all models", used["all_requests"], want.requests, limits.account_requests),
    ):
        working = None if limit is None else max(1, limit >> halvings)
        # What is larger than the limit by itself can only ever go alone.
        if working is not None and taken > 0 and taken + wanted > working:
            cooling = f", 1/{2**halvings} of {limit:,} for a while" if halvings else ""
            return f"{taken:,} of {working:,} enqueued {name} are taken{cooling}; this needs {wanted:,}"
    if limits.live_batches is not None and used["batches"] >= max(1, limits.live_batches >> halvings):
        return f"{used['batches']:,} of {limits.live_batches:,} live batches are taken"
    if limits.creations_per_hour is not None:
        recent = _creations(connection, row.account)
        if recent >= limits.creations_per_hour:
            return (
                f"{recent:,} batches were created within the hour, the limit is {limits.creations_per_hour:,}"
            )
    return ""


def _ahead(connection: Connection, row: SubmissionRow, run: str) -> int:
    """How many others wait for the same account and model, and come before this one."""
    found = connection.execute(
        "select count(*) as ahead from submissions s join runs r using (run),"
        " (select coalesce((select priority from runs where run = %(run)s), 0) as priority) mine"
        " where s.account = %(account)s and s.model = %(model)s and s.state = 'planned' and s.id <> %(id)s"
        " and s.queue_seen_at > batch_inference.now() - make_interval(secs => %(place)s)"
        " and (s.not_before is null or s.not_before <= batch_inference.now())"
        " and (r.priority > mine.priority or (r.priority = mine.priority"
        " and (s.queued_at, s.id) < (coalesce(%(queued)s::timestamptz, 'infinity'), %(id)s::uuid)))",
        {
            "run": run,
            "account": row.account,
            "model": row.model,
            "id": row.id,
            "queued": row.queued_at,
            "place": QUEUE_PLACE_SECONDS,
        },
    ).fetchone()
    assert found is not None
    return int(found["ahead"])


def _halvings(connection: Connection, row: SubmissionRow) -> int:
    found = connection.execute(
        "select halved from account_limits"
        " where account = %s and model = %s and until > batch_inference.now()",
        (row.account, row.model),
    ).fetchone()
    return int(found["halved"]) if found else 0


def _creations(connection: Connection, account: str) -> int:
    found = connection.execute(
        "select count(*) as recent from submissions"
        " where account = %s and creating_at > batch_inference.now() - interval '1 hour'",
        (account,),
    ).fetchone()
    assert found is not None
    return int(found["recent"])


def _committed(connection: Connection, row: SubmissionRow, where: str, *params: object) -> float:
    """Dollars spent, and reserved by what isn't landed, of all submissions but this one."""
    found = connection.execute(
        "select coalesce(sum(coalesce(cost_usd, reserved_usd)), 0) as usd from submissions"
        f" where {where} and id <> %s",
        (*params, row.id),
    ).fetchone()
    assert found is not None
    return float(found["usd"])


def _hold_budget(committed: float, usd: float, budget: float, whose: str) -> None:
    if committed + usd > budget:
        raise BudgetExceeded(
            f"the budget of {whose} is ${budget:.2f}: ${committed:.4f} are spent or reserved, and this batch"
            f" may cost ${usd:.4f}. It was not sent; trigger a new run with a larger budget_usd"
        )


@contextmanager
def _account_locked(connection: Connection, account: str) -> Iterator[None]:
    """A transaction that holds the account's lock until it ends."""
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", (lock_number(f"admission/{account}"),))
        yield
