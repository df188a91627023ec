"""Keys never change: whoever changes one makes every paid answer unfindable."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts import JSON, Space
from include.requests.keys import item_key, item_keys, line_id

SPACE = "00112233445566778899aabbccddeeff"


class TestKeysAreFixedForEver:
    @pytest.mark.parametrize(
        ("value", "sample", "key"),
        [
            ("", 0, "2a989dcd82efd97a288b1a4eb9be7ff5"),
            ("hello", 0, "3d2ecd381587dcba86b6e940577e46d8"),
            ("hello", 1, "7c94ce77f88251f891b1ec0ff571b65d"),
            ("grüße 🙂", 0, "f6c30146fa00a6a47f066875abfd35dc"),
            ({"b": [1, 2.5, None], "a": "ü"}, 0, "2081c56b91cbcf273ad2063913d8c505"),
            (["x"], 0, "54ff87df99f756b95779487dd8505ebc"),
        ],
    )
    def test_golden_vectors_of_items(self, value: JSON, sample: int, key: str) -> None:
        assert item_key(SPACE, value, sample).hex() == key

    def test_golden_vectors_of_lines(self) -> None:
        one, two = b"\1" * 16, b"\2" * 16
        assert line_id([one]) == "01" * 16
        assert line_id([one, two]) == "bce202de1fd0e0e5b7de3eaad86069d3"

    def test_golden_vector_of_a_space(self) -> None:
        space = Space(
            "openai", "api.openai.com", "/v1/embeddings", "text-embedding-3-small", {"dimensions": 384}
        )
        assert space.id == "25df52dbbbc70fcea74bdfd940444924"

    def test_a_key_is_plain_blake2b_over_the_documented_bytes(self) -> None:
        by_hand = hashlib.blake2b(
            bytes.fromhex(SPACE) + b"\0\0\0\0" + b"t" + b"hello", digest_size=16, person=b"batch-item"
        )
        assert item_key(SPACE, "hello") == by_hand.digest()


class TestKeysTellContentApart:
    @given(st.lists(st.text(), max_size=20), st.integers(0, 2**32 - 1))
    def test_many_texts_get_the_keys_they_get_one_by_one(self, texts: list[str], sample: int) -> None:
        assert item_keys(SPACE, texts, sample) == [item_key(SPACE, text, sample) for text in texts]

    def test_the_order_of_a_json_objects_fields_does_not_matter(self) -> None:
        assert item_key(SPACE, {"a": 1, "b": 2}) == item_key(SPACE, {"b": 2, "a": 1})

    def test_space_sample_and_kind_each_make_another_key(self) -> None:
        other = "ff" * 16
        keys = {
            item_key(SPACE, "1"),
            item_key(other, "1"),
            item_key(SPACE, "1", 1),
            item_key(SPACE, 1),
            item_key(SPACE, ["1"]),
        }
        assert len(keys) == 5

    def test_a_line_of_two_is_another_line_the_other_way_round(self) -> None:
        one, two = b"\1" * 16, b"\2" * 16
        assert line_id([one, two]) != line_id([two, one])


class TestWhatHasNoKey:
    def test_not_a_number_is_refused(self) -> None:
        with pytest.raises(ValueError, match="JSON"):
            item_key(SPACE, float("nan"))

    def test_a_short_space_id_is_refused(self) -> None:
        with pytest.raises(ValueError, match="32 hex"):
            item_key("abcd", "hello")
