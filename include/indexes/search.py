"""Searching as a reader does, and how well it finds: recall over a golden set.

A reader resolves the pointer each time, embeds with the model the pointer names, and asks the
physical index it names; then a switch to another model is one file replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from include.contracts import JSON, Hit, Vector, VectorStore
from include.errors import ConfigError
from include.indexes.live import LivePointer, read_pointer
from include.storage import Storage
from include.stores.registry import open_store

Embed = Callable[[LivePointer, Sequence[str]], Sequence[Vector]]
"""Embeds questions with the model that the pointer names; one vector a question, in order."""


@dataclass(frozen=True, slots=True)
class GoldenQuestion:
    """A question with what must be found: documents by id, or any document of a topic."""

    question: str
    document_ids: frozenset[str] = frozenset()
    topic: str | None = None

    def found(self, hits: Sequence[Hit]) -> float:
        """The share of what must be found that is among the hits; a topic is found or not."""
        if self.topic is not None:
            return float(any(hit.metadata.get("topic") == self.topic for hit in hits))
        return len(self.document_ids & {hit.document_id for hit in hits}) / len(self.document_ids)


@dataclass(frozen=True, slots=True)
class Recall:
    """Recall at k, 0 to 1: the mean over all questions; `missed` are those not found in full."""

    k: int
    questions: int
    recall: float
    missed: tuple[str, ...]


def search(
    storage: Storage,
    corpus: str,
    question: Vector | Callable[[LivePointer], Vector],
    k: int = 5,
    filter: Mapping[str, JSON] | None = None,
    *,
    store: VectorStore | None = None,
) -> list[Hit]:
    """The k nearest chunks of a corpus's live index, best first.

    `question` is a vector of the live index's own model, or a callable that is given the pointer and
    makes one. `filter` is equality on metadata fields. `store` is opened from the pointer if not given.
    Raises IndexMissing while nothing is published, IndexMismatch for a vector of another width.
    """
    pointer = read_pointer(storage, corpus)
    vector = question(pointer) if callable(question) else question
    store = store or open_store(pointer.store, pointer.store_url)
    return store.search(pointer.index, np.asarray(vector, np.float32), k, filter)


def load_golden(path: str | Path) -> list[GoldenQuestion]:
    """Read a golden set: JSON lines of {question, document_ids: [...]} or {question, topic}.

    Raises ConfigError naming the line that is neither.
    """
    questions = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            found = GoldenQuestion(
                str(row["question"]), frozenset(map(str, row.get("document_ids") or ())), row.get("topic")
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            found = None
        if found is None or not (found.topic or found.document_ids):
            raise ConfigError(
                f'{path}, line {number}: must be {{"question": …, "document_ids": [...]}} or '
                '{"question": …, "topic": …}'
            )
        questions.append(found)
    if not questions:
        raise ConfigError(f"{path} holds no questions")
    return questions


def evaluate(
    pointer: LivePointer,
    golden: Sequence[GoldenQuestion],
    embed: Embed,
    k: int = 5,
    *,
    store: VectorStore | None = None,
) -> Recall:
    """How much of a golden set the index that a pointer names finds among its k best hits.

    The pointer need not be live: a new version is measured with its own before it's published.
    """
    store = store or open_store(pointer.store, pointer.store_url)
    vectors = embed(pointer, [question.question for question in golden])
    shares = [
        question.found(store.search(pointer.index, np.asarray(vector, np.float32), k))
        for question, vector in zip(golden, vectors, strict=True)
    ]
    missed = tuple(question.question for question, share in zip(golden, shares, strict=True) if share < 1.0)
    return Recall(k, len(golden), sum(shares) / len(shares), missed)
