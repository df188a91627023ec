"""The DAG files: light to parse, one DAG a corpus, the same steps in each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.emulators import ROOT

DAGS = (
    "initial_ingest__python_docs",
    "dead_letter_replay__python_docs",
    "metadata_extraction__python_docs",
)
SPENDING = {"dry_run", "budget_usd", "approve", "priority"}
FORMS = {
    DAGS[0]: {"partitions", "sample", "limit"},
    DAGS[1]: {
        *("workload", "state", "class", "code", "document", "run", "min_age_hours", "max_age_hours", "limit"),
        *("max_input_tokens", "max_tokens", "model"),
    },
    DAGS[2]: {"partitions", "sample", "limit"},
}

PARSE = """
import json, sys
from airflow.plugins_manager import get_import_errors, ensure_plugins_loaded
ensure_plugins_loaded()
from airflow.dag_processing.dagbag import DagBag
bag = DagBag("dags")
dags = {
    dag.dag_id: {
        "tasks": {
            task.task_id: {"rule": str(getattr(task.trigger_rule, "value", task.trigger_rule)),
                           "upstream": sorted(task.upstream_task_ids), "teardown": task.is_teardown}
            for task in dag.tasks
        },
        "tags": sorted(dag.tags),
        "schedule": type(dag.timetable).__name__,
        "params": sorted(dag.params),
    }
    for dag in bag.dags.values()
}
heavy = ["openai", "anthropic", "lancedb", "duckdb", "tiktoken", "semantic_text_splitter", "pandas"]
loaded = [name for name in heavy if name in sys.modules]
import openai
print(json.dumps({"dags": dags, "errors": bag.import_errors, "plugin_errors": get_import_errors(),
                  "loaded": loaded, "openai": openai.__file__, "sdk": hasattr(openai, "OpenAI")}))
"""


@pytest.fixture(scope="module")
def parsed(airflow_env: Mapping[str, str]) -> dict[str, Any]:
    """What Airflow makes of the dags and plugins folders, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PARSE], cwd=ROOT, env=dict(airflow_env), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_dag_and_plugin_parses(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert not parsed["plugin_errors"]
    assert set(DAGS) == set(parsed["dags"])


def test_parsing_loads_no_provider_sdk_and_no_engine(parsed: dict[str, Any]) -> None:
    assert parsed["loaded"] == []


def test_no_plugin_file_takes_the_place_of_a_library(parsed: dict[str, Any]) -> None:
    assert parsed["sdk"], f"`openai` is {parsed['openai']}, not the SDK"


@pytest.mark.parametrize("name", DAGS)
def test_a_dag_is_tagged_with_its_workload_and_corpus_and_has_its_form(
    parsed: dict[str, Any], name: str
) -> None:
    dag = parsed["dags"][name]
    assert dag["tags"] == sorted(name.split("__"))
    assert set(dag["params"]) == FORMS[name] | SPENDING


def test_a_workload_with_a_cron_in_the_yaml_sees_its_data_interval(parsed: dict[str, Any]) -> None:
    schedules = [parsed["dags"][name]["schedule"] for name in DAGS]
    assert schedules == ["CronDataIntervalTimetable", "NullTimetable", "NullTimetable"]


def test_every_workload_has_the_same_steps(parsed: dict[str, Any]) -> None:
    first, *others = (parsed["dags"][name]["tasks"] for name in DAGS)
    assert all(tasks == first for tasks in others)


def test_publish_hangs_on_every_step_and_is_the_only_leaf_that_counts(parsed: dict[str, Any]) -> None:
    tasks = parsed["dags"]["initial_ingest__python_docs"]["tasks"]
    upstream = {name for task in tasks.values() for name in task["upstream"]}
    assert {name for name in tasks if name not in upstream} == {"report"}
    assert tasks["report"] == {"rule": "all_done_setup_success", "upstream": ["publish"], "teardown": True}
    assert tasks["publish"]["rule"] == "none_failed"
    # Within a mapped group a failure reaches its last task, and from there `publish`.
    inner = {name for name in tasks if name.endswith((".submit", ".wait_for_batch"))}
    assert set(tasks["publish"]["upstream"]) == set(tasks) - inner - {"publish", "report"}


def test_what_must_account_for_failures_runs_whatever_happened(parsed: dict[str, Any]) -> None:
    tasks = parsed["dags"]["initial_ingest__python_docs"]["tasks"]
    assert {name for name, task in tasks.items() if task["rule"] == "all_done"} == {
        "pack_retry",
        "dead_letters",
        "reconcile",
    }
