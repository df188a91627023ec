"""Vectors: a real small model by default, a hash for load."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from include.emulator.embeddings import DimensionsRefused, HashEmbedder, MiniLMEmbedder
from include.emulator.tokens import count, count_all, cut
from tests.emulator.conftest import drive, embedding_line
from tests.emulators import Emulator


@pytest.fixture(scope="module")
def minilm() -> MiniLMEmbedder:
    return MiniLMEmbedder()


def test_minilm_puts_like_texts_together(minilm: MiniLMEmbedder) -> None:
    texts = ["A cat sat on the mat.", "A kitten rests on a rug.", "Quarterly revenue rose by nine percent."]
    vectors = minilm.embed(texts, 384)
    assert vectors.shape == (3, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3


def test_a_text_s_vector_does_not_depend_on_its_neighbours(minilm: MiniLMEmbedder) -> None:
    texts = [f"Sentence number {index} " + "is long " * index for index in range(40)]
    together = minilm.embed(texts, 384)
    alone = np.vstack([minilm.embed([each], 384) for each in texts])
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_fewer_dimensions_are_the_first_ones_at_length_one(minilm: MiniLMEmbedder) -> None:
    full, cut_off = minilm.embed(["some text"], 384)[0], minilm.embed(["some text"], 64)[0]
    np.testing.assert_allclose(cut_off, full[:64] / np.linalg.norm(full[:64]), atol=1e-5)
    with pytest.raises(DimensionsRefused, match="384"):
        minilm.dimensions("text-embedding-3-small", 385)


@pytest.mark.parametrize("width", [1, 7, 384, 1536])
def test_hash_vectors_are_unit_spread_out_and_repeatable(width: int) -> None:
    texts = [f"text {index}" for index in range(100)]
    vectors = HashEmbedder().embed(texts, width)
    assert vectors.shape == (100, width)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(vectors, HashEmbedder().embed(texts, width))
    if width >= 384:
        products = vectors @ vectors.T - np.eye(100)
        assert np.abs(products).max() < 0.3


def test_tokens_are_cl100k_s() -> None:
    assert count("hello world") == 2
    assert count_all(["hello world", ""]) == [2, 0]
    assert count_all(["hello world", ""], exact=False) == [3, 0]
    assert count("tiktoken is great!") == 6
    assert cut("one two three", 2) == ("one two", 2, True)
    assert cut("one two three", 3) == ("one two three", 3, False)


def test_the_real_model_answers_in_a_batch_as_in_real_time(start: Callable[..., Emulator]) -> None:
    driver = drive(start("--embeddings", "minilm", "--clock", "manual"))
    lines = [
        embedding_line("full", "A cat sat on the mat.", dimensions=None),
        embedding_line("wide", "A cat sat on the mat.", dimensions=385),
    ]
    output, errors = driver.results(driver.after(10, driver.create(lines)))
    live = driver.client.embeddings.create(model="text-embedding-3-small", input="A cat sat on the mat.")
    vector = output["full"]["response"]["body"]["data"][0]["embedding"]
    assert len(vector) == 384
    np.testing.assert_array_equal(np.array(vector, "<f4"), np.array(live.data[0].embedding, "<f4"))
    assert errors["wide"]["response"]["body"]["error"]["param"] == "dimensions"
