"""From Airflow's task context to a run of ours: its name, its parameters, what it may see."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from include.contracts import RunRef
from include.workloads.plan import Request, Window

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


def request(context: Any) -> Request:
    """What the trigger form, the schedule or the backfill asked for."""
    params = context["params"]
    return Request(
        window=_window(context),
        partitions=tuple(params["partitions"]) if params.get("partitions") else None,
        sample=params.get("sample"),
        limit=params.get("limit"),
        dry_run=bool(params.get("dry_run")),
        budget_usd=params.get("budget_usd"),
        priority=int(params.get("priority") or 0),
        approve=bool(params.get("approve")),
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
