"""Airflow's own pages, as the person at the screen sees them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import leave
from tests.integration.corpora import PARTITIONS, make_corpus
from tests.stack import IntegrationStack

pytestmark = pytest.mark.browser


def test_a_first_run_from_the_form_loads_every_partition(stack: IntegrationStack, page: Page) -> None:
    corpus = make_corpus(stack, scheduled=True)
    page.goto(f"{stack.airflow_url}/dags/{corpus.dag_id}")
    page.get_by_test_id("trigger-dag-button").click()
    form = page.get_by_role("dialog")
    for name in ("partitions", "sample", "limit", "dry_run", "budget_usd", "approve", "priority"):
        expect(form.locator(f"[name=element_{name}]").first).to_be_attached()
    expect(form.get_by_text("nothing is sent, nothing is spent")).to_be_visible()
    form.get_by_test_id("trigger-dag-submit").click()

    def runs() -> list[str]:
        found = [run for run in stack.api.runs(corpus.dag_id) if run["run_type"] == "manual"]
        return [run["dag_run_id"] for run in found]

    stack.wait_until(lambda: len(runs()) == 1, 60, "the form started no run")
    (run_id,) = runs()
    leave(page)
    stack.api.wait(corpus.dag_id, run_id, 240)
    documents = {row["document_id"] for row in corpus.rows().values()}
    assert documents == {row["id"] for rows in corpus.documents.values() for row in rows}
    loaded = stack.rows(
        "select counts -> 'prepare' -> 'partitions' as partitions from runs"
        " where corpus = %(corpus)s and run like '%%manual%%'",
        {"corpus": corpus.name},
    )
    assert sorted(loaded[0]["partitions"]) == list(PARTITIONS)


def test_the_graph_of_a_finished_run_shows_the_steps(stack: IntegrationStack, page: Page) -> None:
    corpus = make_corpus(stack)
    run_id = stack.run(corpus.dag_id)
    page.goto(f"{stack.airflow_url}/dags/{corpus.dag_id}/runs/{run_id}")
    page.get_by_label(re.compile("Show Graph")).click()
    for step in (
        "prepare",
        "estimate",
        "pack",
        "shards",
        "retry",
        "upsert",
        "reconcile",
        "publish",
        "report",
    ):
        expect(page.get_by_test_id(f"rf__node-{step}")).to_be_visible()
