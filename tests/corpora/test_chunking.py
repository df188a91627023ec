"""Chunks: nothing lost, spans exact, sizes kept, ids fixed for ever."""

from __future__ import annotations

import time
import unicodedata
from functools import cache
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.corpora import tokens
from include.corpora.chunking import Chunk, Chunker, chunk_ids
from include.corpora.config import ChunkingConfig

Format = Literal["text", "markdown"]
FORMATS: list[Format] = ["text", "markdown"]

CODE = '''def grow(tree, *, by=1):
    """Make a tree taller."""
    if by < 0:
        raise ValueError(f"by is {by}, and trees don't shrink")
    for branch in tree:
        branch.height += by
    return tree
'''
TABLE = "| name | height |\n|---|---:|\n" + "".join(f"| tree {n} | {n * 3} m |\n" for n in range(60))
CJK = "吾輩は猫である。名前はまだ無い。何でも薄暗いじめじめした所で泣いていた事だけ。"
ARABIC = "ولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلًا وضميرًا. "
EMOJI = "👩‍👩‍👧‍👦 family, 👍🏽 thumb, 🇩🇪 flag, e\u0301 accent, 1️⃣ key. "
TEXTS = {
    "code": CODE * 12,
    "table": TABLE,
    "cjk": CJK * 12,
    "arabic": ARABIC * 20,
    "emoji": EMOJI * 30,
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। " * 15,
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ" * 10,
    "windows lines": "One line.\r\nAnother line.\r\n\r\n" * 60,
    "a word without end": "ab" * 3000,
    "blanks around": " \n\t" * 50 + "A sentence in the middle." + "\n \u00a0" * 50,
    "markdown": "# Trees\n\nAbout trees.\n\n## Oak\n\n"
    + "Oaks are old. " * 60
    + "\n\n```\n# no heading\n```\n",
}


@cache
def chunker(format: Format, size: int = 48, overlap: int = 6) -> Chunker:
    return Chunker(ChunkingConfig(format=format, tokens=size, overlap=overlap))


def check(text: str, chunks: list[Chunk], size: int) -> None:
    """All that is promised of the chunks of any text."""
    covered = 0
    for chunk in chunks:
        assert chunk.text == text[chunk.start : chunk.end]
        assert chunk.text.strip()
        assert not text[covered : max(covered, chunk.start)].strip(), "text between chunks is lost"
        covered = max(covered, chunk.end)
    assert not text[covered:].strip(), "text after the last chunk is lost"
    starts = [chunk.start for chunk in chunks]
    assert starts == sorted(set(starts))
    assert all(count <= size for count in tokens.count([chunk.text for chunk in chunks]))


class TestEveryText:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("name", TEXTS)
    def test_comes_out_whole(self, name: str, format: Format) -> None:
        text = TEXTS[name]
        chunks = chunker(format).chunks(text)
        check(text, chunks, 48)
        if name != "blanks around":
            assert sum(len(text[a.end : b.start]) for a, b in pairwise(chunks)) == 0
            assert (chunks[0].start, chunks[-1].end) == (0, len(text))

    @settings(max_examples=150, deadline=None)
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=2000), st.sampled_from(FORMATS))
    def test_of_any_characters_comes_out_whole(self, text: str, format: Format) -> None:
        check(text, chunker(format, 12, 3).chunks(text), 12)

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.sampled_from([*TEXTS.values(), "\n", "\n\n", "# A\n", "```\n", "    "]), max_size=4),
        st.sampled_from(FORMATS),
    )
    def test_of_real_pieces_comes_out_whole(self, pieces: list[str], format: Format) -> None:
        text = "".join(pieces)
        check(text, chunker(format).chunks(text), 48)

    def test_longer_than_a_window_comes_out_whole(self) -> None:
        for name, text in TEXTS.items():
            long = text * (40_000 // len(text))
            check(long, chunker("text").chunks(long), 48)
            assert len(long) > 20_000, name

    def test_is_cut_between_characters_as_people_see_them(self) -> None:
        for chunk in chunker("text", 24, 0).chunks(EMOJI * 30):
            assert not unicodedata.combining(chunk.text[0])
            assert chunk.text[0] not in "\u200d\ufe0f\u20e3\U0001f3fd"
            assert not chunk.text.endswith("\u200d")

    def test_without_boundaries_takes_time_with_its_length(self) -> None:
        """The splitter alone takes two minutes for these 200,000 characters."""
        started = time.process_time()
        check(text := "漢" * 200_000, chunker("text", 200, 20).chunks(text), 200)
        assert time.process_time() - started < 30

    def test_of_blanks_alone_has_no_chunk(self) -> None:
        assert chunker("text").chunks(" \n\t\u3000" * 500) == []
        assert chunker("markdown").chunks("") == []

    def test_chunks_overlap(self) -> None:
        text = "".join(f"Sentence number {n} stands here. " for n in range(200))
        chunks = chunker("text", 48, 12).chunks(text)
        assert all(later.start < earlier.end for earlier, later in pairwise(chunks))


class TestHeadings:
    TEXT = (
        "Before all.\n\n# Trees\n\nAbout trees.\n\n## Oak\n\n" + "Oaks are old and tall. " * 20 + "\n\n"
        "```sh\n# not a heading\n```\n\nBirch\n-----\n\n" + "Birches are white and thin. " * 20 + "\n\n"
        "# Stones #\n\n" + "Stones are hard. " * 20
    )

    def test_each_chunk_knows_the_headings_it_stands_under(self) -> None:
        chunks = chunker("markdown").chunks(self.TEXT)
        paths = list(dict.fromkeys(chunk.heading for chunk in chunks))
        assert paths == [(), ("Trees",), ("Trees", "Oak"), ("Trees", "Birch"), ("Stones",)]
        for chunk in chunks:
            if "Birches" in chunk.text:
                assert chunk.heading == ("Trees", "Birch")

    def test_a_heading_stays_with_the_text_below_it(self) -> None:
        chunks = chunker("markdown").chunks(self.TEXT)
        check(self.TEXT, chunks, 48)
        for heading, below in [
            ("# Trees", "About trees"),
            ("## Oak", "Oaks are old"),
            ("Birch\n-----", "Birches are"),
            ("# Stones #", "Stones are hard"),
        ]:
            assert any(heading in chunk.text and below in chunk.text for chunk in chunks)

    def test_a_heading_as_long_as_a_chunk_is_kept(self) -> None:
        for words in (8, 20, 30, 44, 60, 200):
            text = "# " + "heading " * words + "\n\n" + "Its only paragraph goes on " * 40 + "\n\n# Last"
            for overlap in (0, 6):
                chunks = chunker("markdown", 48, overlap).chunks(text)
                check(text, chunks, 48)
                assert chunks[0].start == 0

    def test_plain_text_has_no_headings(self) -> None:
        assert {chunk.heading for chunk in chunker("text").chunks(self.TEXT)} == {()}


class TestIds:
    def test_are_fixed_for_ever(self) -> None:
        assert chunk_ids("corpus", "document", "ab" * 16, ["text", "other", "text"]) == [
            "9718e4e5-0848-53f0-b350-b17dc0711f71",
            "a2d36a46-be29-5220-9d15-d67ca9c2c3ce",
            "2c8d8efa-0809-521d-a9de-462a94e6d507",
        ]

    def test_a_chunk_that_only_moved_keeps_its_id(self) -> None:
        before = chunk_ids("c", "d", "f", ["one", "two", "three"])
        after = chunk_ids("c", "d", "f", ["new", "one", "two", "three"])
        assert after[1:] == before

    def test_differ_by_corpus_document_and_chunking(self) -> None:
        ids = {
            chunk_ids(corpus, document, chunking, ["text"])[0]
            for corpus in "ab"
            for document in "ab"
            for chunking in "ab"
        }
        assert len(ids) == 8

    def test_the_same_text_twice_in_a_document_has_two_ids(self) -> None:
        assert len(set(chunk_ids("c", "d", "f", ["same"] * 3))) == 3
