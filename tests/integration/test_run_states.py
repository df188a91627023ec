"""A failed step always fails the run, and the report still says so."""

from __future__ import annotations

import pytest

from tests.integration.corpora import make_corpus
from tests.stack import IntegrationStack

STEPS = (
    "prepare",
    "estimate",
    "approve",
    "probe",
    "pack",
    "shards.submit",
    "shards.wait_for_batch",
    "shards.land",
    "pack_retry",
    "dead_letters",
    "upsert",
    "reconcile",
    "publish",
)


@pytest.fixture(scope="module")
def runs(stack: IntegrationStack) -> tuple[str, dict[str, str]]:
    """One run a step, started at once; the policy of tests/stack.py makes that step fail."""
    corpus = make_corpus(stack, per_partition=1)
    stack.api.unpause(corpus.dag_id)
    names = {step: f"fail__{step}" for step in STEPS}
    for name in names.values():
        stack.api.trigger(corpus.dag_id, run_id=name)
    return corpus.dag_id, names


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_fails_the_run(
    stack: IntegrationStack, runs: tuple[str, dict[str, str]], step: str
) -> None:
    dag_id, names = runs
    run = stack.api.wait(dag_id, names[step], 600, expect=("failed",))
    assert run["state"] == "failed"
    states = {name.split("[")[0]: state for name, state in stack.states(dag_id, names[step]).items()}
    assert states[step] == "failed"
    assert states["report"] == "success"
    if step != "prepare":
        assert stack.report(dag_id, names[step])["state"] == "failed"
