"""The bundled corpus: its documents, its golden set, and how well a real small model finds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest

from include.contracts import PROJECT_ROOT
from include.corpora.chunking import Chunker
from include.corpora.config import EmbeddingConfig, load_corpus
from include.corpora.python_docs import PARTITIONS, write_documents
from include.local.demo import QUESTIONS
from include.storage import Storage
from tests.emulators import start_emulator

YAML = PROJECT_ROOT / "include" / "config" / "corpora" / "python_docs.yaml"
GOLDEN = YAML.parent / "golden" / "python_docs.jsonl"


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


Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """Which documents the chunks nearest to each question belong to, best first, one a chunk."""

    questions: list[dict[str, Any]]
    hits: list[list[str]]

    def recall(self, k: int) -> float:
        """Share of questions of whose k nearest *chunks* at least one is of a document that answers it."""
        return sum(self.at(i, k, self.hits[i]) for i in range(len(self.hits))) / len(self.hits)

    def recall_by_document(self, k: int) -> float:
        """The same of the k nearest *documents*: several chunks of one count once."""
        found = (self.at(i, k, list(dict.fromkeys(self.hits[i]))) for i in range(len(self.hits)))
        return sum(found) / len(self.hits)

    def at(self, question: int, k: int, hits: list[str]) -> bool:
        return not set(hits[:k]).isdisjoint(self.questions[question]["document_ids"])


def embed(client: openai.OpenAI, config: EmbeddingConfig, inputs: list[str]) -> Vectors:
    """One row an input, by real-time calls; equal inputs are asked once."""
    unique = sorted(set(inputs))
    rows: dict[str, list[float]] = {}
    for start in range(0, len(unique), 128):
        part = unique[start : start + 128]
        answer = client.embeddings.create(
            model=config.model, dimensions=config.dimensions or openai.omit, input=part
        )
        rows |= zip(part, (each.embedding for each in answer.data), strict=True)
    return np.array([rows[text] for text in inputs], dtype=np.float32)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """The golden set asked of all chunks by brute force, embedded by MiniLM over the emulator's API."""
    config = load_corpus(YAML)
    chunker = Chunker(config.chunking)
    storage = Storage(f"file://{tmp_path_factory.mktemp('storage')}")
    owners: list[str] = []
    texts: list[str] = []
    for document in read_documents(storage).values():
        for chunk in chunker.chunks(document["text"]):
            owners.append(document["id"])
            texts.append(chunk.text)
    golden = read_jsonl(GOLDEN)
    for emulator in start_emulator(tmp_path_factory.mktemp("emulator"), "--embeddings", "minilm"):
        client = openai.OpenAI(base_url=emulator.openai_url, api_key="emulator")
        questions = embed(client, config.embedding, [each["question"] for each in golden])
        scores = questions @ embed(client, config.embedding, texts).T
        order = np.argsort(-scores, axis=1, kind="stable")
        yield Found(golden, [[owners[chunk] for chunk in row] for row in order])


class TestRecall:
    def test_minilm_finds_four_questions_of_five_among_the_five_nearest_chunks(self, found: Found) -> None:
        figures = ", ".join(f"@{k} {found.recall(k):.3f}" for k in (1, 2, 5))
        documents = ", ".join(f"@{k} {found.recall_by_document(k):.3f}" for k in (1, 2, 5))
        print(f"\npython_docs, {len(found.questions)} questions, MiniLM int8, recall of the golden set")
        print(f"  by chunk:    {figures}\n  by document: {documents}")
        for number, (question, hits) in enumerate(zip(found.questions, found.hits, strict=True)):
            if not found.at(number, 5, hits):
                print(f"  missed: {question['question']} {question['document_ids']}, found {hits[:5]}")
        assert found.recall(5) >= 0.8

    def test_each_question_of_the_demo_finds_its_topic_first_or_second(self, found: Found) -> None:
        asked = {each["question"]: number for number, each in enumerate(found.questions)}
        for question, topics_wanted in QUESTIONS.items():
            number = asked[question]
            assert topics_wanted <= set(found.questions[number]["document_ids"])
            assert not topics_wanted.isdisjoint(found.hits[number][:2]), found.hits[number][:5]
