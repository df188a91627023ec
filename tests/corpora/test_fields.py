"""Fields: typed metadata, the tenant, partitions by a field, and what of it doesn't go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from include.corpora.columns import content_hash
from include.corpora.config import CorpusConfig
from include.corpora.records import Reason
from include.corpora.values import TYPES
from include.ledger.connect import Connection
from include.storage import Storage
from tests.corpora.corpus import Corpus, config, document
from tests.corpora.reading import documents, ends, faults, read


def records(path: Path, *found: dict[str, Any], **source: Any) -> CorpusConfig:
    (path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in found))
    return config(f"{path}/x.jsonl", **{"partition": None, "metadata": [], **source})


class TestTypedMetadata:
    @pytest.mark.parametrize(
        ("wanted", "given", "kept"),
        [
            ("string", "x", "x"),
            ("integer", 7, 7),
            ("integer", 7.0, 7),
            ("number", 7, 7),
            ("number", 7.5, 7.5),
            ("boolean", False, False),
            ("date", "2026-01-02T23:30:00-05:00", "2026-01-02"),
            ("date", "2026-01-02", "2026-01-02"),
            ("time", "2026-01-02T23:30:00-05:00", "2026-01-03T04:30:00+00:00"),
            ("time", 0, "1970-01-01T00:00:00+00:00"),
            ("strings", ["a", "b"], ["a", "b"]),
        ],
    )
    def test_a_value_is_kept_as_its_type(self, tmp_path: Path, wanted: str, given: Any, kept: Any) -> None:
        corpus = records(tmp_path, {"id": "a", "text": "Fine.", "it": given}, metadata={"it": wanted})
        (found,) = documents(read(corpus))
        assert found.metadata == {"it": kept}
        assert type(found.metadata["it"]) is type(kept)

    @pytest.mark.parametrize(
        ("wanted", "given", "said"),
        [
            ("string", 7, "it is a number, not text"),
            ("integer", "7", "it is a string, not a whole number"),
            ("integer", 7.5, "it is 7.5, not a whole number"),
            ("integer", True, "it is True, not a whole number"),
            ("number", "7.5", "it is a string, not a number"),
            ("boolean", 1, "it is a number, not true or false"),
            ("date", "soon", "it 'soon' is no date"),
            ("date", True, "it is a boolean, not a time"),
            ("time", [], "it is a list, not a time"),
            ("strings", "a", "it is a string, not a list of text"),
            ("strings", [1], "it is a list, not a list of text"),
        ],
    )
    def test_a_wrong_type_is_named_by_file_line_and_field(
        self, tmp_path: Path, wanted: str, given: Any, said: str
    ) -> None:
        good = {"id": "good", "text": "Fine."}
        corpus = records(tmp_path, good, {"id": "a", "text": "Fine.", "it": given}, metadata={"it": wanted})
        events = read(corpus)
        (fault,) = faults(events)
        assert (fault.line, fault.document_id, fault.reason) == (2, "a", Reason.WRONG_TYPE)
        assert fault.file.endswith("/x.jsonl")
        assert fault.detail == said
        assert [found.id for found in documents(events)] == ["good"]
        assert ends(events) == {"all": True}

    def test_each_type_of_the_yaml_is_known(self) -> None:
        for wanted in TYPES:
            assert config("x", metadata={"it": wanted}).source.metadata == {"it": wanted}
        with pytest.raises(ValidationError):
            config("x", metadata={"it": "float"})

    def test_a_frozen_corpus_keeps_them(self) -> None:
        corpus = config("x", metadata={"it": "integer"})
        assert CorpusConfig.from_plan(json.loads(json.dumps(corpus.to_plan()))) == corpus


class TestTenant:
    def test_is_kept_with_each_chunk(self, tmp_path: Path, storage: Storage, ledger: Connection) -> None:
        corpus = Corpus(tmp_path / "source", storage, ledger, {"fields": {"tenant": "customer"}})
        corpus.write("2026-01-01", document("a", customer="acme"), document("b", customer=7))
        corpus.run("r")
        rows = corpus.rows("r").to_pylist()
        told = {row["document_id"]: json.loads(row["metadata"])["tenant"] for row in rows}
        assert told == {"a": "acme", "b": "7"}

    def test_a_document_without_one_is_refused(self, tmp_path: Path) -> None:
        bare = {"id": "a", "text": "Whose?"}
        corpus = records(tmp_path, bare, {**bare, "id": "b", "tenant": []}, fields={"tenant": "tenant"})
        events = read(corpus)
        assert [(fault.document_id, fault.reason) for fault in faults(events)] == [
            ("a", Reason.MISSING_TENANT),
            ("b", Reason.WRONG_TYPE),
        ]
        assert documents(events) == []


class TestPartitionsByField:
    @pytest.mark.parametrize(
        ("value", "partition"),
        [
            ("2026-01-02", "2026-01-02"),
            ("2026-01-02T23:30:00-05:00", "2026-01-03"),
            ("2026-01-02 10:00", "2026-01-02"),
            ("2026-01-02 or so", "2026-01-02 or so"),
            ("europe", "europe"),
            ("a/b", "a%2Fb"),
            ("..", "%2E%2E"),
            (2024, "2024"),
            (None, "all"),
            ("", "all"),
        ],
    )
    def test_the_day_of_a_time_or_the_text_names_it(self, tmp_path: Path, value: Any, partition: str) -> None:
        corpus = records(tmp_path, {"id": "a", "text": "Fine.", "p": value}, fields={"partition": "p"})
        assert ends(read(corpus)) == {partition: True}

    def test_only_those_asked_for_are_read(self, tmp_path: Path) -> None:
        found = [{"id": f"d{n}", "text": "Fine.", "p": f"2026-01-0{n % 3 + 1}"} for n in range(6)]
        events = read(records(tmp_path, *found, fields={"partition": "p"}), ["2026-01-02", "2026-01-09"])
        assert [each.id for each in documents(events)] == ["d1", "d4"]
        assert ends(events) == {"2026-01-09": True, "2026-01-02": True}

    def test_a_wrong_type_is_named(self, tmp_path: Path) -> None:
        events = read(records(tmp_path, {"id": "a", "text": "Fine.", "p": []}, fields={"partition": "p"}))
        assert [fault.detail for fault in faults(events)] == ["p is a list, not a time"]

    def test_of_two_versions_the_one_of_the_later_day_counts(
        self, tmp_path: Path, storage: Storage, ledger: Connection
    ) -> None:
        fields = {"partition": "day", "updated_at": None}
        corpus = Corpus(tmp_path / "source", storage, ledger, {"partition": None, "fields": fields})
        older, newer = document("a", day="2026-01-01"), document("a", "Newer. " * 30, day="2026-01-02")
        corpus.write("x", older, newer)
        for name in ("first", "again"):
            assert set(corpus.run(name).partitions) == {"2026-01-01", "2026-01-02"}
            row = ledger.execute("select partition, content_hash from documents").fetchone()
            assert row is not None
            assert (row["partition"], row["content_hash"]) == (
                "2026-01-02",
                content_hash(newer["text"].encode()),
            )


class TestWhatGoesTogether:
    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ({"kind": "sql", "url": None, "partition": None}, "connection is missing"),
            ({"kind": "sql", "url": None, "connection": "c", "partition": None}, "query is missing"),
            ({"kind": "csv", "url": None}, "url is missing"),
            ({"kind": "csv", "query": "select 1"}, "query is for sql"),
            ({"options": {"a": 1}}, "options is for a loader"),
            ({"kind": "my.loader", "url": "x", "partition": None}, "url is for files"),
            ({"fields": {"partition": "day"}}, "leave out one"),
            ({"kind": "folder", "partition": None, "fields": {"partition": "day"}}, "leave out one"),
            ({"fields": {"tenant": "t"}, "metadata": ["tenant"]}, "fields.tenant keeps the tenant"),
            ({"csv": {"encoding": "utf-16"}}, "lines can't be told apart"),
            ({"csv": {"encoding": "klingon"}}, "no such encoding"),
            (
                {"kind": "sql", "connection": "c", "query": "select :start", "url": None, "partition": None},
                "needs fields.partition",
            ),
        ],
    )
    def test_what_does_not_is_said(self, source: dict[str, Any], said: str) -> None:
        with pytest.raises(ValidationError, match=said):
            config(source.pop("url", "x"), **source)
