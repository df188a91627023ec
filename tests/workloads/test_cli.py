"""The command line tells what the ledger holds, with ids that can be copied."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from include.batches import runs
from include.cli import app
from include.workloads import steps
from tests.workloads.conftest import World


@pytest.fixture
def installed(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose settings are in the environment."""
    settings = world.services.settings
    monkeypatch.setenv("AIRFLOW__BATCH_INFERENCE__STORAGE_ROOT", settings.storage_root)
    monkeypatch.setenv("AIRFLOW__BATCH_INFERENCE__LEDGER_URL", settings.ledger_url)
    return world


@pytest.fixture
def finished(installed: World) -> str:
    """A finished run's name."""
    world = installed
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


def test_what_a_run_waits_for_is_told_until_it_has_it(installed: World) -> None:
    installed.write({"a": "text of a", "b": "text of b"})
    installed.limit(requests_per_batch=1, live_batches=1)
    ref, _, (first, second) = installed.packed()
    for part in (first, second):
        steps.submit(installed.services, ref, part)
    waits = "1 of 1 live batches are taken"
    assert f"1 shard: {waits}" in said("runs") and waits in said("run", ref.run)
    installed.advance(3600)
    steps.watch(installed.services, ref, first)
    steps.submit(installed.services, ref, second)
    assert waits not in said("runs") and waits not in said("run", ref.run)


def test_a_service_that_is_away_is_waited_for_and_told(installed: World) -> None:
    installed.write({"a": "text of a"})
    ref, _, (part,) = installed.packed()
    installed.emulator.faults({"on": "files.create", "do": "status", "status": 503})
    assert steps.submit(installed.services, ref, part) is not None
    assert "1 shard: upload of" in said("runs") and "HTTP 503" in said("run", ref.run)


def test_a_run_that_stopped_says_why_and_is_let_go_on(installed: World) -> None:
    installed.write({"a": "text of a"})
    ref, _, (part,) = installed.packed()
    with installed.services.ledger() as ledger:
        runs.stop(ledger, ref.run, "too much fails")
    assert "too much fails" in said("runs") and "sends nothing more: too much fails" in said("run", ref.run)
    said("resume", ref.run)
    assert steps.submit(installed.services, ref, part) is None


def test_a_run_that_was_cancelled_is_not_let_go_on(installed: World) -> None:
    installed.write({"a": "text of a"})
    ref, _, _ = installed.packed()
    said("cancel", ref.run)
    assert "was cancelled, and sends nothing more; clear its task `prepare`" in said(
        "resume", ref.run, code=1
    )


def test_the_ledger_is_compared_with_the_provider_and_uploads_in_vain_are_deleted(installed: World) -> None:
    installed.write({"a": "text of a"})
    ref, _, (part,) = installed.packed()
    installed.emulator.faults({"on": "batches.create", "do": "status", "status": 503})
    steps.submit(installed.services, ref, part)
    assert "0 batches and 1 files of ours" in said("compare")
    with installed.services.ledger() as ledger:
        ledger.execute("update submissions set state = 'void'")
    found = said("compare", "--clean")
    assert "Files that no batch uses" in found and "1 files deleted" in found
    assert "0 batches and 0 files of ours" in said("compare")
