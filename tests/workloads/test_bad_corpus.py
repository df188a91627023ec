"""A corpus full of bad input: each piece is named with what was done, and all that is good is found."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from include.corpora.records import Reason
from include.errors import TooMuchBadInput
from include.indexes.live import read_pointer
from include.indexes.search import search
from include.workloads import steps
from include.workloads.plan import Plan
from tests.corpora.test_sources import BAD_LINES
from tests.workloads.conftest import YAML, World

GOOD = 1_000
CORPUS = YAML.replace('*.jsonl"}', '*.jsonl*", max_document_bytes: 8192, metadata: [topic]}')
PACKED = gzip.compress(
    b"".join(json.dumps({"id": f"cut{n}", "text": f"t{n}"}).encode() + b"\n" for n in range(99))
)
ZSTD: Any = pa.compress(b'{"id": "z", "text": "packed"}\n', codec="zstd", asbytes=True)

#: Files that are no good as a whole: their bytes, and why.
BAD_FILES: dict[str, tuple[bytes, Reason]] = {
    "empty.jsonl": (b"", Reason.EMPTY_FILE),
    "blank.jsonl": (b"\n \n", Reason.EMPTY_FILE),
    "mark.jsonl": (b"\xef\xbb\xbf", Reason.EMPTY_FILE),
    "empty.jsonl.gz": (gzip.compress(b""), Reason.EMPTY_FILE),
    "cut.jsonl.gz": (PACKED[:-9], Reason.UNREADABLE_FILE),
    "garbage.jsonl.gz": (b"garbage", Reason.UNREADABLE_FILE),
    "garbage.jsonl.zst": (b"garbage", Reason.UNREADABLE_FILE),
    "cut.jsonl.zst": (ZSTD[:-6], Reason.UNREADABLE_FILE),
    "garbage.jsonl.bz2": (b"garbage", Reason.UNREADABLE_FILE),
    "garbage.jsonl.xz": (b"garbage", Reason.UNREADABLE_FILE),
    "utf16.jsonl": ('{"id": "u", "text": "wide"}\n'.encode("utf-16"), Reason.UNREADABLE_FILE),
    "zip.jsonl": (b"PK\x03\x04" + b"x" * 90, Reason.UNREADABLE_FILE),
    "unnamed.jsonl": (PACKED, Reason.UNREADABLE_FILE),
    "table.jsonl": (b"PAR1" + b"x" * 90, Reason.UNREADABLE_FILE),
}


def embedded(world: World, texts: list[str]) -> np.ndarray[Any, Any]:
    """The texts' vectors, as the service makes them."""
    body = {"model": "text-embedding-3-small", "dimensions": 32, "input": texts}
    answer = httpx.post(
        f"{world.emulator.openai_url}/embeddings",
        json=body,
        headers={"Authorization": "Bearer k"},
        timeout=60,
    )
    return np.array([each["embedding"] for each in answer.raise_for_status().json()["data"]], np.float32)


def test_each_bad_piece_is_named_and_every_good_document_is_found(world: World) -> None:
    world.configure(CORPUS)
    mixed: list[dict[str, Any] | bytes] = [{"id": f"g{n}", "text": f"Good text {n}."} for n in range(GOOD)]
    lines = [line.replace(b'"x"', f'"bad{n}"'.encode()) for n, (line, *_) in enumerate(BAD_LINES)]
    for number, line in enumerate(lines):
        mixed.insert(number * 20, line)
    world.put("mixed", *mixed)
    world.put("twice", {"id": "g1", "text": "Another text of the same id."})
    for name, (data, _) in BAD_FILES.items():
        world.services.storage.write_bytes(f"sources/{name}", data)
    kept = {f"bad{n}" for n, (*_, kept) in enumerate(BAD_LINES) if kept}

    ref, ranges = world.begin()
    world.send(ref)
    report = world.end(ref, ranges)
    assert report.state == "succeeded"
    assert world.published

    named = [
        json.loads(line)
        for line in world.services.storage.read_bytes(f"{ref.uri}/bad_input.jsonl").splitlines()
    ]
    assert len({(row["reason"], row["detail"]) for row in named}) >= 40
    assert all(row["file"] and row["reason"] and row["detail"] and row["done"] for row in named)
    by_line = {row["line"]: row["reason"] for row in named if row["file"].endswith("/mixed.jsonl")}
    assert by_line == {
        n * 20 + 1: Reason.TOO_LONG if len(line) > 8192 else reason
        for n, (line, reason, *_) in enumerate(BAD_LINES)
    }
    of_files = {Path(row["file"]).name: row["reason"] for row in named if row["reason"] != "blank_line"}
    for name, (_, reason) in BAD_FILES.items():
        assert of_files[name] == reason, name
    assert [row["document_id"] for row in named if row["reason"] == "duplicate_id"] == ["g1"]

    text = world.services.storage.read_bytes(f"{ref.uri}/report.md").decode()
    for row in named:
        assert f"| {row['file']} | {'' if row['line'] is None else row['line']} |" in text
        assert row["done"] in text

    indexed = {row["document_id"]: row["text"] for row in world.rows(ref)}
    assert set(indexed) - {f"cut{n}" for n in range(99)} == {f"g{n}" for n in range(GOOD)} | kept
    some = [f"g{n}" for n in range(0, GOOD, 20)]
    vectors = embedded(world, [indexed[id] for id in some])
    found = [search(world.services.storage, "letters", vector, k=1)[0].document_id for vector in vectors]
    assert found == some


def test_above_the_share_nothing_is_spent_and_the_report_names_it_all(world: World) -> None:
    world.configure(CORPUS.replace("8192", "8192, max_bad_share: 0.2"))
    world.put("all", {"id": "a", "text": "fine"}, b"{not json", b"[]", {"id": "b"})
    with pytest.raises(TooMuchBadInput, match=r"3 of 4 records .*max_bad_share 0\.2 .*bad_input\.jsonl"):
        world.begin()
    ref = world.ref
    report = steps.report(world.services, ref)
    assert report is not None and report.state == "failed"
    assert [(row["line"], row["reason"]) for row in report.bad_input] == [
        (2, "not_json"),
        (3, "not_an_object"),
        (4, "missing_text"),
    ]
    text = world.services.storage.read_bytes(f"{ref.uri}/report.md").decode()
    assert "/all.jsonl | 4 | b | missing_text: there is no text |" in text
    state = world.emulator.state()
    assert (state["batches"], state["files"], state["charges"]) == ([], [], {})


HOOK = """
def failing(text):
    if "poison" in text:
        raise ValueError("it can't be redacted")
    return text

def longer(text):
    return text + " more" * (9000 if "poison" in text else 0)

def longer_by_length(text):
    return text * 400 if "poison" in text else text
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `long_hooks` on the path."""
    (tmp_path / "long_hooks.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("long_hooks", None)


@pytest.mark.usefixtures("hooks")
class TestTooLong:
    """What is longer than the model reads is never sent: the document is named, or cut smaller."""

    def test_it_is_refused_by_its_documents_name(self, world: World) -> None:
        world.configure(YAML + "presend: long_hooks.longer\n")
        world.put("all", {"id": "a", "text": "fine"}, {"id": "long", "text": "poison"})
        ref, ranges = world.begin()
        world.send(ref)
        report = world.end(ref, ranges)
        assert {row["document_id"] for row in world.rows(ref)} == {"a"}
        (bad,) = report.bad_input
        assert (bad["line"], bad["document_id"], bad["reason"]) == (2, "long", "too_long")
        assert bad["detail"] == (
            "chunk 0 has 9,002 tokens to send, more than the 8,192 that text-embedding-3-small reads; "
            "embedding.too_long: split would cut it smaller"
        )
        assert report.dead_letters == 0
        assert len(world.charges()) == 1

    def test_it_is_cut_smaller_where_that_is_asked_for(self, world: World) -> None:
        yaml = YAML.replace("dimensions: 32", "dimensions: 32, too_long: split").replace(
            "overlap: 8", "overlap: 0"
        )
        world.configure(yaml + "presend: long_hooks.longer_by_length\n")
        text = "poison in every sentence of a text of several chunks. " * 30
        world.put("all", {"id": "a", "text": "fine"}, {"id": "long", "text": text})
        ref, ranges = world.begin()
        world.send(ref)
        report = world.end(ref, ranges)
        parts = sorted(
            (row["metadata"]["span"], row["text"]) for row in world.rows(ref) if row["document_id"] == "long"
        )
        assert len(parts) > 1
        assert "".join(part for _, part in parts) == text
        assert all(text[start:end] == part for (start, end), part in parts)
        (bad,) = report.bad_input
        assert (bad["document_id"], bad["reason"], bad["done"]) == ("long", "too_long", "cut it smaller")
        assert report.documents_bad == 0
        assert set(world.charges().values()) == {1}

    def test_a_document_that_was_indexed_whole_is_cut_into_an_index_of_its_own(self, world: World) -> None:
        """Chunks that are stored whole aren't missed where a hook has them cut smaller."""
        yaml = YAML.replace("dimensions: 32", "dimensions: 32, too_long: split")
        world.configure(yaml)
        text = "poison in every sentence of a text of several chunks. " * 30
        world.put("all", {"id": "a", "text": "fine"}, {"id": "long", "text": text})
        ref, ranges = world.begin()
        world.send(ref)
        world.end(ref, ranges)
        whole = len(world.rows(ref))
        world.configure(yaml + "presend: long_hooks.longer_by_length\n")
        ref, ranges = world.begin()
        world.send(ref)
        report = world.end(ref, ranges)
        plan = Plan.load(world.services.storage, ref.uri)
        assert len(world.rows(ref)) > whole
        assert read_pointer(world.services.storage, "letters").index == plan.version
        assert report.notes == () or all("lacks" not in note for note in report.notes)
        # And again: the same index, nothing sent.
        paid = world.charges()
        again, ranges = world.begin()
        world.send(again)
        world.end(again, ranges)
        assert Plan.load(world.services.storage, again.uri).version == plan.version
        assert world.charges() == paid

    def test_a_new_index_waits_for_a_document_that_readers_have_and_says_so(self, world: World) -> None:
        world.put("all", {"id": "a", "text": "fine"}, {"id": "bad", "text": "poison"})
        world.run()
        built = read_pointer(world.services.storage, "letters").index
        world.configure(YAML + "presend: long_hooks.failing\n")
        ref, ranges = world.begin()
        world.send(ref)
        report = world.end(ref, ranges)
        assert read_pointer(world.services.storage, "letters").index == built
        assert [bad["document_id"] for bad in report.bad_input] == ["bad"]
        assert any("lacks 1 chunks" in note and "bad input" in note for note in report.notes)
        # Out of the source, it's out of the way.
        world.put("all", {"id": "a", "text": "fine"})
        ref, ranges = world.begin()
        world.send(ref)
        world.end(ref, ranges)
        assert read_pointer(world.services.storage, "letters").index != built
