"""From a source to a shard: a run's window reaches the query, and what is sent went through the hook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from include.contracts import RunRef
from include.errors import ConfigError
from include.settings import Settings
from include.storage import Storage
from include.workloads import clients
from include.workloads.plan import Plan, Request, Window
from include.workloads.services import Services
from include.workloads.steps.batching import pack
from include.workloads.steps.planning import estimate, prepare

CORPUS = """
corpus: letters
source:
  kind: sql
  connection: post
  query: select id, body as text, day from letters where day >= :start and day < :end
  fields: {partition: day}
embedding: {model: text-embedding-3-small, dimensions: 8}
"""
PRESEND = "presend: include.corpora.redact.emails\n"
LETTERS = """
create table letters (id text, body text, day date);
insert into letters values ('old', 'Write to old@example.org.', '2026-01-01'),
    ('new', 'Write to new@example.org.', '2026-01-02'), ('later', 'Write to later@example.org.', '2026-01-03')
"""
WINDOW = Window("2026-01-02T02:00:00+00:00", "2026-01-03T02:00:00+00:00")


@pytest.fixture
def services(tmp_path: Path, ledger_url: str, storage: Storage) -> Services:
    """A ledger with a table of letters beside it, and a folder of corpora."""
    with psycopg.connect(ledger_url) as connection:
        connection.execute(LETTERS)

    @contextmanager
    def sql(name: str) -> Iterator[psycopg.Connection[Any]]:
        with closing(psycopg.connect(ledger_url)) as connection:
            yield connection

    (tmp_path / "letters.yaml").write_text(CORPUS + PRESEND)
    settings = Settings(storage_root=storage.root, ledger_url=ledger_url, corpora_dir=str(tmp_path))
    return Services(settings, clients.endpoint, sql)


def ref(name: str) -> RunRef:
    return RunRef(f"initial_ingest__letters/{name}", "initial_ingest", "letters", f"runs/{name}")


def sent(services: Services) -> str:
    """All request lines that were packed."""
    with services.ledger() as ledger:
        found = ledger.execute("select shard from shards").fetchall()
    paths = [f"shards/{row['shard']}/requests.jsonl" for row in found]
    return b"".join(services.storage.read_bytes(path) for path in paths).decode()


def test_a_scheduled_run_sends_its_days_as_the_hook_left_them(services: Services) -> None:
    prepare(services, ref("scheduled"), Request(window=WINDOW))
    estimate(services, ref("scheduled"))
    pack(services, ref("scheduled"))
    assert re.findall(r"Write to (\S+)\.", sent(services)) == ["[email]"]
    assert "@" not in sent(services)
    assert Plan.load(services.storage, "runs/scheduled").partitions() == {"2026-01-02": True}
    # The others' text is the same now, so they are paid for already, once landed, and joined until then.
    prepare(services, ref("manual"), Request())
    pack(services, ref("manual"))
    assert len(re.findall("Write to", sent(services))) == 1


def test_without_the_hook_it_is_another_space(services: Services, tmp_path: Path) -> None:
    prepare(services, ref("with"), Request())
    (tmp_path / "letters.yaml").write_text(CORPUS)
    prepare(services, ref("without"), Request())
    plans = [Plan.load(services.storage, f"runs/{name}") for name in ("with", "without")]
    assert plans[0].space_id != plans[1].space_id
    assert [plan.space_of().id for plan in plans] == [plan.space_id for plan in plans]
    assert plans[0].space["presend"] == "include.corpora.redact.emails@1"


def test_a_hook_that_is_not_there_stops_the_run_before_it_reads(services: Services, tmp_path: Path) -> None:
    (tmp_path / "letters.yaml").write_text(CORPUS + PRESEND.replace("emails", "nothing"))
    with pytest.raises(ConfigError, match=r"presend is 'include\.corpora\.redact\.nothing'"):
        prepare(services, ref("r"), Request())
    assert not services.storage.exists("runs/r/plan.json")
