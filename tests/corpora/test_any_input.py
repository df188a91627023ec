"""Whatever a source holds, it becomes documents or named faults: nothing of it ends the run."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.corpora.columns import metadata_of, version_of
from include.corpora.config import CorpusConfig
from include.corpora.html import decode, to_markdown
from include.corpora.records import Document, Reason
from include.corpora.sources import Event
from include.corpora.values import TYPES, WrongType, plain, time_of
from tests.corpora.corpus import config
from tests.corpora.reading import documents, ends, faults, read

TYPED = {f"as_{name}": name for name in TYPES}
ODD_NUMBERS = st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0])
ODD_TEXTS = st.sampled_from(
    ["now", "12:30", "\x00", "\ud800", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59-12:00"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | ODD_NUMBERS | ODD_TEXTS
VALUES = st.recursive(
    LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3)
)
RECORDS = st.fixed_dictionaries(
    {"id": VALUES, "text": VALUES},
    optional=dict.fromkeys(("title", "url", "updated_at", "day", "tenant", "free", *TYPED), VALUES),
)


def usable(events: list[Event]) -> None:
    """That all a run does with events before it sends anything succeeds."""
    for event in events:
        if isinstance(event, Document):
            head = metadata_of(event)
            assert orjson.loads(head)
            version_of(event, head)
        elif event in faults(events):
            assert event.file and event.detail and event.done
            orjson.dumps(event.as_dict())


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, max_size=3))
def test_any_json_is_a_document_or_a_named_fault(records: list[dict[str, Any]]) -> None:
    import fsspec

    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    with fsspec.open("memory://any/x.jsonl", "wb") as file:
        file.write(data or b"\n")
    for fields in ({"partition": "day"}, {"tenant": "tenant"}):
        usable(
            read(config("memory://any/x.jsonl", partition=None, fields=fields, metadata={"free": "string"}))
        )
        usable(read(config("memory://any/x.jsonl", partition=None, fields=fields, metadata=["free"])))
    usable(read(config("memory://any/x.jsonl", partition=None, metadata=TYPED)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
@pytest.mark.parametrize("end", ["jsonl", "csv", "parquet", "jsonl.gz", "jsonl.zst", "jsonl.bz2", "jsonl.xz"])
def test_any_bytes_are_documents_or_named_faults(end: str, data: bytes) -> None:
    import fsspec

    with fsspec.open(f"memory://bytes/x.{end}", "wb", compression=None) as file:
        file.write(data)
    kind = end.partition(".")[0]
    usable(read(config(f"memory://bytes/x.{end}", kind=kind, partition=None)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | st.text(alphabet="---\n :&*!{}[]a1.\"'#<>=/", max_size=120).map(str.encode))
@pytest.mark.parametrize("end", ["md", "txt", "html"])
def test_any_file_is_a_document_or_a_named_fault(tmp_path_factory: Any, end: str, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / f"x.{end}").write_bytes(data if end != "md" else b"---\n" + data + b"\n---\ntext")
    usable(read(config(str(folder), kind="folder", partition=None)))


class TestValues:
    @pytest.mark.parametrize("value", [float("inf"), Decimal("Infinity"), 10**400, b"x", object()])
    def test_what_json_has_no_form_for_is_refused(self, value: Any) -> None:
        with pytest.raises(WrongType, match="JSON has no form"):
            plain(value)

    def test_nesting_ends_somewhere(self) -> None:
        deep: Any = "x"
        for _ in range(40):
            deep = [deep]
        with pytest.raises(WrongType, match="deeper than 32"):
            plain(deep)

    @pytest.mark.parametrize("value", [float("nan"), Decimal("NaN"), Decimal("sNaN")])
    def test_no_number_is_no_value(self, tmp_path: Path, value: Any) -> None:
        assert plain(value) is None

    @pytest.mark.parametrize("value", [2**64, Decimal(2) ** 70])
    def test_numbers_beyond_64_bits_are_the_nearest_float(self, value: Any) -> None:
        found = plain(value)
        assert isinstance(found, float)
        assert found == float(value)
        assert plain(2**64 - 1) == 2**64 - 1

    @pytest.mark.parametrize("text", ["now", "12:30", "T10", "10:20:30.123"])
    def test_a_time_without_its_day_is_not_todays(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(Exception, match="no ISO 8601 time"):
            time_of(text)


class TestJsonl:
    def corpus(self, tmp_path: Path, data: bytes, **source: Any) -> CorpusConfig:
        (tmp_path / "x.jsonl").write_bytes(data)
        return config(f"{tmp_path}/x.jsonl", partition=None, **source)

    def test_metadata_nested_too_deep_is_named(self, tmp_path: Path) -> None:
        for depth in (40, 300, 900):
            line = b'{"id": "x", "text": "fine", "topic": ' + b"[" * depth + b"]" * depth + b"}\n"
            (fault,) = faults(read(self.corpus(tmp_path, line)))
            assert (fault.reason, fault.document_id) == (Reason.WRONG_TYPE, "x")
            assert fault.detail == "topic nests deeper than 32 levels"

    @pytest.mark.parametrize("data", [b"\n\n", b"\xef\xbb\xbf", b" \n\t"])
    def test_a_file_of_blanks_deletes_nothing(self, tmp_path: Path, data: bytes) -> None:
        events = read(self.corpus(tmp_path, data))
        assert faults(events)[-1].reason is Reason.EMPTY_FILE
        assert ends(events) == {"all": False}

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            ('{"id": "x"}\n'.encode("utf-16"), "UTF-16"),
            (b"PK\x03\x04....", "zip"),
            (b"\x1f\x8b....", ".gz"),
            (b"\x28\xb5\x2f\xfd....", ".zst"),
            (b"PAR1....", "Parquet"),
        ],
    )
    def test_a_file_of_another_kind_is_one_fault(self, tmp_path: Path, data: bytes, said: str) -> None:
        (fault,) = faults(read(self.corpus(tmp_path, data + b"\n" * 9)))
        assert fault.reason is Reason.UNREADABLE_FILE
        assert said in fault.detail

    def test_archives_in_several_pieces_are_read_whole(self, tmp_path: Path) -> None:
        import bz2
        import gzip
        import lzma

        lines = [b'{"id": "%d", "text": "fine"}\n' % n for n in range(4)]
        zstd: Any = lambda data: pa.compress(data, codec="zstd", asbytes=True)  # noqa: E731
        for end, pack in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)):
            (tmp_path / f"x.jsonl.{end}").write_bytes(b"".join(pack(line) for line in lines))
            events = read(config(f"{tmp_path}/x.jsonl.{end}", partition=None))
            assert [document.id for document in documents(events)] == ["0", "1", "2", "3"], end


class TestCsv:
    def test_a_column_that_is_there_twice_is_one_fault(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("id,text,text\n1,a,b\n2,c,d\n")
        (fault,) = faults(read(config(f"{tmp_path}/x.csv", kind="csv")))
        assert (fault.reason, fault.line) == (Reason.MISSING_COLUMN, None)
        assert fault.detail == "text is there twice; there are id, text, text"


class TestParquet:
    def write(self, tmp_path: Path, table: pa.Table, **source: Any) -> CorpusConfig:
        pq.write_table(table, tmp_path / "x.parquet")
        return config(f"{tmp_path}/x.parquet", kind="parquet", partition=None, **source)

    def test_times_of_data_frames_are_read(self, tmp_path: Path) -> None:
        times = pa.array([1_767_323_045_123_456_789, None], pa.timestamp("ns", "UTC"))
        table = pa.table({"id": ["a", "b"], "text": ["x", "y"], "updated_at": times, "topic": times})
        one, two = documents(read(self.write(tmp_path, table)))
        assert one.updated_at == dt.datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=dt.UTC)
        assert str(one.metadata["topic"]).startswith("2026-01-02T03:04:05.123456")
        assert (two.updated_at, two.metadata) == (None, {})

    def test_a_value_that_python_has_no_form_for_spoils_its_row_only(self, tmp_path: Path) -> None:
        times = pa.array([0, 10**18, 0], pa.timestamp("us"))
        table = pa.table({"id": ["a", "b", "c"], "text": ["x", "y", "z"], "updated_at": times})
        events = read(self.write(tmp_path, table, metadata=[]))
        assert [(fault.line, fault.reason) for fault in faults(events)] == [(2, Reason.WRONG_TYPE)]
        assert "updated_at can't be read" in faults(events)[0].detail
        assert [document.id for document in documents(events)] == ["a", "c"]

    @pytest.mark.parametrize(
        "column",
        [
            pa.array([1, 2], pa.duration("ns")),
            pa.array([1, 2], pa.time64("ns")),
            pa.array([b"a", b"b"]),
            pa.array(["a", "b"]).dictionary_encode(),
            pa.array(["a", "b"], pa.large_string()),
            pa.array([{"a": 1}, {"a": None}]),
            pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
            pa.array([None, None]),
            pa.array([2**64 - 1, 0], pa.uint64()),
            pa.array([1.5, float("nan")], pa.float32()),
            pa.array([Decimal(10) ** 70, None], pa.decimal256(76, 0)),
        ],
        ids=lambda column: str(column.type),
    )
    def test_any_type_of_column_is_kept_or_named(self, tmp_path: Path, column: pa.Array[Any]) -> None:
        table = pa.table({"id": ["a", "b"], "text": ["x", "y"], "topic": column})
        events = read(self.write(tmp_path, table))
        usable(events)
        assert len(documents(events)) + len(faults(events)) == 2

    def test_one_cut_short_is_named(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        pq.write_table(pa.table({"id": [str(n) for n in range(999)], "text": ["x" * 99] * 999}), out)
        for size in (len(out.getvalue()) - 1, len(out.getvalue()) // 2, 12):
            (tmp_path / "x.parquet").write_bytes(out.getvalue()[:size])
            (fault,) = faults(read(config(f"{tmp_path}/x.parquet", kind="parquet", partition=None)))
            assert fault.reason is Reason.UNREADABLE_FILE


class TestFolders:
    @pytest.mark.parametrize("charset", ["rot13", "hex", "undefined", "utf-16", "base64", "zip", "no-such"])
    def test_a_charset_that_is_none_is_read_as_utf_8(self, charset: str) -> None:
        assert to_markdown(decode(f"<meta charset={charset}><p>café".encode()))[0] == "café"

    def test_front_matter_that_unfolds_is_text(self, tmp_path: Path) -> None:
        lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
        (tmp_path / "x.md").write_text("---\n" + "\n".join(lines) + "\n---\nBody.")
        (found,) = documents(read(config(str(tmp_path), kind="folder", partition=None, metadata=["a11"])))
        assert found.metadata == {}
        assert found.text.startswith("---")


class TestPartitions:
    @pytest.mark.parametrize(
        ("path", "pattern"),
        [
            (
                "year=2026/month=01/day=02/x.jsonl",
                r"year=(?P<year>\d+)/month=(?P<month>\d+)/day=(?P<day>\d+)",
            ),
            ("2026/1/2/x.jsonl", r"(?P<year>\d{4})/(?P<month>\d+)/(?P<day>\d+)/"),
            ("x-20260102.jsonl", r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)"),
        ],
    )
    def test_a_day_is_found_however_the_path_writes_it(self, tmp_path: Path, path: str, pattern: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b'{"id": "a", "text": "fine"}\n')
        corpus = config(f"{tmp_path}/**/*.jsonl", partition=pattern)
        assert ends(read(corpus, ["2026-01-02"])) == {"2026-01-02": True}


class TestIds:
    def test_are_taken_as_they_are(self, tmp_path: Path) -> None:
        """Case, blanks and the way an accent is written tell documents apart: no id is ever mended."""
        ids = ["a", "A", "a ", " a", "\u00e9", "e\u0301", "a\nb", "it's", '"', "a/b", "..", "a\x1fb", "7"]
        lines = [json.dumps({"id": id, "text": "fine"}) for id in ids]
        (tmp_path / "x.jsonl").write_text("\n".join(lines))
        events = read(config(f"{tmp_path}/x.jsonl"))
        assert [document.id for document in documents(events)] == ids
        assert faults(events) == []
