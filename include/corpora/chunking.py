"""Cut a document's text into chunks: by cl100k tokens, with overlap, with exact character spans.

Chunks are not trimmed: `text == document[start:end]`, every character of a document is in some
chunk, and only a stretch of blanks that would be a chunk by itself is left out.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from include.contracts import KEY_BYTES
from include.corpora import tokens
from include.corpora.config import ChunkingConfig
from include.corpora.headings import Headings

CHUNK_NAMESPACE = uuid.UUID("6f1c1b0a-2c1e-5d0e-9a57-0c8f6b6b7f11")
"""The namespace of chunk ids. Fixed for ever: another one gives every chunk a new id."""

_MODEL = "text-embedding-3-small"  # any model with the cl100k encoding

# The splitter takes time with the square of a text that has no boundaries (Chinese without
# punctuation, minified code): 200,000 such characters took two minutes. Long texts are therefore
# cut window by window, which ordinary text doesn't notice.
_WINDOW_CHARACTERS_A_TOKEN = 40
_SMALLEST_WINDOW = 4_096


Piece = tuple[int, str]
"""Where a piece of a text begins, and the piece."""


class Chunk(NamedTuple):
    """One chunk: characters [start, end) of its document, and the headings it stands under."""

    start: int
    end: int
    text: str
    heading: tuple[str, ...]


class Chunker:
    """Cuts texts by one configuration; the splitter's tables are loaded once a process."""

    def __init__(self, config: ChunkingConfig) -> None:
        self._markdown = config.format == "markdown"
        self._tokens = config.tokens
        self._splitter = _splitter(config.format, config.tokens, config.overlap)
        self._window = max(_SMALLEST_WINDOW, config.tokens * _WINDOW_CHARACTERS_A_TOKEN)

    def chunks(self, text: str) -> list[Chunk]:
        """The chunks of one text in order; [] where it is blank."""
        pieces = self._splitter.chunk_indices(text) if len(text) <= self._window else self._windowed(text)
        headings = Headings(text) if self._markdown else None
        if headings:
            pieces = _none_within_the_next(self._with_text_below(text, pieces, headings))
        return [
            Chunk(start, start + len(piece), piece, headings.at(start, piece) if headings else ())
            for start, piece in pieces
            if piece and not piece.isspace()
        ]

    def _windowed(self, text: str) -> Iterator[Piece]:
        """Split window by window; each starts where the last one's last chunk, cut short, began."""
        start = 0
        while True:
            window = text[start : start + self._window]
            pieces = self._splitter.chunk_indices(window)
            if start + len(window) >= len(text):
                yield from ((start + offset, piece) for offset, piece in pieces)
                return
            # A window of one chunk is one stretch that hardly costs tokens (blanks): take it whole.
            whole = pieces[:-1] if len(pieces) > 1 and pieces[-1][0] > 0 else pieces
            yield from ((start + offset, piece) for offset, piece in whole)
            start += pieces[-1][0] if whole is not pieces else len(window)

    def _with_text_below(self, text: str, pieces: Iterable[Piece], headings: Headings) -> Iterator[Piece]:
        """The pieces, but none of headings alone, which the splitter leaves before a long paragraph."""
        heading: int | None = None
        end = 0
        for start, piece in pieces:
            end = start + len(piece)
            if headings.are_all_of(start, end):
                heading = start if heading is None else heading
            elif heading is None or start <= heading:
                heading = None
                yield start, piece
            else:
                yield from self._led_by(text, heading, start, end)
                heading = None
        if heading is not None:
            yield heading, text[heading:end]

    def _led_by(self, text: str, heading: int, start: int, end: int) -> list[Piece]:
        """Headings [heading, start) and the piece [start, end) below, in one chunk or as few as fit."""
        together = text[heading:end]
        if tokens.count([together])[0] <= self._tokens:
            return [(heading, together)]
        # Without line ends the headings are no section of their own, so sentences fill up their chunk.
        flat = "".join(" " if character in "\r\n" else character for character in text[heading:start])
        splitter = _splitter("text", max(1, self._tokens * 9 // 10), 0)
        pieces = [
            (heading + offset, together[offset : offset + len(piece)])
            for offset, piece in splitter.chunk_indices(flat + text[start:end])
        ]
        led = len(pieces[0][1]) > start - heading
        fits = led and max(tokens.count([piece for _, piece in pieces])) <= self._tokens
        return pieces if fits else [(heading, text[heading:start]), (start, text[start:end])]


def _none_within_the_next(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, but none that the next one holds too: a heading cut in two begins with an overlap."""
    last: Piece | None = None
    for start, piece in pieces:
        if last is not None and not (start <= last[0] and start + len(piece) >= last[0] + len(last[1])):
            yield last
        last = start, piece
    if last is not None:
        yield last


@lru_cache(maxsize=8)
def _splitter(format: str, tokens: int, overlap: int) -> Any:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    kind = MarkdownSplitter if format == "markdown" else TextSplitter
    return kind.from_tiktoken_model(_MODEL, tokens, overlap, False)


def chunk_ids(corpus: str, document_id: str, chunking: str, texts: Sequence[str]) -> list[str]:
    """The UUIDv5 of each chunk of a document, in their order.

    Named by corpus, document, chunking fingerprint, the hash of the text, and how often that text
    came before in the document: a chunk that only moved keeps its id.
    """
    before: dict[str, int] = {}
    prefix = f"{corpus}\x1f{document_id}\x1f{chunking}\x1f"
    ids = []
    for text in texts:
        digest = hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()
        occurrence = before.get(digest, 0)
        before[digest] = occurrence + 1
        ids.append(str(uuid.uuid5(CHUNK_NAMESPACE, f"{prefix}{digest}\x1f{occurrence}")))
    return ids
