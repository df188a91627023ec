"""Blocks of answers on their way into one row group of a results file, with the items they answer.

A block of vectors is one matrix that is used again and again, and is checked as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from include.requests.results import group_rows

Fault = tuple[str, str]
"""(code, message) of an answer that can't be taken."""


class _Block:
    """The items, tokens and models of the answers, in order; their values are the subclass's."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.items: list[int] = []
        self.input_tokens: list[int] = []
        self.output_tokens: list[int] = []
        self.models: list[str] = []

    def clear(self) -> None:
        """Begin the next block."""
        self.items, self.input_tokens, self.output_tokens, self.models = [], [], [], []

    def _note(self, item: int, input_tokens: int, output_tokens: int, model: str) -> bool:
        self.items.append(item)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.models.append(model)
        return len(self.items) == self._most


class VectorBlock(_Block):
    """Vectors of `dimensions` float32 each."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(group_rows(dimensions))
        self._shape = (dimensions,)
        self._matrix: npt.NDArray[np.float32] = np.empty((self._most, dimensions), np.float32)

    def fault(self, values: Sequence[Any], wanted: int) -> Fault | None:
        """What is wrong with a line's values, but for what `drop_bad` finds."""
        if len(values) != wanted:
            return "wrong_count", f"{len(values)} vectors for {wanted} inputs"
        for value in values:
            if getattr(value, "shape", None) != self._shape:
                got = getattr(value, "shape", type(value).__name__)
                return "wrong_dimension", f"the vector has the shape {got}, not {self._shape}"
        return None

    def add(self, item: int, value: Any, input_tokens: int, output_tokens: int, model: str) -> bool:
        """Add one vector; True when the block is full."""
        self._matrix[len(self.items)] = value
        return self._note(item, input_tokens, output_tokens, model)

    def drop_bad(self) -> list[int]:
        """Take out the vectors that aren't finite; returns their items."""
        matrix = self._matrix[: len(self.items)]
        good = np.isfinite(matrix).all(axis=1)
        if good.all():
            return []
        kept = np.flatnonzero(good).tolist()
        bad = [self.items[row] for row in np.flatnonzero(~good).tolist()]
        self._matrix[: len(kept)] = matrix[good]
        self.items = [self.items[row] for row in kept]
        self.input_tokens = [self.input_tokens[row] for row in kept]
        self.output_tokens = [self.output_tokens[row] for row in kept]
        self.models = [self.models[row] for row in kept]
        return bad

    def values(self) -> npt.NDArray[np.float32]:
        """The vectors, shape (items, dimensions); overwritten by the next block."""
        return self._matrix[: len(self.items)]


class TextBlock(_Block):
    """Generated texts."""

    def __init__(self) -> None:
        super().__init__(group_rows(None))
        self._texts: list[str] = []

    def fault(self, values: Sequence[Any], wanted: int) -> Fault | None:
        """What is wrong with a line's values."""
        if len(values) != wanted:
            return "wrong_count", f"{len(values)} answers for {wanted} inputs"
        for value in values:
            if not isinstance(value, str):
                return "wrong_kind", f"the answer is a {type(value).__name__}, not text"
        return None

    def add(self, item: int, value: Any, input_tokens: int, output_tokens: int, model: str) -> bool:
        """Add one text; True when the block is full."""
        self._texts.append(value)
        return self._note(item, input_tokens, output_tokens, model)

    def drop_bad(self) -> list[int]:
        """Every text can be stored."""
        return []

    def values(self) -> list[str]:
        """The texts."""
        return self._texts

    def clear(self) -> None:
        """Begin the next block."""
        super().clear()
        self._texts = []
