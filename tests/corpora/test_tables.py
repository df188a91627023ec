"""CSV and Parquet: rows become documents, each bad one is named by file and row, memory stays flat."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import os
import random
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.contracts import PROJECT_ROOT
from include.corpora.records import Reason
from tests.corpora.corpus import config
from tests.corpora.reading import documents, ends, faults, read

PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes),
    (".gz", gzip.compress),
    (".zst", lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True))),
]

#: Reads a file of so many rows, and prints by how much that raised the peak of its memory, in kB. The
#: kernel's high-water mark, as rusage's begins with what the parent process had.
PEAK = """
import sys
from include.corpora.sources import Source
from tests.corpora.corpus import config

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

kind, path, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
source = config(path, kind=kind.partition(".")[0], metadata=[], partition=None).source
before = peak()
count = sum(1 for _ in Source(source).read())
assert count == rows + 1, count
print(peak() - before)
"""


def text_of(number: int) -> str:
    return f"{number} {random.Random(number).randbytes(816).hex(' ', 2)}"


class TestCsv:
    def csv(self, path: str, **source: Any) -> Any:
        return config(path, kind="csv", **source)

    @pytest.mark.parametrize(("end", "pack"), PACKED)
    def test_a_row_is_a_document(self, tmp_path: Path, end: str, pack: Callable[[bytes], bytes]) -> None:
        text = '\ufeffid,text,title,topic,other\r\n7,"Two\nlines, ""quoted""",T,trees,x\r\nb,Plain,,,\r\n'
        (tmp_path / f"2026-01-02.csv{end}").write_bytes(pack(text.encode()))
        one, two = documents(read(self.csv(f"{tmp_path}/*.csv*")))
        assert (one.id, one.text, one.title) == ("7", 'Two\nlines, "quoted"', "T")
        assert (one.metadata, one.partition, one.line) == ({"topic": "trees"}, "2026-01-02", 2)
        assert (two.id, two.title, two.metadata, two.line) == ("b", None, {}, 4)

    def test_bad_rows_are_named_by_line_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        rows = [
            b"id,text,year",
            b"a,Fine.,2024",
            b"b,Too,many,cells",
            b"c",
            b"d,caf\xe9,2024",
            b"",
            b"e,,2024",
            b",No id.,2024",
            b'f,"a"b,2024',
            b"g," + b"x" * 9000 + b",2024",
            b"h,Text.,soon",
            b"i,Fine.,1999",
            b'j,"never closed,2024',
        ]
        (tmp_path / "x.csv").write_bytes(b"\n".join(rows) + b"\n")
        events = read(self.csv(f"{tmp_path}/*.csv", metadata={"year": "integer"}, max_document_bytes=8192))
        assert [(fault.line, fault.reason) for fault in faults(events)] == [
            (3, Reason.NOT_A_ROW),
            (4, Reason.NOT_A_ROW),
            (5, Reason.UNDECODABLE),
            (6, Reason.BLANK_LINE),
            (7, Reason.MISSING_TEXT),
            (8, Reason.MISSING_ID),
            (9, Reason.NOT_A_ROW),
            (10, Reason.TOO_LONG),
            (11, Reason.WRONG_TYPE),
            (13, Reason.NOT_A_ROW),
        ]
        assert all(fault.file.endswith("/x.csv") for fault in faults(events))
        assert [(document.id, document.metadata) for document in documents(events)] == [
            ("a", {"year": 2024}),
            ("i", {"year": 1999}),
        ]
        assert "year 'soon' is no integer" in [fault.detail for fault in faults(events)]
        assert ends(events) == {"all": False}

    def test_its_dialect_and_encoding_are_settings(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_bytes("id;text\n1;'café; naïve'\n".encode("cp1252"))
        dialect = {"delimiter": ";", "quote": "'", "encoding": "cp1252"}
        (document,) = documents(read(self.csv(f"{tmp_path}/x.csv", csv=dialect)))
        assert document.text == "café; naïve"

    def test_a_long_text_in_quotes_is_read(self, tmp_path: Path) -> None:
        text = "many lines\n" * 100_000
        with (tmp_path / "x.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "text"], ["1", text]])
        (document,) = documents(read(self.csv(f"{tmp_path}/x.csv")))
        assert document.text == text

    def test_a_file_without_a_needed_column_is_one_fault(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("key,text\n" + "1,a\n" * 100)
        (fault,) = faults(read(self.csv(f"{tmp_path}/x.csv")))
        assert fault.reason is Reason.MISSING_COLUMN
        assert fault.detail == "there is no column id; there are key, text"

    def test_an_empty_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_bytes(b"")
        assert [fault.reason for fault in faults(read(self.csv(f"{tmp_path}/x.csv")))] == [Reason.EMPTY_FILE]


class TestParquet:
    def parquet(self, path: str, **source: Any) -> Any:
        return config(path, kind="parquet", **source)

    def test_a_row_is_a_document_with_its_types(self, tmp_path: Path) -> None:
        table = pa.table(
            {
                "id": pa.array([1, 2], pa.int64()),
                "text": ["One.", "Two."],
                "updated_at": pa.array([dt.datetime(2026, 1, 2, 3), None], pa.timestamp("us", "UTC")),
                "topic": pa.array([["a", "b"], None]),
                "price": pa.array([Decimal("1.50"), Decimal("2.00")]),
                "day": pa.array([dt.date(2026, 1, 2), None]),
                "blob": pa.array([b"x" * 1000, b"y"]),
            }
        )
        pq.write_table(table, tmp_path / "2026-01-02.parquet")
        corpus = self.parquet(f"{tmp_path}/*.parquet", metadata=["topic", "price", "day"])
        one, two = documents(read(corpus))
        assert (one.id, one.text, one.partition, one.line) == ("1", "One.", "2026-01-02", 1)
        assert one.updated_at == dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
        assert one.metadata == {"topic": ["a", "b"], "price": 1.5, "day": "2026-01-02"}
        assert (two.updated_at, two.metadata, two.line) == (None, {"price": 2}, 2)

    def test_bad_rows_are_named_by_number_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        texts = pa.array([b"Fine.", b"caf\xe9", None, b" ", b"Good."], pa.binary()).view(pa.string())
        table = pa.table({"id": ["a", "b", "c", "d", "e"], "text": texts, "year": [1, 2, 3, 4, 5]})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
        events = read(self.parquet(f"{tmp_path}/*.parquet", metadata={"year": "string"}))
        assert [(fault.line, fault.reason) for fault in faults(events)] == [
            (1, Reason.WRONG_TYPE),
            (2, Reason.UNDECODABLE),
            (3, Reason.MISSING_TEXT),
            (4, Reason.BLANK_TEXT),
            (5, Reason.WRONG_TYPE),
        ]
        assert faults(events)[0].detail == "year is a number, not text"
        assert faults(events)[0].file.endswith("/x.parquet")
        events = read(self.parquet(f"{tmp_path}/*.parquet", metadata={"year": "integer"}))
        assert [document.id for document in documents(events)] == ["a", "e"]

    @pytest.mark.parametrize("data", [b"", b"no parquet at all", b"PAR1" + b"x" * 50 + b"PAR1"])
    def test_what_is_no_parquet_is_named(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "x.parquet").write_bytes(data)
        pq.write_table(pa.table({"id": ["a"], "text": ["Fine."]}), tmp_path / "y.parquet")
        events = read(self.parquet(f"{tmp_path}/*.parquet"))
        wanted = Reason.UNREADABLE_FILE if data else Reason.EMPTY_FILE
        assert [fault.reason for fault in faults(events)] == [wanted]
        assert [document.id for document in documents(events)] == ["a"]

    def test_row_groups_without_a_day_asked_for_are_not_read(self, tmp_path: Path) -> None:
        days = [dt.datetime(2026, 1, 1 + n // 100) for n in range(1000)]
        table = pa.table({"id": range(1000), "text": [text_of(n) for n in range(1000)], "at": days})
        path = tmp_path / "x.parquet"
        pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
        corpus = self.parquet(str(path), partition=None, metadata=[], fields={"partition": "at"})
        whole = documents(read(corpus))
        assert {document.partition for document in whole} == {f"2026-01-{day:02d}" for day in range(1, 11)}
        # Spoil all but the one group that is asked for: whoever reads them stumbles.
        with path.open("r+b") as file:
            for group in range(10):
                if group != 4:
                    file.seek(pq.read_metadata(path).row_group(group).column(1).data_page_offset)
                    file.write(b"\xff" * 64)
        events = read(corpus, ["2026-01-05"])
        assert faults(events) == []
        assert [document.line for document in documents(events)] == list(range(401, 501))
        assert ends(events) == {"2026-01-05": True}


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "jsonl.zst"])
def test_three_times_the_rows_need_no_more_memory(tmp_path: Path, kind: str) -> None:
    peaks = []
    # 40 MB and 120 MB: below that a reader's own buffers, some 30 MB, aren't full yet.
    for rows in (20_000, 60_000):
        path = tmp_path / f"{rows}.{kind}"
        if kind == "csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([("id", "text"), *((n, text_of(n)) for n in range(rows))])
        elif kind.startswith("jsonl"):
            with pa.output_stream(path, compression="zstd" if kind.endswith("zst") else None) as file:
                for n in range(rows):
                    file.write(b'{"id": %d, "text": "%s"}\n' % (n, text_of(n).encode()))
        else:
            # One row group, as many writers make them.
            table = pa.table({"id": range(rows), "text": [text_of(n) for n in range(rows)]})
            pq.write_table(table, path, row_group_size=rows)
            del table
        found = subprocess.run(
            [sys.executable, "-c", PEAK, kind, str(path), str(rows)],
            cwd=PROJECT_ROOT,
            env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
            check=True,
            capture_output=True,
            text=True,
        )
        peaks.append(int(found.stdout))
    assert peaks[0] > 0
    assert peaks[1] < peaks[0] + 20_000, peaks
