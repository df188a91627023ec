"""From Airflow's task context to a run of ours: its name, its parameters, what it may see."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from include.batches.dead_letters import Which
from include.contracts import OutcomeClass, RunRef
from include.errors import ConfigError
from include.workloads.plan import Request, Window
from include.workloads.replay import INGEST, REPLAY, Change, Replay

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST = 100


def run_ref(workload: str, corpus: str, context: Any) -> RunRef:
    """The run of this task: unique in the ledger, and safe as a folder's name."""
    slug = _UNSAFE.sub("-", context["run_id"])
    if len(slug) > _LONGEST:
        digest = hashlib.blake2b(context["run_id"].encode(), digest_size=8).hexdigest()
        slug = f"{slug[:_LONGEST]}-{digest}"
    return RunRef(
        run=f"{workload}__{corpus}/{slug}",
        workload=workload,
        corpus=corpus,
        uri=f"runs/{workload}/{corpus}/{slug}",
    )


def request(workload: str, context: Any) -> Request:
    """What the trigger form, the schedule or the backfill asked for."""
    params = context["params"]
    _refuse_unknown(context)
    return Request(
        window=_window(context),
        partitions=tuple(params["partitions"]) if params.get("partitions") else None,
        sample=params.get("sample"),
        limit=None if workload == REPLAY else params.get("limit"),
        dry_run=bool(params.get("dry_run")),
        budget_usd=params.get("budget_usd"),
        priority=int(params.get("priority") or 0),
        approve=bool(params.get("approve")),
        replay=_replay(params) if workload == REPLAY else None,
    )


def _refuse_unknown(context: Any) -> None:
    """Raise ConfigError for a field of `conf` that the form doesn't have: Airflow drops it without a
    word, and a misspelt `dry_run` would spend."""
    known = set(context["dag"].params)
    unknown = sorted(set(context["dag_run"].conf or {}) - known)
    if unknown:
        raise ConfigError(
            f"conf has {', '.join(map(repr, unknown))}, which this DAG's form doesn't know; it has "
            f"{', '.join(sorted(known))}. Nothing was read or sent: trigger it again"
        )


def _replay(params: Any) -> Replay:
    """Which dead letters are asked again, and how."""
    return Replay(
        workload=params.get("workload") or INGEST,
        which=Which(
            state=params.get("state") or "open",
            cls=OutcomeClass(params["class"]) if params.get("class") else None,
            code=params.get("code") or None,
            document=params.get("document") or None,
            run=params.get("run") or None,
            min_age_hours=params.get("min_age_hours"),
            max_age_hours=params.get("max_age_hours"),
            limit=params.get("limit"),
        ),
        change=Change(
            max_input_tokens=params.get("max_input_tokens"),
            max_tokens=params.get("max_tokens"),
            model=params.get("model") or None,
        ),
    )


def _window(context: Any) -> Window | None:
    """The data interval of a scheduled run or a backfill; a manual run sees everything.

    A manual run is told by its type: Airflow's form fills in dates that nobody chose.
    """
    run_type = context["dag_run"].run_type
    if str(getattr(run_type, "value", run_type)) not in ("scheduled", "backfill"):
        return None
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or end is None or start == end:
        return None
    return Window(start=start.isoformat(), end=end.isoformat())
