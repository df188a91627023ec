"""Killed on a real Airflow: every task after its work, the scheduler in a create, the triggerer in a wait.

The points within each task are those of `tests/faults`; here it is Airflow that finds out and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.faults.workers import wait_until
from tests.integration.corpora import PARTITIONS, Corpus, batches_take, make_corpus
from tests.stack import FIRST_DAG, KILLED, IntegrationStack

FIRST_EXTRACTION = FIRST_DAG.replace("initial_ingest", "metadata_extraction")


@pytest.fixture(scope="module")
def corpus(stack: IntegrationStack) -> Corpus:
    """A corpus that is loaded once and extracted once, by the tests in their order."""
    return make_corpus(stack, extracts=True)


@pytest.mark.parametrize("workload", ["initial_ingest", "metadata_extraction"])
def test_every_task_dies_once_after_its_work_and_is_run_again(
    stack: IntegrationStack, corpus: Corpus, workload: str
) -> None:
    """Each task's process is killed when its work is done and Airflow hasn't heard of it."""
    dag_id = f"{workload}__{corpus.name}"
    stack.api.reparse(FIRST_EXTRACTION)
    stack.wait_until(lambda: dag_id in stack.api.dags(), 60, f"DAG {dag_id} isn't there")
    word = str(corpus.documents[PARTITIONS[0]][0]["text"]).split()[0]
    fault = {"on": "line", "when": {"match": rf"\b{word}\b", "times": 1}, "do": "line_error", "status": 500}
    before = corpus.charges()
    stack.faults({**fault, "code": "server_error"})
    try:
        stack.api.unpause(dag_id)
        stack.api.trigger(dag_id, run_id=KILLED)
        stack.api.wait(dag_id, KILLED, 480)
    finally:
        stack.faults()
    tries = {task.name: task.try_number for task in stack.api.tasks(dag_id, KILLED)}
    assert len({task.task_id for task in stack.api.tasks(dag_id, KILLED)}) == 17
    assert set(tries.values()) == {2}, tries
    everything_is_there(corpus, dag_id, KILLED, before)


def test_scheduler_and_triggerer_die_and_nothing_is_bought_twice_or_forgotten(
    stack: IntegrationStack,
) -> None:
    """The scheduler and its workers, while a create is being answered; the triggerer in the wait."""
    corpus = make_corpus(stack)
    before, batches = corpus.charges(), len(stack.emulator_state()["batches"])
    hold = Hold(stack, on="batches.create", point="after", times=1)
    with batches_take(stack, 3600):
        stack.api.unpause(corpus.dag_id)
        run_id = stack.api.trigger(corpus.dag_id)
        stack.wait_until(lambda: hold.says("waiting"), 180, "no batch is created")
        with killed(stack, "scheduler"):
            wait_until(lambda: hold.says("gone"), "the worker is gone")
            hold.release()
        wait = "shards.wait_for_batch[0]"
        stack.wait_until(
            lambda: stack.states(corpus.dag_id, run_id).get(wait) == "deferred", 180, "nothing waits"
        )
    with killed(stack, "triggerer"):
        httpx.post(f"{stack.emulator_url}/_control/clock", json={"advance": 3600}).raise_for_status()
    stack.api.wait(corpus.dag_id, run_id, 300)
    assert len(stack.emulator_state()["batches"]) == batches + 1
    everything_is_there(corpus, corpus.dag_id, run_id, before)


@contextmanager
def killed(stack: IntegrationStack, component: str) -> Iterator[None]:
    """A component is dead for this block, and started again."""
    stack.kill(component)
    try:
        yield
    finally:
        stack.restart(component)


def everything_is_there(corpus: Corpus, dag_id: str, run_id: str, before: dict[str, int]) -> None:
    """Each item was charged once, is in the index, and the report says what the books say."""
    charged = corpus.charges_since(before)
    report = corpus.stack.report(dag_id, run_id)
    assert report["state"] == "succeeded"
    assert len(charged) == report["items"] == report["requests_landed"] >= len(corpus.documents)
    assert set(charged.values()) == {1}
    assert report["dead_letters"] == 0
    rows = list(corpus.rows().values())
    assert {row["document_id"] for row in rows} == {
        row["id"] for rows in corpus.documents.values() for row in rows
    }
    if dag_id.startswith("metadata_extraction"):
        assert all("keywords" in json.loads(row["metadata"]) for row in rows)


class Hold:
    """A call that the emulator stops."""

    def __init__(self, stack: IntegrationStack, **hold: object) -> None:
        self._url = f"{stack.emulator_url}/_control/hold"
        self._id = httpx.post(self._url, json=hold).raise_for_status().json()["id"]

    def says(self, what: str) -> bool:
        """Whether a call is `waiting`, or its caller `gone`."""
        return bool(httpx.get(f"{self._url}/{self._id}").raise_for_status().json()[what])

    def release(self) -> None:
        httpx.delete(f"{self._url}/{self._id}").raise_for_status()
