"""The bundled corpus: its documents, its golden set, and how well a real small model finds them."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from include.contracts import PROJECT_ROOT
from include.corpora.python_docs import PARTITIONS, main, write_documents
from include.storage import Storage

GOLDEN = PROJECT_ROOT / "include" / "config" / "corpora" / "golden" / "python_docs.jsonl"


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_documents(storage: Storage) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in write_documents(storage):
        for document in read_jsonl(Path(storage.path(path))):
            assert document["id"] not in found
            found[document["id"]] = document
    return found


class TestDocuments:
    def test_every_topic_is_one_document_and_loses_no_text(self, storage: Storage) -> None:
        assert {id: document["text"] for id, document in read_documents(storage).items()} == topics

    def test_they_lie_in_dated_partitions_and_say_so(self, storage: Storage) -> None:
        paths = write_documents(storage)
        assert paths == [f"sources/python_docs/{partition}.jsonl" for partition in PARTITIONS]
        for partition, path in zip(PARTITIONS, paths, strict=True):
            documents = read_jsonl(Path(storage.path(path)))
            assert documents
            assert all(document["updated_at"].startswith(partition) for document in documents)

    def test_writing_again_touches_no_file(self, storage: Storage) -> None:
        paths = [Path(storage.path(path)) for path in write_documents(storage)]
        before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in paths]
        write_documents(storage)
        assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in paths] == before

    def test_a_file_that_was_changed_is_written_anew(self, storage: Storage) -> None:
        first = write_documents(storage)[0]
        whole = storage.read_bytes(first)
        storage.write_bytes(first, whole[: len(whole) // 2])
        write_documents(storage)
        assert storage.read_bytes(first) == whole

    def test_titles_links_and_sections_are_there(self, storage: Storage) -> None:
        documents = read_documents(storage)
        assert documents["if"]["title"] == 'The "if" statement'
        assert documents["if"]["url"].endswith("/reference/compound_stmts.html#if")
        assert documents["if"]["section"] == "Compound statements"
        assert all(document["title"] and document["section"] for document in documents.values())

    def test_the_command_writes_the_same_files(self, storage: Storage, tmp_path: Path) -> None:
        other = Storage(f"file://{tmp_path}/other")
        assert main([other.root]) == 0
        assert [other.read_bytes(path) for path in write_documents(storage)] == [
            storage.read_bytes(path) for path in write_documents(storage)
        ]
        assert main([]) == 2


class TestGoldenSet:
    def test_it_is_large_spread_out_and_names_only_documents_there_are(self) -> None:
        golden = read_jsonl(GOLDEN)
        assert len(golden) >= 45
        assert len({each["question"] for each in golden}) == len(golden)
        assert len({each["document_ids"][0] for each in golden}) >= 40
        assert all(set(each["document_ids"]) <= set(topics) for each in golden)

    def test_no_question_is_copied_from_its_documents(self) -> None:
        def words(text: str) -> list[str]:
            return "".join(c if c.isalnum() else " " for c in text.lower()).split()

        for each in read_jsonl(GOLDEN):
            question = words(each["question"])
            phrases = {tuple(question[at : at + 6]) for at in range(len(question) - 5)}
            for id in each["document_ids"]:
                text = words(topics[id])
                copied = phrases & {tuple(text[at : at + 6]) for at in range(len(text) - 5)}
                assert not copied, f"{each['question']!r} copies {copied} from {id}"
