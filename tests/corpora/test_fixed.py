"""Names and boundaries that never change: whoever changes one loses stored chunks or paid answers.

Where a new library cuts text elsewhere, or a chunking's settings grow, `SPLITTER` must change with it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from include.contracts import Space
from include.corpora.chunking import Chunker, chunk_ids
from include.corpora.columns import content_hash, metadata_of, version_of
from include.corpora.config import ChunkingConfig, CorpusConfig
from include.corpora.records import Document
from include.corpora.rows import range_of
from tests.corpora.test_chunking import ARABIC, CJK, CODE, EMOJI, TABLE

TEXT = "\n\n".join(
    f"# Part {n}\n\nSentence one of part {n}. Sentence two, with a comma; and more.\n\n## Code {n}\n\n"
    f"```\n{CODE}\n```\n\n{CJK}{ARABIC}{EMOJI}\n\n{TABLE if n == 3 else ''}"
    for n in range(40)
)
TEXT += "\n\n# Alone\n\n" + "The only paragraph of this part goes on and on without an end to it, " * 40


def corpus(**more: Any) -> CorpusConfig:
    return CorpusConfig.model_validate(
        {
            "corpus": "books",
            "source": {"kind": "jsonl", "url": "x"},
            "embedding": {"model": "text-embedding-3-small", "dimensions": 384},
            **more,
        }
    )


@pytest.mark.parametrize(
    ("format", "tokens", "overlap", "count", "digest"),
    [
        ("text", 40, 0, 353, "f741fcc40cf68dc3"),
        ("text", 40, 8, 398, "83938c4d60915b34"),
        ("text", 400, 40, 45, "22b917f194d52379"),
        ("markdown", 40, 0, 392, "e968d86d2ceac7b0"),
        ("markdown", 400, 40, 46, "330890c57dbba23b"),
    ],
)
def test_where_chunks_begin_and_end(format: Any, tokens: int, overlap: int, count: int, digest: str) -> None:
    assert len(TEXT) > 16_000, "long enough to be cut in windows"
    chunks = Chunker(ChunkingConfig(format=format, tokens=tokens, overlap=overlap)).chunks(TEXT)
    spans = repr([(chunk.start, chunk.end, chunk.heading) for chunk in chunks])
    assert (len(chunks), hashlib.blake2b(spans.encode(), digest_size=8).hexdigest()) == (count, digest)


@pytest.mark.parametrize(
    ("chunking", "fingerprint"),
    [
        (ChunkingConfig(), "09d87c8ca2a77d2b0cd2361e942f37db"),
        (ChunkingConfig(format="markdown", tokens=200, overlap=20), "f6a0e1a25be7c38a0cfefb46b8356ef1"),
    ],
)
def test_a_chunkings_fingerprint(chunking: ChunkingConfig, fingerprint: str) -> None:
    assert chunking.fingerprint == fingerprint


@pytest.mark.parametrize(
    ("more", "space", "index"),
    [
        ({}, "25df52dbbbc70fcea74bdfd940444924", "books__07d692f38203"),
        (
            {"presend": "include.corpora.redact.emails"},
            "aca8a73a8fb6489144323d76308ab305",
            "books__0bb9b0d614b8",
        ),
        (
            {"presend": "include.corpora.redact.emails", "presend_text": True},
            "aca8a73a8fb6489144323d76308ab305",
            "books__3c8919df4e9d",
        ),
        ({"index": {"metric": "dot"}}, "25df52dbbbc70fcea74bdfd940444924", "books__cfe6929ac5db"),
        (
            {"embedding": {"model": "text-embedding-3-small"}},
            "3193ba8d78f2cd4d7624a9c5e2cf07c9",
            "books__cfde102709d1",
        ),
        (
            {"embedding": {"model": "text-embedding-3-small", "inputs_per_line": 9, "too_long": "split"}},
            "3193ba8d78f2cd4d7624a9c5e2cf07c9",
            "books__cfde102709d1",
        ),
    ],
)
def test_a_corpuss_space_and_index(more: dict[str, Any], space: str, index: str) -> None:
    config = corpus(**more)
    found: Space = config.space("api.openai.com")
    assert (found.id, config.index_version(found.id)) == (space, index)


def test_a_chunks_id() -> None:
    chunking = ChunkingConfig().fingerprint
    assert chunk_ids("books", "dir/é.md", chunking, ["text", "grüße 🙂", "text"]) == [
        "38b4b8a5-5b28-5538-9537-8e449fa53328",
        "224c8a8f-c098-5bd1-9c30-2129eecfba4f",
        "c3664e10-aaa2-5425-968b-4be7ef69f614",
    ]


def test_a_documents_range_and_hashes() -> None:
    assert [range_of(id, 16) for id in ("a", "é", "a/b.md", "7")] == [0, 11, 1, 7]
    assert content_hash(b"text").hex() == "d732c6be860e019351f99173fa6ae612"
    document = Document("d", "text", "2026-01-01", "f", title="T", metadata={"b": 1, "a": ["ü"]})
    head = metadata_of(document)
    assert head == '{"a":["ü"],"b":1,"partition":"2026-01-01","title":"T","url":null}'
    version = version_of(document, head)
    assert (version.content_hash.hex(), version.metadata_hash.hex()) == (
        "d732c6be860e019351f99173fa6ae612",
        "614e3a464f89df3c92e05a558cd37279",
    )
