"""The trigger forms: the typed parameters of each workload's DAGs."""

from __future__ import annotations

from airflow.sdk import Param

from include.contracts import OutcomeClass
from include.corpora.config import CorpusConfig
from include.workloads.plan import EXTRACTION
from include.workloads.replay import INGEST, REPLAY


def params_of(workload: str, config: CorpusConfig) -> dict[str, Param]:
    """The form of one workload over one corpus."""
    return {**(_letters(config) if workload == REPLAY else _documents()), **_spending(config)}


def _documents() -> dict[str, Param]:
    """Which documents a run sees."""
    return {
        "partitions": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            title="Partitions",
            description="Only these partitions, one a line; empty means all of them. Scheduled runs "
            "and backfills see those of their data interval.",
        ),
        "sample": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Sample",
            description="Take only about this many documents, spread over the corpus. "
            "A sampled run deletes and publishes nothing.",
        ),
        "limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Limit",
            description="Stop reading after this many documents. A limited run deletes and "
            "publishes nothing.",
        ),
    }


def _letters(config: CorpusConfig) -> dict[str, Param]:
    """Which dead letters a replay takes, and what it changes."""
    classes = [cls.value for cls in OutcomeClass if cls is not OutcomeClass.SUCCEEDED]
    workloads = [INGEST, *([EXTRACTION] if config.extraction else [])]
    return {
        "workload": Param(
            workloads[0], enum=workloads, title="Workload", description="Whose letters: one at a time."
        ),
        "state": Param(
            "open",
            enum=["open", "discarded"],
            title="State",
            description="Open letters, or those that were discarded.",
        ),
        "class": Param(
            None,
            type=["null", "string"],
            enum=[None, *classes],
            title="Class",
            description="Only letters of this class.",
        ),
        "code": _text("Code", "Only letters with this code, such as too_long."),
        "document": _text("Document", "Only letters of the document with this id."),
        "run": _text("Run", "Only letters of this run, as the command `runs` names it."),
        "min_age_hours": _hours("Older than, hours", "Only letters opened at least so long ago."),
        "max_age_hours": _hours("Younger than, hours", "Only letters opened at most so long ago."),
        "limit": _count("Limit", "Take at most so many letters, the oldest first."),
        "max_input_tokens": _count(
            "Shorten inputs to, tokens",
            "Ask with only the beginning of each text. Its answer stands for the whole text from then on.",
        ),
        "max_tokens": _count("Longest answer, tokens", "For generated text: a higher limit of the answer."),
        "model": _text("Model", "For generated text: ask another model. An index keeps its own."),
    }


def _spending(config: CorpusConfig) -> dict[str, Param]:
    """What a run may do and cost."""
    return {
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="End after the estimate: nothing is sent, nothing is spent.",
        ),
        "budget_usd": Param(
            config.budget.run_usd,
            type=["null", "number"],
            minimum=0,
            title="Budget, US dollars",
            description="The run fails before sending anything if its estimate passes this.",
        ),
        "approve": Param(
            False,
            type="boolean",
            title="Ask before spending",
            description="Wait for a person's approval once the cost is estimated.",
        ),
        "priority": Param(
            0,
            type="integer",
            title="Priority",
            description="Where runs wait for room at the account, higher goes first.",
        ),
    }


def _text(title: str, description: str) -> Param:
    return Param(None, type=["null", "string"], title=title, description=description)


def _count(title: str, description: str) -> Param:
    return Param(None, type=["null", "integer"], minimum=1, title=title, description=description)


def _hours(title: str, description: str) -> Param:
    return Param(None, type=["null", "number"], minimum=0, title=title, description=description)
