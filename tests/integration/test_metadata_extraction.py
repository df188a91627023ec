"""Metadata extraction on a real scheduler and triggerer, against the emulated Anthropic."""

from __future__ import annotations

import json

import pytest

from include.workloads.extraction.shape import Described
from tests.integration.corpora import make_corpus
from tests.stack import IntegrationStack

PARSED = "metadata_extraction__python_docs"


def test_what_is_extracted_is_paid_for_once_and_found_by(stack: IntegrationStack) -> None:
    corpus = make_corpus(stack, per_partition=2, extracts=True)
    corpus.run()
    dag_id = f"metadata_extraction__{corpus.name}"
    stack.api.reparse(PARSED)
    stack.wait_until(lambda: dag_id in stack.api.dags(), 60, f"DAG {dag_id} isn't there")
    before, spent = corpus.charges(), stack.emulator_state()["totals"]["batch_dollars"]
    report = stack.report(dag_id, stack.run(dag_id))
    charged = corpus.charges_since(before)
    assert report["requests_sent"] == report["requests_landed"] == len(charged) == 6
    assert set(charged.values()) == {1}
    paid = stack.emulator_state()["totals"]["batch_dollars"] - spent
    assert report["dollars_spent"] == pytest.approx(paid, abs=1e-9)
    for row in corpus.rows().values():
        told = json.loads(row["metadata"])
        assert told["topic"]
        Described.model_validate({name: told[name] for name in Described.model_fields})
    again = stack.report(dag_id, stack.run(dag_id))
    assert again["requests_sent"] == 0
