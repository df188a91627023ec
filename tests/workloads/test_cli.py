"""The command line tells what the ledger holds, with ids that can be copied."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from include.cli import app
from tests.workloads.conftest import World


@pytest.fixture
def finished(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished run's name; the settings are in the environment."""
    settings = world.services.settings
    monkeypatch.setenv("AIRFLOW__BATCH_INFERENCE__STORAGE_ROOT", settings.storage_root)
    monkeypatch.setenv("AIRFLOW__BATCH_INFERENCE__LEDGER_URL", settings.ledger_url)
    world.write({"a": "text of a", "b": "text of b"})
    ref, ranges = world.begin()
    world.send(ref)
    world.end(ref, ranges)
    return ref.run


def said(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_a_run_leads_to_its_submission_and_that_to_its_story(finished: str) -> None:
    (line,) = (line for line in said("runs").splitlines() if finished in line)
    assert "succeeded" in line
    steps = said("run", finished)
    assert steps.index("prepare") < steps.index("pack ") < steps.index("reconcile") < steps.index("publish")
    assert "{" not in steps
    submission = said("submissions", finished).splitlines()[2].split()[0]
    assert f"paid by run {finished}" in said("story", submission)


def test_indexes_are_listed_and_one_without_a_standby_is_not_rolled_back(finished: str) -> None:
    assert "live" in said("indexes", "letters")
    said("rollback", "letters", code=1)


def test_dead_letters_are_listed_by_state_and_a_wrong_state_is_refused(finished: str) -> None:
    assert "Dead letters" in said("dead-letters", "--state", "open")
    said("dead-letters", "--state", "lost", code=1)
