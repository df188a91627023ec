"""The life of a run, step by step: what each task of the DAG does.

    prepare → estimate → (approve) → probe → pack → submit → watch → land
            → pack_retry → … → dead_letters → upsert → reconcile → publish ; report always

Every step reads the frozen plan, does its part, records its counts in the ledger, and can be run
again at any time: what is done stays done.
"""

from include.workloads.steps.batching import land, pack, pack_retry, submit, watch
from include.workloads.steps.finishing import dead_letters, publish, reconcile, report, upsert
from include.workloads.steps.planning import approval_question, estimate, prepare, probe
from include.workloads.steps.shared import NothingToDo

__all__ = [
    "NothingToDo",
    "approval_question",
    "dead_letters",
    "estimate",
    "land",
    "pack",
    "pack_retry",
    "prepare",
    "probe",
    "publish",
    "reconcile",
    "report",
    "submit",
    "upsert",
    "watch",
]
