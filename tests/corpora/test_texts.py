"""Folders: HTML without what surrounds its text, headings kept, titles and front matter understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.corpora.chunking import Chunker
from include.corpora.config import ChunkingConfig, CorpusConfig
from include.corpora.html import decode, to_markdown
from include.corpora.records import Reason
from tests.corpora.corpus import config
from tests.corpora.reading import documents, faults, read

PAGE = """<!doctype html><html><head><title> How to
 win | Site </title><style>p {}</style></head><body>
<header><a href="/">Logo</a></header><nav>Home</nav>
<main><header><h1>How to <em>win</em><a class="headerlink" href="#x">¶</a></h1></header>
<p>Some <b>bold</b> text, and a <a href=x>link</a>.<p>Second &amp; last.
<h2>Lists</h2><ul><li>one<li><p>two</p><ul><li>deep</ul><li>three</ul><ol><li>a</li><li>b</li></ol>
<table><tr><th>A<th>B<tr><td>1<td>x|y</table>
<pre><code>def f():
    return 1
</code></pre>
<img alt="A picture" src=y><script>bad()</script><div hidden>no</div><!-- no -->
<aside>Related</aside></main><footer>foot</footer></body></html>"""

MARKDOWN = """# How to win

Some bold text, and a link.

Second & last.

## Lists

- one
- two
  - deep
- three

1. a
2. b

| A | B |
| --- | --- |
| 1 | x\\|y |

```
def f():
    return 1
```

A picture"""


def folder(path: Path, **source: Any) -> CorpusConfig:
    return config(str(path), **{"kind": "folder", "partition": None, "metadata": [], **source})


class TestHtml:
    def test_text_is_kept_and_what_surrounds_it_is_not(self) -> None:
        assert to_markdown(PAGE) == (MARKDOWN, "How to win | Site")

    def test_each_heading_stays_with_its_text(self) -> None:
        text, _ = to_markdown(PAGE)
        chunks = Chunker(ChunkingConfig(format="markdown", tokens=24, overlap=0)).chunks(text)
        (lists,) = [chunk for chunk in chunks if "- one" in chunk.text]
        assert lists.heading == ("How to win", "Lists")

    def test_a_page_without_a_title_is_named_by_its_heading_or_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.html").write_text("<h2>Small</h2><p>Text.")
        (tmp_path / "b.htm").write_text("<p>Only text.")
        found = {document.id: document.title for document in documents(read(folder(tmp_path)))}
        assert found == {"a.html": "Small", "b.htm": "b"}

    def test_a_page_of_navigation_only_is_named_as_blank(self, tmp_path: Path) -> None:
        (tmp_path / "a.html").write_text("<title>T</title><nav>Home</nav><script>x</script>")
        assert [(fault.document_id, fault.reason) for fault in faults(read(folder(tmp_path)))] == [
            ("a.html", Reason.BLANK_TEXT)
        ]

    @pytest.mark.parametrize(
        "data",
        [
            "<p>café".encode(),
            "\ufeff<p>café".encode(),
            "<p>café".encode("utf-16"),
            b'<meta charset="iso-8859-1"><p>caf\xe9',
            b'<meta http-equiv="Content-Type" content="text/html; charset=windows-1252"><p>caf\xe9',
            b'<meta charset="nonsense"><p>caf\xc3\xa9',
        ],
    )
    def test_its_own_word_on_its_encoding_counts(self, data: bytes) -> None:
        assert to_markdown(decode(data))[0] == "café"

    def test_what_is_not_in_its_encoding_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.html").write_bytes(b"<p>caf\xe9")
        (fault,) = faults(read(folder(tmp_path)))
        assert (fault.reason, fault.detail) == (Reason.UNDECODABLE, "byte 6 isn't UTF-8")

    def test_nesting_without_end_is_read(self) -> None:
        assert to_markdown("<div>" * 50_000 + "deep")[0] == "deep"

    def test_a_table_for_layout_is_no_table(self) -> None:
        text, _ = to_markdown("<table><tr><td><ul><li>Menu</ul><td><h1>Title</h1><p>Text.</table>")
        assert text == "- Menu\n\n# Title\n\nText."

    @given(st.text(alphabet="ab<>/=\"' &;#phulitdr1\n", max_size=200))
    @settings(max_examples=200, deadline=None)
    def test_any_text_is_a_page(self, text: str) -> None:
        to_markdown(text)

    @given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1), min_size=1, max_size=8))
    @settings(max_examples=100, deadline=None)
    def test_every_word_of_every_block_is_kept(self, words: list[str]) -> None:
        tags = ("p", "li", "h3", "td", "pre", "blockquote", "span", "dd")
        html = "".join(f"<{tag}>{word}</{tag}>" for tag, word in zip(tags, words, strict=False))
        text, _ = to_markdown(f"<body>{html}")
        assert all(word in text for word in words)


class TestMarkdown:
    def test_front_matter_is_metadata_and_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "a.md").write_text(
            "---\ntitle: From the front\nyear: 2024\nupdated_at: 2026-01-02\n---\n# Heading\n\nText.\n"
        )
        (document,) = documents(read(folder(tmp_path, metadata={"year": "integer"})))
        assert (document.title, document.text) == ("From the front", "# Heading\n\nText.\n")
        assert document.metadata == {"year": 2024}
        assert document.updated_at is not None
        assert document.updated_at.isoformat() == "2026-01-02T00:00:00+00:00"

    def test_the_first_heading_is_the_title_where_front_matter_has_none(self, tmp_path: Path) -> None:
        (tmp_path / "a.md").write_text("---\ntags: [x]\n---\nIntro.\n\n# The title\n")
        (tmp_path / "b.md").write_text("---\nA rule above, and no front matter: at all: here\n---\n# B\n")
        (tmp_path / "c.md").write_text("---\nno end\n")
        found = {document.id: document for document in documents(read(folder(tmp_path)))}
        assert {id: document.title for id, document in found.items()} == {
            "a.md": "The title",
            "b.md": "A rule above, and no front matter: at all: here",
            "c.md": "c",
        }
        assert found["b.md"].text.startswith("---\nA rule")

    def test_front_matter_of_a_wrong_type_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.md").write_text("---\nyear: soon\n---\nText.\n")
        (fault,) = faults(read(folder(tmp_path, metadata={"year": "integer"})))
        assert (fault.document_id, fault.detail) == ("a.md", "year is a string, not a whole number")
