"""Sources: streamed, partition by partition, with every fault named and the good rest kept."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pyarrow as pa
import pytest

from include.corpora.config import CorpusConfig
from include.corpora.records import Reason
from include.corpora.sources import Source
from include.errors import StorageError
from tests.corpora.corpus import config
from tests.corpora.reading import documents, ends, faults, read

GOOD = b'{"id": "good", "text": "fine"}\n'


class TestJsonl:
    def test_fields_are_mapped(self, tmp_path: Path) -> None:
        record = {
            "key": 7,
            "body": "Text.",
            "name": "T",
            "link": "https://x",
            "at": "2026-01-02T03:04:05+01:00",
            "topic": ["a"],
            "other": 1,
        }
        (tmp_path / "2026-01-02.jsonl").write_text(json.dumps(record))
        fields = {"id": "key", "text": "body", "title": "name", "url": "link", "updated_at": "at"}
        (document,) = documents(read(config(f"{tmp_path}/*.jsonl", fields=fields)))
        assert (document.id, document.text, document.title, document.url) == ("7", "Text.", "T", "https://x")
        assert document.updated_at is not None
        assert document.updated_at.isoformat() == "2026-01-02T03:04:05+01:00"
        assert document.metadata == {"topic": ["a"]}
        assert (document.partition, document.line) == ("2026-01-02", 1)
        assert document.file.endswith("/2026-01-02.jsonl")

    @pytest.mark.parametrize(
        ("end", "pack"),
        [
            ("", bytes),
            (".gz", gzip.compress),
            (".zst", lambda data: pa.compress(data, codec="zstd", asbytes=True)),
        ],
    )
    def test_compressed_files_are_unpacked(
        self, tmp_path: Path, end: str, pack: Callable[[bytes], bytes]
    ) -> None:
        (tmp_path / f"x.jsonl{end}").write_bytes(pack(GOOD))
        assert [document.id for document in documents(read(config(f"{tmp_path}/*.jsonl*")))] == ["good"]

    def test_any_fsspec_url_will_do(self) -> None:
        with fsspec.open("memory://bucket/2026-01-01/x.jsonl", "wb") as file:
            file.write(GOOD)
        assert ends(read(config("memory://bucket/**/*.jsonl"))) == {"2026-01-01": True}

    def test_lines_end_at_line_feeds_only(self, tmp_path: Path) -> None:
        text = "one\u2028two\u0085three\x0bfour\rfive"
        line = json.dumps({"id": "1", "text": text}, ensure_ascii=False).encode()
        (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n" + GOOD)
        events = read(config(f"{tmp_path}/*.jsonl"))
        assert [document.text for document in documents(events)] == [text, "fine"]
        assert faults(events) == []


class TestPartitions:
    def test_only_those_asked_for_are_opened(self, tmp_path: Path) -> None:
        for day in (1, 2, 3):
            (tmp_path / f"2026-01-0{day}.jsonl").write_bytes(GOOD)
        source = Source(config(f"{tmp_path}/*.jsonl").source)
        (tmp_path / "2026-01-01.jsonl").unlink()
        events = list(source.read(["2026-01-02", "2026-01-09"]))
        assert ends(events) == {"2026-01-02": True}
        assert faults(events) == []

    def test_are_read_newest_first(self, tmp_path: Path) -> None:
        for day in (1, 3, 2):
            (tmp_path / f"2026-01-0{day}.jsonl").write_bytes(GOOD)
        assert list(ends(read(config(f"{tmp_path}/*.jsonl")))) == ["2026-01-03", "2026-01-02", "2026-01-01"]

    def test_a_path_without_a_match_is_in_the_partition_all(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_bytes(GOOD)
        assert ends(read(config(f"{tmp_path}/*.jsonl"))) == {"all": True}
        assert ends(read(config(f"{tmp_path}/*.jsonl", partition=None))) == {"all": True}

    def test_a_date_above_the_source_is_not_the_files(self, tmp_path: Path) -> None:
        folder = tmp_path / "backup-2020-01-01"
        folder.mkdir()
        (folder / "2026-01-01.jsonl").write_bytes(GOOD)
        assert ends(read(config(f"{folder}/*.jsonl"))) == {"2026-01-01": True}

    def test_a_partitions_name_is_safe_as_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "b.jsonl").write_bytes(GOOD)
        assert list(ends(read(config(f"{tmp_path}/**/*.jsonl", partition=r"a/b")))) == ["a%2Fb"]


#: One bad line each: its bytes, the reason, whether its id is known, whether the document is kept.
BAD_LINES: list[tuple[bytes, Reason, bool, bool]] = [
    (b"", Reason.BLANK_LINE, False, False),
    (b"   \t", Reason.BLANK_LINE, False, False),
    (b'{"id": "x", "text": "caf\xe9"}', Reason.UNDECODABLE, False, False),
    (b"\xff\xfe{\x00}\x00", Reason.UNDECODABLE, False, False),
    (b'{"id": "x", "text": "no end', Reason.NOT_JSON, False, False),
    (b'{"id": "x", "text": "a"} {"id": "y"}', Reason.NOT_JSON, False, False),
    (b"{'id': 'x'}", Reason.NOT_JSON, False, False),
    (b'{"id": "x", "text": "a", "topic": NaN}', Reason.NOT_JSON, False, False),
    (b'{"id": "x", "text": "raw \x01 control"}', Reason.NOT_JSON, False, False),
    (b"[" * 100_000, Reason.NOT_JSON, False, False),
    (b'<doc id="x"/>', Reason.NOT_JSON, False, False),
    (b"null", Reason.NOT_AN_OBJECT, False, False),
    (b'"text"', Reason.NOT_AN_OBJECT, False, False),
    (b"[1, 2]", Reason.NOT_AN_OBJECT, False, False),
    (b"7", Reason.NOT_AN_OBJECT, False, False),
    (b"{}", Reason.MISSING_ID, False, False),
    (b'{"text": "a"}', Reason.MISSING_ID, False, False),
    (b'{"id": null, "text": "a"}', Reason.MISSING_ID, False, False),
    (b'{"id": "", "text": "a"}', Reason.MISSING_ID, False, False),
    (b'{"id": "  ", "text": "a"}', Reason.BAD_ID, False, False),
    (b'{"id": "a\\u0000b", "text": "a"}', Reason.BAD_ID, False, False),
    (b'{"id": "\\ud800", "text": "a"}', Reason.BAD_ID, False, False),
    (b'{"id": "' + b"i" * 2000 + b'", "text": "a"}', Reason.BAD_ID, False, False),
    (b'{"id": ["x"], "text": "a"}', Reason.WRONG_TYPE, False, False),
    (b'{"id": true, "text": "a"}', Reason.WRONG_TYPE, False, False),
    (b'{"id": 1.5, "text": "a"}', Reason.WRONG_TYPE, False, False),
    (b'{"id": "x"}', Reason.MISSING_TEXT, True, False),
    (b'{"id": "x", "text": null}', Reason.MISSING_TEXT, True, False),
    (b'{"id": "x", "text": 5}', Reason.WRONG_TYPE, True, False),
    (b'{"id": "x", "text": ["a"]}', Reason.WRONG_TYPE, True, False),
    (b'{"id": "x", "text": ""}', Reason.BLANK_TEXT, True, False),
    (b'{"id": "x", "text": " \\n\\u3000"}', Reason.BLANK_TEXT, True, False),
    (b'{"id": "x", "text": "\\u0000"}', Reason.BLANK_TEXT, True, False),
    (b'{"id": "x", "text": "a", "title": 5}', Reason.WRONG_TYPE, True, False),
    (b'{"id": "x", "text": "a", "url": {}}', Reason.WRONG_TYPE, True, False),
    (b'{"id": "x", "text": "a", "updated_at": "soon"}', Reason.BAD_DATE, True, False),
    (b'{"id": "x", "text": "a", "updated_at": "2026-13-45"}', Reason.BAD_DATE, True, False),
    (b'{"id": "x", "text": "a", "updated_at": 1e30}', Reason.BAD_DATE, True, False),
    (b'{"id": "x", "text": "a", "updated_at": []}', Reason.WRONG_TYPE, True, False),
    (b'{"id": "x", "text": "a\\u0000b"}', Reason.NULL_BYTES, True, True),
    (b'{"id": "x", "text": "a", "title": "t\\u0000"}', Reason.NULL_BYTES, True, True),
    (b'{"id": "x", "text": "a", "topic": ["t\\u0000"]}', Reason.NULL_BYTES, True, True),
    (b'{"id": "x", "text": "a\\ud83d b"}', Reason.LONE_SURROGATES, True, True),
    (b'{"id": "x", "text": "a", "topic": {"k": "\\udc00"}}', Reason.LONE_SURROGATES, True, True),
    (b'{"id": "x", "text": "' + b"long " * 2000 + b'"}', Reason.TOO_LONG, False, False),
]


class TestBadLines:
    @pytest.mark.parametrize(("line", "reason", "known", "kept"), BAD_LINES)
    def test_are_named_and_the_good_rest_goes_on(
        self, tmp_path: Path, line: bytes, reason: Reason, known: bool, kept: bool
    ) -> None:
        (tmp_path / "x.jsonl").write_bytes(GOOD + line + b"\n" + GOOD.replace(b"good", b"last"))
        events = read(
            config(f"{tmp_path}/*.jsonl", max_document_bytes=8192)
            if len(line) < 50_000
            else config(f"{tmp_path}/*.jsonl")
        )
        (fault,) = faults(events)
        assert (fault.reason, fault.line, fault.kept) == (reason, 2, kept)
        assert fault.file.endswith("/x.jsonl")
        assert fault.document_id == ("x" if known else None)
        assert fault.done
        ids = [document.id for document in documents(events)]
        assert ids == (["good", "x", "last"] if kept else ["good", "last"])
        # Where the id isn't known, a document may be hidden: nothing may be deleted.
        assert ends(events) == {"all": known or reason is Reason.BLANK_LINE}
        json.dumps(fault.as_dict()).encode()

    def test_what_is_mended_is_clean(self, tmp_path: Path) -> None:
        topic = b'{"\\ud800": 12345678901234567890}'
        line = b'{"id": "x", "text": "a\\u0000b \\ud83d c \\ud83d\\ude00", "topic": ' + topic + b"}"
        (tmp_path / "x.jsonl").write_bytes(line)
        (document,) = documents(read(config(f"{tmp_path}/*.jsonl")))
        assert document.text == "ab \ufffd c 😀"
        assert document.metadata == {"topic": {"\ufffd": 12345678901234567890}}

    def test_a_line_of_50_mb_is_passed_over_in_little_memory(self, tmp_path: Path) -> None:
        with (tmp_path / "x.jsonl").open("wb") as file:
            file.write(GOOD + b'{"id": "huge", "text": "')
            for _ in range(50):
                file.write(b"x" * 1_000_000)
            file.write(b'"}\n' + GOOD.replace(b"good", b"last"))
        corpus = config(f"{tmp_path}/*.jsonl", max_document_bytes=1_000_000)
        tracemalloc.start()
        events = read(corpus)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [document.id for document in documents(events)] == ["good", "last"]
        assert [(fault.reason, fault.line) for fault in faults(events)] == [(Reason.TOO_LONG, 2)]
        assert "50,000,0" in faults(events)[0].detail
        assert peak < 12_000_000


class TestBadFiles:
    def test_an_empty_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_bytes(b"")
        events = read(config(f"{tmp_path}/*.jsonl"))
        assert [fault.reason for fault in faults(events)] == [Reason.EMPTY_FILE]
        assert ends(events) == {"all": False}

    def test_a_file_whose_name_is_no_text_is_named(self, tmp_path: Path) -> None:
        Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.jsonl")).write_bytes(b"{\n")
        (fault,) = faults(read(config(f"{tmp_path}/*.jsonl")))
        assert orjson.loads(orjson.dumps(fault.as_dict()))["file"].endswith("/caf\ufffd.jsonl")

    def test_a_vanished_file_is_named_and_the_others_are_read(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(GOOD)
        (tmp_path / "b.jsonl").write_bytes(GOOD)
        source = Source(config(f"{tmp_path}/*.jsonl").source)
        (tmp_path / "a.jsonl").unlink()
        events = list(source.read())
        assert [(fault.reason, fault.file[-8:]) for fault in faults(events)] == [
            (Reason.VANISHED_FILE, "/a.jsonl")
        ]
        assert len(documents(events)) == 1
        assert ends(events) == {"all": False}

    @pytest.mark.parametrize("end", [".gz", ".zst"])
    def test_a_damaged_archive_keeps_what_came_before_the_damage(self, tmp_path: Path, end: str) -> None:
        lines = b"".join(
            json.dumps({"id": str(n), "text": os.urandom(400).hex()}).encode() + b"\n" for n in range(9000)
        )
        packed: Any = gzip.compress(lines) if end == ".gz" else pa.compress(lines, codec="zstd", asbytes=True)
        (tmp_path / f"x.jsonl{end}").write_bytes(packed[: len(packed) // 2])
        events = read(config(f"{tmp_path}/*.jsonl*"))
        assert [fault.reason for fault in faults(events)][-1] is Reason.UNREADABLE_FILE
        assert 0 < len(documents(events)) < 9000
        assert ends(events) == {"all": False}

    def test_what_is_no_archive_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl.gz").write_bytes(GOOD)
        (fault,) = faults(read(config(f"{tmp_path}/*")))
        assert fault.reason is Reason.UNREADABLE_FILE

    def test_a_url_that_cannot_be_listed_is_an_error(self) -> None:
        with pytest.raises(StorageError, match=r"source\.url"):
            Source(config("nonsense://x/*.jsonl").source)


class TestFolder:
    def folder(self, tmp_path: Path, **source: Any) -> CorpusConfig:
        corpus = config(f"{tmp_path}/docs", kind="folder", partition=None, metadata=[], **source)
        chunking = corpus.chunking.model_copy(update={"format": "markdown"})
        return corpus.model_copy(update={"chunking": chunking})

    def test_each_file_is_a_document(self, tmp_path: Path) -> None:
        (tmp_path / "docs" / "deep").mkdir(parents=True)
        (tmp_path / "docs" / "deep" / "a.md").write_text("Intro.\n\n# The title\n\nText.")
        (tmp_path / "docs" / "b.txt").write_text("\ufeffPlain.")
        (tmp_path / "docs" / "c.md.gz").write_bytes(gzip.compress(b"# Packed"))
        (tmp_path / "docs" / "picture.png").write_bytes(b"\x89PNG")
        (tmp_path / "docs" / ".hidden.md").write_text("no")
        found = {document.id: document for document in documents(read(self.folder(tmp_path)))}
        assert {id: document.title for id, document in found.items()} == {
            "deep/a.md": "The title",
            "b.txt": "b",
            "c.md": "Packed",
        }
        assert found["b.txt"].text == "Plain."
        assert found["b.txt"].line is None

    def test_bad_files_are_named_by_their_id(self, tmp_path: Path) -> None:
        docs = tmp_path / "docs"
        docs.mkdir()
        (docs / "blank.md").write_text(" \n")
        (docs / "empty.md").write_text("")
        (docs / "latin.md").write_bytes("café".encode("latin-1"))
        (docs / "long.md").write_text("x" * 5000)
        (docs / "null.md").write_text("a\x00b")
        events = read(self.folder(tmp_path, max_document_bytes=4096))
        assert {fault.document_id: fault.reason for fault in faults(events)} == {
            "blank.md": Reason.BLANK_TEXT,
            "empty.md": Reason.EMPTY_FILE,
            "latin.md": Reason.UNDECODABLE,
            "long.md": Reason.TOO_LONG,
            "null.md": Reason.NULL_BYTES,
        }
        assert [document.text for document in documents(events)] == ["ab"]
        assert ends(events) == {"all": True}
