"""PDF and Office files: their text with its headings, a damaged one named, the parser optional."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from include.contracts import PROJECT_ROOT
from include.corpora.records import Reason
from tests.corpora.reading import documents, faults, read
from tests.corpora.test_texts import folder

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"

WITHOUT = """
import sys
sys.modules["markitdown"] = None
from include.corpora.sources import Source
from include.errors import ConfigError
from tests.corpora.test_texts import folder
try:
    Source(folder(sys.argv[1]).source)
except ConfigError as error:
    print(error)
"""


def pdf(text: str) -> bytes:
    """A PDF of one page with this line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        data
        + b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
        + b"trailer\n<< /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
        + b"startxref\n%d\n%%%%EOF\n" % len(data)
    )


def docx(heading: str, text: str) -> bytes:
    """A Word file of a heading and a paragraph."""
    style = '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
    body = f"<w:p>{style}<w:r><w:t>{heading}</w:t></w:r></w:p><w:p><w:r><w:t>{text}</w:t></w:r></w:p>"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main}.document.main+xml"/>'
        f'<Override PartName="/word/styles.xml" ContentType="{main}.styles+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f'<Relationship Id="r1" Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f'<Relationship Id="r1" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>',
        "word/styles.xml": f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="Heading1">'
        '<w:name w:val="heading 1"/></w:style></w:styles>',
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_their_text_is_kept_with_its_headings(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    pptx = pytest.importorskip("pptx")
    (tmp_path / "a.pdf").write_bytes(pdf("Words on a page."))
    (tmp_path / "b.docx").write_bytes(docx("The heading", "Words in a paragraph."))
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "The slide", "A point."
    deck.save(tmp_path / "c.pptx")
    book = openpyxl.Workbook()
    book.active.append(["name", "year"])
    book.active.append(["Ada", 1815])
    book.save(tmp_path / "d.xlsx")
    found = {document.id: document for document in documents(read(folder(tmp_path)))}
    assert {id: document.text.strip() for id, document in found.items()} == {
        "a.pdf": "Words on a page.",
        "b.docx": "# The heading\n\nWords in a paragraph.",
        "c.pptx": "# The slide\nA point.",
        "d.xlsx": "## Sheet\n| name | year |\n| --- | --- |\n| Ada | 1815 |",
    }
    titles = {id: document.title for id, document in found.items()}
    assert titles == {"a.pdf": "a", "b.docx": "The heading", "c.pptx": "The slide", "d.xlsx": "Sheet"}


@pytest.mark.parametrize("end", ["pdf", "docx", "pptx", "xlsx"])
def test_a_damaged_one_is_named_and_the_rest_goes_on(tmp_path: Path, end: str) -> None:
    pytest.importorskip("markitdown")
    (tmp_path / f"a.{end}").write_bytes(docx("x", "y")[:300])
    (tmp_path / "b.md").write_text("Fine.")
    events = read(folder(tmp_path))
    assert [(fault.document_id, fault.reason) for fault in faults(events)] == [
        (f"a.{end}", Reason.UNREADABLE_FILE)
    ]
    assert [document.id for document in documents(events)] == ["b.md"]


def test_without_the_parser_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Fine.")
    (tmp_path / "b.pdf").write_bytes(pdf("x"))
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        cwd=PROJECT_ROOT,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "source.url matches b.pdf" in said
    assert "requirements-extras.txt" in said
