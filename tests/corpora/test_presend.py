"""The pre-send hook: what is sent is what it left, it's part of the space, and its failures are named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include.corpora.chunking import Chunker
from include.corpora.config import CorpusConfig
from include.corpora.presend import Presend
from include.corpora.redact import cards, contacts, emails, phones
from include.corpora.tokens import count
from include.errors import ConfigError
from include.ledger.connect import Connection
from include.requests.keys import item_key
from include.storage import Storage
from tests.corpora.corpus import SPACE, Corpus, config, document
from tests.corpora.test_prepare import counts, ids

A = "2026-01-01"
EMAILS = "include.corpora.redact.emails"
MODULE = """
def hook(text):
    if "poison" in text:
        raise ValueError("it can't be redacted")
    if "number" in text:
        return 7
    if "nothing" in text:
        return " "
    if "half" in text:
        return "\\ud800"
    return text.upper()
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module `my_hooks` on the path, as a project's own would be."""
    file = tmp_path / "my_hooks.py"
    file.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop("my_hooks", None)


def corpus_of(tmp_path: Path, storage: Storage, ledger: Connection, **more: Any) -> Corpus:
    folder = tmp_path / "source"
    whole = config(f"{folder}/*.jsonl").model_dump() | more
    return Corpus(folder, storage, ledger, {}, CorpusConfig.model_validate(whole))


class TestRows:
    TEXT = "Write to ada@example.org, or don't. " * 20

    def test_what_is_sent_is_what_the_hook_left(
        self, tmp_path: Path, storage: Storage, ledger: Connection
    ) -> None:
        corpus = corpus_of(tmp_path, storage, ledger, presend=EMAILS)
        corpus.write(A, document("a", self.TEXT), document("b", "Nothing to hide."))
        report = corpus.run("r")
        rows = corpus.rows("r").to_pylist()
        chunks = [row for row in rows if row["document_id"] == "a"]
        assert len(chunks) > 1
        for row in chunks:
            assert row["input"] == row["text"].replace("ada@example.org", "[email]")
            assert "ada@example.org" in row["text"]
            assert row["key"] == item_key(SPACE, row["input"])
            assert row["tokens"] == count([row["input"]])[0]
        (plain,) = [row for row in rows if row["document_id"] == "b"]
        assert (plain["input"], plain["key"]) == (None, item_key(SPACE, "Nothing to hide."))
        assert report.tokens == sum(row["tokens"] for row in rows)

    def test_the_index_may_hold_texts_as_they_were_sent(
        self, tmp_path: Path, storage: Storage, ledger: Connection
    ) -> None:
        corpus = corpus_of(tmp_path, storage, ledger, presend=EMAILS, presend_text=True)
        corpus.write(A, document("a", self.TEXT))
        corpus.run("r")
        rows = corpus.rows("r")
        assert not any("@" in str(text) for text in rows["text"].to_pylist())
        assert rows["input"].null_count == rows.num_rows
        assert rows["key"].to_pylist() == [item_key(SPACE, text) for text in rows["text"].to_pylist()]
        chunking = config("x").chunking
        (part,) = storage.list(f"corpora/small/chunks/{chunking.fingerprint}/{A}")
        stored = corpus.table(part)["text"].to_pylist()
        assert stored == [chunk.text for chunk in Chunker(chunking).chunks(self.TEXT)]

    @pytest.mark.parametrize(
        ("word", "said"),
        [
            ("poison", 'my_hooks.hook failed on chunk 0: ValueError("it can\'t be redacted")'),
            ("number", "my_hooks.hook gave a number for chunk 0, not text"),
            ("nothing", "my_hooks.hook left nothing of chunk 0"),
            ("half", "my_hooks.hook gave half a character for chunk 0"),
        ],
    )
    def test_a_document_it_fails_on_is_named_and_the_rest_goes_on(
        self, tmp_path: Path, storage: Storage, ledger: Connection, hooks: Path, word: str, said: str
    ) -> None:
        corpus = corpus_of(tmp_path, storage, ledger, presend="my_hooks:hook")
        corpus.write(A, document("a"), document("b"), document("c"))
        assert counts(corpus.run("first")) == {"new": 3}
        corpus.write(A, document("a"), document("b", f"A {word} in it."))
        report = corpus.run("second")
        assert counts(report) == {"unchanged": 1, "deleted": 1, "bad": 1}
        assert report.bad_input == {"presend_failed": 1}
        (row,) = corpus.bad_input("second")
        assert (row["document_id"], row["line"], row["detail"]) == ("b", 2, said)
        assert ids(corpus.rows("second")) == {"a"}
        # The earlier version of what can't be sent now stays; only what is gone is deleted.
        assert corpus.deleted("second") == ["c"]


class TestSpace:
    def space(self, presend: str | None) -> str:
        whole = config("x").model_dump() | {"presend": presend}
        return CorpusConfig.model_validate(whole).space("here").id

    def test_another_hook_is_another_space(self, hooks: Path) -> None:
        spaces = {self.space(None), self.space(EMAILS), self.space("include.corpora.redact.cards")}
        assert len(spaces | {self.space("my_hooks.hook")}) == 4
        assert self.space("my_hooks.hook") == self.space("my_hooks:hook")

    def test_a_hook_that_changes_is_another_space(self, hooks: Path) -> None:
        before = self.space("my_hooks.hook")
        sys.modules.pop("my_hooks")
        hooks.write_text(MODULE.replace("upper", "lower") + "# and longer, so that it's read anew\n")
        assert self.space("my_hooks.hook") != before

    def test_its_version_counts_instead_of_its_source(self, hooks: Path) -> None:
        found = set()
        for case, version in (("upper", "1"), ("lower", "1"), ("lower", "22")):
            sys.modules.pop("my_hooks", None)
            hooks.write_text(MODULE.replace("upper", case) + f"hook.version = '{version}'\n")
            found.add(self.space("my_hooks.hook"))
        assert len(found) == 2

    def test_texts_as_sent_are_another_index_in_the_same_space(self) -> None:
        whole = config("x").model_dump() | {"presend": EMAILS}
        plain = CorpusConfig.model_validate(whole)
        sent = CorpusConfig.model_validate(whole | {"presend_text": True})
        space = plain.space("here").id
        assert sent.space("here").id == space
        assert sent.index_version(space) != plain.index_version(space)

    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("include.corpora.redact.nothing", "can't be loaded"),
            ("include.corpora.redact.re", "can't be called"),
            ("builtins.str.upper", "can't be loaded"),
            ("builtins.str", "give it an attribute `version`"),
        ],
    )
    def test_a_hook_that_is_none_is_an_error_of_the_configuration(self, path: str, said: str) -> None:
        with pytest.raises(ConfigError, match=f"presend is '{path}'.*{said}"):
            Presend(path)


class TestBundledHooks:
    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("ada@example.org", "[email]"),
            ("<Ada.Lovelace+x@mail.example.co.uk>,", "<[email]>,"),
            ("mailto:ada@example.org.", "mailto:[email]."),
            ("müller@bücher.example", "[email]"),
            ("@decorator and user@host", "@decorator and user@host"),
            ("a @ b.com", "a @ b.com"),
        ],
    )
    def test_addresses(self, text: str, left: str) -> None:
        assert emails(text) == left

    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("4111 1111 1111 1111", "[card]"),
            ("card 4111-1111-1111-1111.", "card [card]."),
            ("378282246310005", "[card]"),
            ("4111 1111 1111 1112", "4111 1111 1111 1112"),
            ("id 12345678901234567890123", "id 12345678901234567890123"),
        ],
    )
    def test_card_numbers(self, text: str, left: str) -> None:
        assert cards(text) == left

    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("Call +49 (0)30 1234567 now", "Call [phone] now"),
            ("+1-202-555-0143", "[phone]"),
            ("(202) 555-0143", "[phone]"),
            ("202-555-0143,", "[phone],"),
            ("0044 20 7946 0958", "[phone]"),
            ("2026-01-02", "2026-01-02"),
            ("192.168.100.200", "192.168.100.200"),
            ("version 3.11.7, 1,234,567 of 20.000.000", "version 3.11.7, 1,234,567 of 20.000.000"),
        ],
    )
    def test_phone_numbers(self, text: str, left: str) -> None:
        assert phones(text) == left

    def test_all_of_them_at_once(self) -> None:
        text = "ada@example.org, 4111 1111 1111 1111, +1-202-555-0143"
        assert contacts(text) == "[email], [card], [phone]"

    @pytest.mark.timeout(20)
    @pytest.mark.parametrize(
        "text", ["a" * 200_000, "1 " * 100_000, "a.b@" * 50_000, "+1" * 100_000, "(12" * 60_000]
    )
    def test_no_text_takes_them_long(self, text: str) -> None:
        contacts(text)
