"""Loaders of one's own: called with their options, streamed, and told what is wrong with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from include.corpora.config import CorpusConfig
from include.corpora.records import Reason
from include.corpora.sources import Source
from include.errors import ConfigError, StorageError
from tests.corpora.corpus import config
from tests.corpora.reading import documents, ends, faults, read

MODULE = """
made = []

def read(options, partitions):
    for n in range(options["count"]):
        made.append(n)
        yield {"id": n, "text": f"Text {n} of {options['space']}.", "day": f"2026-01-0{n % 3 + 1}"}

def told(options, partitions):
    yield {"id": "partitions", "text": repr(partitions)}

def mixed(options, partitions):
    yield {"id": "a", "text": "Fine."}
    yield ["no", "dict"]
    yield {"id": "b"}
    yield {"id": "c", "text": "Fine too."}

def breaks(options, partitions):
    yield {"id": "a", "text": "Fine."}
    raise ConnectionError("the wiki is down")

def returns_a_number(options, partitions):
    return 7

def wants_nothing():
    return []

number = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package `my_loaders` on the path, as a project's own would be."""
    (tmp_path / "my_loaders.py").write_text(MODULE)
    (tmp_path / "my_broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_loaders", None)


def loader(kind: str, **source: Any) -> CorpusConfig:
    return config(None, kind=kind, partition=None, metadata=[], **source)


class TestReading:
    @pytest.mark.parametrize("path", ["my_loaders.read", "my_loaders:read"])
    def test_what_it_yields_are_documents(self, path: str) -> None:
        events = read(loader(path, options={"count": 2, "space": "X"}))
        assert [(document.id, document.text) for document in documents(events)] == [
            ("0", "Text 0 of X."),
            ("1", "Text 1 of X."),
        ]
        assert [(document.file, document.line) for document in documents(events)] == [(path, 1), (path, 2)]
        assert ends(events) == {"all": True}

    def test_it_is_streamed(self) -> None:
        events = Source(loader("my_loaders.read", options={"count": 1000, "space": "X"}).source).read()
        next(events)
        assert sys.modules["my_loaders"].made == [0]

    def test_it_is_told_the_partitions(self) -> None:
        (document,) = documents(read(loader("my_loaders.told")))
        assert document.text == "None"
        corpus = loader("my_loaders.told", fields={"partition": "day"})
        (document,) = documents(read(corpus, ["all", "2026-01-01"]))
        assert document.text == "['all', '2026-01-01']"

    def test_it_may_yield_more_than_it_was_asked_for(self) -> None:
        corpus = loader("my_loaders.read", options={"count": 9, "space": "X"}, fields={"partition": "day"})
        events = read(corpus, ["2026-01-02"])
        assert [document.id for document in documents(events)] == ["1", "4", "7"]
        assert ends(events) == {"2026-01-02": True}

    def test_bad_records_are_named_by_number_and_the_rest_goes_on(self) -> None:
        events = read(loader("my_loaders.mixed"))
        assert [(fault.line, fault.reason) for fault in faults(events)] == [
            (2, Reason.NOT_AN_OBJECT),
            (3, Reason.MISSING_TEXT),
        ]
        assert [document.id for document in documents(events)] == ["a", "c"]


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("my_loaders.nothing", "can't be loaded: AttributeError"),
            ("nowhere.read", "can't be loaded: ModuleNotFoundError"),
            ("my_broken.read", "can't be loaded: ModuleNotFoundError"),
            ("my_loaders.number", "is of type int and can't be called"),
            ("my_loaders.wants_nothing", r"can't be called as loader\(options, partitions\)"),
            ("my_loaders.returns_a_number", "must yield dicts"),
        ],
    )
    def test_a_broken_loader_is_an_error_of_the_configuration(self, path: str, said: str) -> None:
        with pytest.raises(ConfigError, match=rf"source\.kind is '{path}'.*{said}"):
            read(loader(path))

    def test_one_that_fails_while_it_reads_says_after_which_record(self) -> None:
        with pytest.raises(StorageError, match=r"my_loaders\.breaks failed after record 1.*the wiki is down"):
            read(loader("my_loaders.breaks"))
