"""The main job on a real scheduler and triggerer: what is sent, what is reused, what readers see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.emulators import start_emulator
from tests.integration.corpora import PARTITIONS, Corpus, batches_take, make_corpus
from tests.stack import FIRST_DAG, IntegrationStack


@pytest.fixture
def connection(stack: IntegrationStack) -> Iterator[str]:
    """A connection in Airflow's own database, which the test may point elsewhere."""
    name = "openai_other"
    body = {
        "connection_id": name,
        "conn_type": "openai",
        "host": f"{stack.emulator_url}/openai/v1",
        "password": "emulator",
        "extra": json.dumps({"service": "emulator"}),
    }
    stack.api.call("POST", "/connections", body)
    yield name
    stack.api.call("DELETE", f"/connections/{name}")


def point(stack: IntegrationStack, connection: str, url: str, service: str) -> None:
    """Point a connection to another place, under the name of a service."""
    body = {
        "connection_id": connection,
        "conn_type": "openai",
        "host": f"{url}/openai/v1",
        "password": "emulator",
        "extra": json.dumps({"service": service}),
    }
    stack.api.call("PATCH", f"/connections/{connection}", body)


def test_what_was_paid_for_once_serves_every_later_run(stack: IntegrationStack) -> None:
    corpus = make_corpus(stack)
    paid = first_run_defers_and_publishes(corpus)
    second_run_sends_nothing(corpus, paid)
    dropped_index_is_refilled(corpus)
    changed_metadata_is_no_request(corpus)
    assert corpus.charges_since(paid.before) == paid.charged


@dataclass(frozen=True)
class Paid:
    """What the first run was charged, by custom_id, and the books before it."""

    before: dict[str, int]
    charged: dict[str, int]
    items: int


def first_run_defers_and_publishes(corpus: Corpus) -> Paid:
    stack = corpus.stack
    before = corpus.charges()
    with batches_take(stack, 3600):
        stack.api.unpause(corpus.dag_id)
        run_id = stack.api.trigger(corpus.dag_id)
        stack.wait_until(
            lambda: stack.states(corpus.dag_id, run_id).get("shards.wait_for_batch[0]") == "deferred",
            180,
            "wait_for_batch never deferred",
        )
    httpx.post(f"{stack.emulator_url}/_control/clock", json={"advance": 3600}).raise_for_status()
    stack.api.wait(corpus.dag_id, run_id, 240)
    report = stack.report(corpus.dag_id, run_id)
    assert report["state"] == "succeeded"
    assert report["requests_sent"] == report["requests_landed"] == report["items"] > 0
    assert report["chunks_indexed"] == report["chunks"] == len(corpus.rows())
    assert report["dead_letters"] == 0
    assert report["dollars_spent"] == pytest.approx(report["dollars_saved"]) != 0
    charged = corpus.charges_since(before)
    assert len(charged) == report["requests_sent"]
    assert set(charged.values()) == {1}
    return Paid(before, charged, report["items"])


def second_run_sends_nothing(corpus: Corpus, paid: Paid) -> None:
    report = corpus.run()
    assert report["requests_sent"] == 0
    assert report["requests_reused"] == paid.items
    assert report["dollars_spent"] == 0


def dropped_index_is_refilled(corpus: Corpus) -> None:
    from include.indexes.live import read_pointer
    from include.stores.registry import open_store

    before = corpus.rows()
    pointer = read_pointer(corpus.storage, corpus.name)
    open_store(pointer.store, pointer.store_url).drop(pointer.index)
    assert corpus.run()["requests_sent"] == 0
    assert corpus.rows() == before


def changed_metadata_is_no_request(corpus: Corpus) -> None:
    before = corpus.rows()
    partition = PARTITIONS[0]
    changed = [{**row, "topic": "retitled"} for row in corpus.documents[partition]]
    corpus.write({partition: changed})
    assert corpus.run()["requests_sent"] == 0
    after = corpus.rows()
    assert after.keys() == before.keys()
    ids = {row["id"] for row in changed}
    topics = {
        row["document_id"]: json.loads(row["metadata"])["topic"]
        for row in after.values()
        if row["document_id"] in ids
    }
    assert set(topics.values()) == {"retitled"}
    assert topics.keys() == ids


def test_a_manual_run_loads_every_partition_whatever_its_dates(stack: IntegrationStack) -> None:
    corpus = make_corpus(stack, scheduled=True)
    stack.api.unpause(corpus.dag_id)
    body = {"dag_run_id": "dated", "logical_date": "2026-01-02T00:00:00Z", "conf": {}}
    stack.api.call("POST", f"/dags/{corpus.dag_id}/dagRuns", body)
    stack.api.wait(corpus.dag_id, "dated", 240)
    assert stack.report(corpus.dag_id, "dated")["partitions"] == len(PARTITIONS)


def test_a_backfill_of_three_days_loads_each_partition_once_and_publishes_when_all_are_there(
    stack: IntegrationStack,
) -> None:
    corpus = make_corpus(stack, scheduled=True)
    stack.api.unpause(corpus.dag_id)
    stack.api.backfill(corpus.dag_id, "2026-01-01T02:00:00Z", "2026-01-03T02:00:00Z")

    def runs() -> list[dict[str, str]]:
        return [run for run in stack.api.runs(corpus.dag_id) if run["run_type"] == "backfill"]

    stack.wait_until(lambda: len(runs()) == 3, 60, "the backfill has no three runs")
    for run in runs():
        stack.api.wait(corpus.dag_id, run["dag_run_id"], 240)
    loaded = stack.rows(
        "select counts -> 'prepare' -> 'partitions' as partitions, counts -> 'pack' ->> 'sent' as sent"
        " from runs where corpus = %(corpus)s and run like '%%backfill%%' order by run",
        {"corpus": corpus.name},
    )
    assert [list(row["partitions"]) for row in loaded] == [[day] for day in PARTITIONS]
    documents = {row["document_id"] for row in corpus.rows().values()}
    assert documents == {row["id"] for rows in corpus.documents.values() for row in rows}


def test_another_service_is_asked_anew_and_the_same_one_on_another_port_is_not(
    stack: IntegrationStack, connection: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    corpus = make_corpus(stack, connection=connection)
    first = corpus.run()
    assert first["requests_sent"] == first["items"]
    options = ("--embeddings", "hash", "--batch-seconds", "1")
    for second in start_emulator(tmp_path_factory.mktemp("second"), *options):
        point(stack, connection, second.url, "emulator")
        moved = corpus.run()
        assert moved["requests_sent"] == 0
        assert second.state()["charges"] == {}
        point(stack, connection, second.url, "second")
        other = corpus.run()
        assert other["requests_sent"] == other["items"] == first["items"]
        assert len(second.state()["charges"]) == first["items"]
        point(stack, connection, stack.emulator_url, "emulator")


def test_nothing_is_spent_or_published_before_it_may_be(stack: IntegrationStack) -> None:
    corpus = make_corpus(stack)
    batches = stack.emulator_state()["batches"]

    report = corpus.run({"dry_run": True})
    assert report["state"] == "dry_run"
    assert report["items"] > 0
    assert report["dollars_estimated"] > 0

    run_id = stack.run(corpus.dag_id, {"budget_usd": 0.0000001}, expect=("failed",))
    assert stack.states(corpus.dag_id, run_id)["estimate"] == "failed"
    assert "over the run's budget" in stack.api.log(corpus.dag_id, run_id, "estimate")
    assert stack.report(corpus.dag_id, run_id)["state"] == "failed"
    assert stack.emulator_state()["batches"] == batches

    limited = corpus.run({"limit": 3})
    assert limited["documents_read"] == 3
    assert not corpus.storage.exists(f"corpora/{corpus.name}/live.json")

    run_id = a_person_is_asked(corpus)
    assert stack.report(corpus.dag_id, run_id)["requests_reused"] == limited["requests_sent"]
    assert corpus.storage.exists(f"corpora/{corpus.name}/live.json")


def a_person_is_asked(corpus: Corpus) -> str:
    """A run that waits for an approval, and gets it; returns its id."""
    stack = corpus.stack
    run_id = stack.api.trigger(corpus.dag_id, {"approve": True})

    def state() -> str | None:
        return stack.states(corpus.dag_id, run_id).get("approve")

    stack.wait_until(lambda: state() == "awaiting_input", 120, "approve doesn't wait for a person")
    assert not stack.rows("select * from run_shards where run like %(run)s", {"run": f"%{run_id}"})
    path = f"/dags/{corpus.dag_id}/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    assert "requests" in stack.api.call("GET", path)["body"]

    def approved() -> bool:
        # An answer within the second is taken for a lost task (apache/airflow #71580), and asked again.
        if state() == "awaiting_input":
            stack.api.call("PATCH", path, {"chosen_options": ["Approve"], "params_input": {}})
        return state() == "success"

    stack.wait_until(approved, 120, "the approval isn't taken")
    stack.api.wait(corpus.dag_id, run_id, 240)
    return run_id


def test_one_invalid_yaml_takes_away_only_its_own_dag_and_says_why(stack: IntegrationStack) -> None:
    broken = stack.corpora / "broken.yaml"
    broken.write_text("corpus: broken\nsource: {kind: jsonl}\n", encoding="utf-8")
    try:
        stack.wait_until(lambda: bool(stack.api.import_errors()), 120, "no import error is shown")
        ((file, text),) = stack.api.import_errors().items()
        assert file.endswith("invalid_corpora.py")
        assert "broken.yaml: " in text
        assert "embedding: is missing" in text
        stack.api.reparse(FIRST_DAG)
        assert FIRST_DAG in stack.api.dags()
    finally:
        broken.unlink()
        stack.wait_until(lambda: not stack.api.import_errors(), 120, "the import error stays")
    assert FIRST_DAG in stack.api.dags()
