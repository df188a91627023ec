"""What a trigger's `conf` may say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from batch_inference.forms import params_of
from batch_inference.runs import request

from include.contracts import PROJECT_ROOT
from include.corpora.config import load_corpus
from include.errors import ConfigError

CONFIG = load_corpus(PROJECT_ROOT / "include" / "config" / "corpora" / "python_docs.yaml")


def context(workload: str, conf: dict[str, Any]) -> dict[str, Any]:
    form = params_of(workload, CONFIG)
    params = {**{name: param.value for name, param in form.items()}, **conf}
    run = SimpleNamespace(conf=conf, run_type="manual")
    return {"params": params, "dag": SimpleNamespace(params=form), "dag_run": run}


@pytest.mark.parametrize("workload", ["initial_ingest", "metadata_extraction", "dead_letter_replay"])
def test_a_field_that_the_form_does_not_have_is_refused(workload: str) -> None:
    assert request(workload, context(workload, {"dry_run": True})).dry_run
    with pytest.raises(ConfigError, match=r"'dryrun', which this DAG's form doesn't know; it has approve, "):
        request(workload, context(workload, {"dryrun": True}))
