"""One DAG a workload and corpus. The graph is the same for all: design of a run in one place.

    prepare ─ estimate ─ approve ─ probe ─ pack ─ shards[submit ─ wait_for_batch ─ land] ─ pack_retry
      ─ retry[submit ─ wait_for_batch ─ land] ─ dead_letters ─ upsert[…] ─ reconcile ─ publish
                                                                    report (teardown)

What becomes of an item never fails a task, and a failed task always fails the run: `pack_retry`,
`dead_letters` and `reconcile` run whatever happened before them; `publish` hangs on every step and
is the only leaf that counts.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, task_group
from airflow.sdk.configuration import conf
from airflow.sdk.definitions._internal.node import DAGNode
from airflow.sdk.definitions.param import ParamsDict

from batch_inference.forms import params_of
from batch_inference.operators import ApproveOperator, StepOperator, SubmitOperator
from batch_inference.sensors import BatchSensor
from include.corpora.config import CorpusConfig, load_all
from include.errors import ConfigError
from include.settings import Settings
from include.workloads.plan import EXTRACTION

_START = pendulum.datetime(2026, 1, 1, tz="UTC")


def corpora_dir() -> Path:
    """Where the corpora's YAML files lie; read without needing the other settings."""
    return Path(conf.get("batch_inference", "corpora_dir", fallback=Settings.corpora_dir))


def build_all(workload: str, doc_md: str) -> dict[str, DAG]:
    """The DAGs of one workload, by id, for every corpus that has a sound YAML.

    A wrong one is left out here, and named by `refuse_invalid_corpora`; so is one without an `extraction`
    where that is the work.
    """
    return {
        f"{workload}__{config.corpus}": build(workload, config, doc_md)
        for config in load_all(corpora_dir()).values()
        if not isinstance(config, ConfigError) and (workload != EXTRACTION or config.extraction)
    }


def refuse_invalid_corpora() -> None:
    """Raise ConfigError where a corpus's YAML is wrong, naming all that are."""
    wrong = [str(error) for error in load_all(corpora_dir()).values() if isinstance(error, ConfigError)]
    if wrong:
        raise ConfigError("\n".join(wrong))


def build(workload: str, config: CorpusConfig, doc_md: str) -> DAG:
    """The DAG of one workload over one corpus."""
    corpus = config.corpus
    cron = {str(name): cron for name, cron in config.schedules.items()}.get(workload)
    common: dict[str, Any] = {"workload": workload, "corpus": corpus}
    with DAG(
        dag_id=f"{workload}__{corpus}",
        description=f"{workload.replace('_', ' ')} of the corpus {corpus}",
        doc_md=doc_md,
        schedule=CronDataIntervalTimetable(cron, timezone="UTC") if cron else None,
        start_date=_START,
        catchup=False,
        max_active_runs=8,
        tags=[workload, corpus],
        default_args={
            "retries": 3,
            # What ends a wait goes first: submits that wait for room would starve the landing that
            # makes it.
            "weight_rule": "upstream",
            "retry_delay": timedelta(
                seconds=conf.getfloat("batch_inference", "retry_seconds", fallback=Settings.retry_seconds)
            ),
        },
    ) as dag:

        def step(name: str, **kwargs: Any) -> StepOperator:
            return StepOperator(task_id=name, step=name, **common, **kwargs)

        prepare = step("prepare")
        estimate = step("estimate")
        approve = ApproveOperator(task_id="approve", **common)
        probe = step("probe")
        pack = step("pack")
        shards = _shards("shards", pack, common)
        pack_retry = step("pack_retry", trigger_rule="all_done")
        retry = _shards("retry", pack_retry, common)
        dead_letters = step("dead_letters", trigger_rule="all_done")
        upsert = StepOperator.partial(
            task_id="upsert",
            step="upsert",
            map_index_template="{{ part }}",
            trigger_rule="none_failed",
            **common,
        ).expand(part=prepare.output)
        reconcile = step("reconcile", trigger_rule="all_done")
        publish = step(
            "publish",
            trigger_rule="none_failed",
            outlets=[Asset(name=f"live_index__{corpus}", uri=f"live-index://{corpus}")],
        )
        # Without `setups`: clearing a step must not clear `prepare` with it.
        report = step("report").as_teardown()

        prepare >> estimate >> approve >> probe >> pack >> shards >> pack_retry >> retry
        retry >> dead_letters >> upsert >> reconcile >> publish >> report
        # A failure anywhere must reach the leaf: with `none_failed`, only direct ones count.
        [prepare, estimate, approve, probe, pack, shards, pack_retry, retry, dead_letters, upsert] >> publish
    # Given last, as a task made below it takes a copy, each checked and stored anew with every parse: twenty
    # times the work, and four times the stored DAG. A run gives its tasks the DAG's.
    dag.params = ParamsDict(params_of(workload, config))
    return dag


def _shards(group_id: str, pack: StepOperator, common: dict[str, Any]) -> DAGNode:
    """A mapped group: submit, wait, land, for each part that `pack` names."""

    @task_group(group_id=group_id)
    def shards(part: Any) -> None:
        named: dict[str, Any] = {"map_index_template": "{{ part }}", "part": part, **common}
        submit = SubmitOperator(task_id="submit", step="submit", **named)
        wait = BatchSensor(task_id="wait_for_batch", **named)
        land = StepOperator(task_id="land", step="land", **named)
        submit >> wait >> land

    return shards.expand(part=pack.output)
