"""What is sent for each chunk: its text through the pre-send hook, no longer than the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from include.contracts import Limits
from include.corpora import tokens
from include.corpora.chunking import Chunk, Chunker
from include.corpora.config import SMALLEST_CHUNK, ChunkingConfig, CorpusConfig
from include.errors import ConfigError


class TooLong(Exception):
    """A chunk's input is longer than the model reads. Its document is bad input; the message says why."""


class Sendable(NamedTuple):
    """The chunks of a document and the input of each; `cut` says which had to be cut smaller, or is ""."""

    chunks: Sequence[Chunk]
    inputs: Sequence[str]
    cut: str = ""


class Inputs:
    """Makes a corpus's inputs, within its model's `limits`; None where these aren't known.

    Raises ConfigError where chunks of the size asked for could never be sent.
    """

    def __init__(self, config: CorpusConfig, limits: Limits | None) -> None:
        self._presend = config.hook()
        longest = self._longest = limits.longest_input if limits is not None else None
        most = limits.tokens_per_request if limits is not None else None
        per_line = config.embedding.inputs_per_line
        # Where tokens may fill a line, a wrong count could make it one that is refused.
        self._counts_all = per_line > 1 and most is not None and 2 * per_line * config.chunking.tokens > most
        self._counted = 0
        self._splits = bool(config.chunking.cut)
        self._model = config.embedding.model
        self._chunking = config.chunking
        if longest is not None and config.chunking.tokens > longest and not self._splits:
            raise ConfigError(
                f"chunking.tokens is {config.chunking.tokens:,}, and {self._model} reads {longest:,} tokens "
                "(include/config/limits.yaml): lower it, or set embedding.too_long: split"
            )

    @property
    def are_texts(self) -> bool:
        """Whether each input is its chunk's text as it is."""
        return self._presend is None

    def of(self, chunks: Sequence[Chunk]) -> Sendable:
        """The inputs of a document's chunks, in their order. Raises PresendFailed or TooLong."""
        inputs = self._sent(chunks)
        longest = self._longest
        if longest is None or (self._presend is None and self._chunking.tokens <= longest):
            return Sendable(chunks, inputs)
        long = [place for place, text in enumerate(inputs) if self._is_long(text)]
        if not long:
            return Sendable(chunks, inputs)
        said = f"chunk {long[0]} has {tokens.count([inputs[long[0]]])[0]:,} tokens to send"
        said += f" (and {len(long) - 1:,} more are as long)" if len(long) > 1 else ""
        said = f"{said}, more than the {longest:,} that {self._model} reads"
        if not self._splits:
            raise TooLong(f"{said}; embedding.too_long: split would cut it smaller")
        fitting: list[Chunk] = []
        fitting_inputs: list[str] = []
        for place, (chunk, text) in enumerate(zip(chunks, inputs, strict=True)):
            smaller = self._cut(chunk, said) if place in long else Sendable([chunk], [text])
            fitting += smaller.chunks
            fitting_inputs += smaller.inputs
        return Sendable(fitting, fitting_inputs, said)

    def tokens(self, inputs: Sequence[str], first: int) -> list[int]:
        """How many tokens the inputs of one document have: counted in a small run and near a limit, else
        estimated from some of them; `first` is any number, by which these are chosen."""
        if self._counts_all or self._counted < tokens.COUNTED:
            self._counted += len(inputs)
            return [int(count) for count in tokens.count(inputs)]
        return tokens.estimate(inputs, first=first, near=self._longest)

    def _cut(self, chunk: Chunk, said: str) -> Sendable:
        """A chunk in as many as it takes."""
        assert self._longest is not None
        size = self._longest if self._chunking.tokens > self._longest else self._chunking.tokens // 2
        while size >= SMALLEST_CHUNK:
            chunker = Chunker(ChunkingConfig(format=self._chunking.format, tokens=size, overlap=0))
            parts = [
                Chunk(chunk.start + part.start, chunk.start + part.end, part.text, chunk.heading)
                for part in chunker.chunks(chunk.text)
            ]
            inputs = self._sent(parts)
            if not any(map(self._is_long, inputs)):
                return Sendable(parts, inputs)
            size //= 2
        raise TooLong(f"{said}, however small it is cut")

    def _sent(self, chunks: Sequence[Chunk]) -> list[str]:
        texts = [chunk.text for chunk in chunks]
        return texts if self._presend is None else self._presend.apply(texts)

    def _is_long(self, text: str) -> bool:
        """Counted only where it may be: no token is less than a byte."""
        assert self._longest is not None
        if len(text) * 4 <= self._longest or len(text.encode()) <= self._longest:
            return False
        return int(tokens.count([text])[0]) > self._longest
