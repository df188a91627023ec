"""Judging a batch's answers: each line is matched to its items by custom_id, checked and sorted out.

Values go on to the results file in blocks of one row group; vectors are checked a block at a time.
What failed is kept until the end, since a later answer may still be a good one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from include.batches.answer_blocks import TextBlock, VectorBlock
from include.batches.failures import Failure
from include.contracts import JSON, KEY_BYTES, Outcome, OutcomeClass, Usage
from include.requests.results import ResultsWriter, keys_matrix

log = logging.getLogger(__name__)

_NAMED = 5
_ANSWER_CHARACTERS = 8_000
_UNANSWERED, _FAILED, _SUCCEEDED = 0, 1, 2

Verdict = tuple[OutcomeClass, str, str]
"""(class, code, message) of a failure."""


class Judge:
    """Takes outcomes in any order; the first good answer to a line counts. Made for one landing."""

    def __init__(self, keys: pa.Table, writer: ResultsWriter, dimensions: int | None) -> None:
        """`keys` is the shard's key table (`SHARD_KEYS_SCHEMA`), whole; `dimensions` None means text."""
        line = keys["line"].to_numpy()
        starts = np.flatnonzero(np.diff(line, prepend=-1))
        ids = keys["custom_id"].take(starts).to_pylist()
        self._line_of = {custom_id: number for number, custom_id in enumerate(ids)}
        self._first: list[int] = [*starts.tolist(), len(line)]
        self._keys: bytes = keys_matrix(keys["key"]).tobytes()
        self._tokens: list[Any] = keys["tokens"].to_pylist()
        self._state = bytearray(len(ids))
        self._failures: dict[int, Verdict] = {}
        self._answers: dict[int, str] = {}
        self._writer = writer
        self._block = TextBlock() if dimensions is None else VectorBlock(dimensions)
        self._duplicates = 0
        self._foreign: Counter[str] = Counter()
        self._models: dict[str, None] = {}
        self._last_model = ""
        self._usage = [0, 0, 0, 0, 0]

    # ----------------------------------------------------------------- taking

    def take(self, outcome: Outcome) -> None:
        """Judge the outcome of one line."""
        line = self._line_of.get(outcome.custom_id)
        if line is None:
            self._foreign[outcome.custom_id] += 1
            return
        good = outcome.cls is OutcomeClass.SUCCEEDED
        if self._state[line] != _UNANSWERED:
            self._duplicates += 1
            if self._state[line] == _SUCCEEDED or not good:
                return
        usage = outcome.usage
        if usage.input or usage.output:
            # Good or not, it was paid for.
            self._usage[0] += usage.input
            self._usage[1] += usage.output
            self._usage[2] += usage.cache_read
            self._usage[3] += usage.cache_write
            self._usage[4] += usage.cache_write_hour
        if not good:
            self._fail(line, (outcome.cls, outcome.code, outcome.message))
            self._keep_answer(line, outcome)
            return
        first, after = self._first[line], self._first[line + 1]
        values = outcome.values
        fault = self._block.fault(values, after - first)
        if fault:
            self._fail(line, (OutcomeClass.INVALID, *fault))
            return
        if self._state[line] == _FAILED:
            for item in range(first, after):
                del self._failures[item]
        self._state[line] = _SUCCEEDED
        model = outcome.model
        if model != self._last_model:
            self._models.setdefault(model)
            self._last_model = model
        if after - first == 1:
            if self._block.add(first, values[0], usage.input, usage.output, model):
                self.flush()
            return
        for item, value, (given, made) in zip(
            range(first, after), values, self._shares(first, after, usage), strict=True
        ):
            if self._block.add(item, value, given, made, model):
                self.flush()

    def flush(self) -> None:
        """Hand the block on to the results file, without the vectors that aren't finite."""
        block = self._block
        for item in block.drop_bad():
            self._failures[item] = (OutcomeClass.INVALID, "not_finite", "the vector holds NaN or infinity")
        keys = self._keys
        joined = b"".join([keys[KEY_BYTES * item : KEY_BYTES * (item + 1)] for item in block.items])
        self._writer.write(joined, block.values(), block.input_tokens, block.output_tokens, block.models)
        block.clear()

    def fail_line(self, line: int, verdict: Verdict) -> None:
        """A line that validation named, counted from 0. One that was answered all the same stays so."""
        if 0 <= line < len(self._state) and self._state[line] == _UNANSWERED:
            self._fail(line, verdict)

    def fail_unanswered(self, verdict: Verdict) -> None:
        """Every line that nothing was heard of."""
        for line in np.flatnonzero(np.frombuffer(self._state, np.uint8) == _UNANSWERED).tolist():
            self._fail(line, verdict)

    def _keep_answer(self, line: int, outcome: Outcome) -> None:
        """What a text says that can't be taken, for whoever asks again."""
        if outcome.cls is OutcomeClass.INVALID and outcome.values and isinstance(outcome.values[0], str):
            self._answers[self._first[line]] = outcome.values[0][:_ANSWER_CHARACTERS]

    def _fail(self, line: int, verdict: Verdict) -> None:
        self._state[line] = _FAILED
        for item in range(self._first[line], self._first[line + 1]):
            self._failures[item] = verdict

    def _shares(self, first: int, after: int, usage: Usage) -> Sequence[tuple[int, int]]:
        """A line's (input, output) tokens, divided among its items by their lengths."""
        weights = self._tokens[first:after]
        total = sum(weights) or len(weights)
        shares = [(usage.input * weight // total, usage.output * weight // total) for weight in weights]
        spent = [sum(column) for column in zip(*shares, strict=True)]
        shares[0] = (shares[0][0] + usage.input - spent[0], shares[0][1] + usage.output - spent[1])
        return shares

    # ----------------------------------------------------------------- telling

    @property
    def usage(self) -> Usage:
        """What the lines report, those that failed included; an answer that was set aside isn't."""
        return Usage(*self._usage)

    def counts(self) -> dict[str, JSON]:
        """Items by class, and what was set aside."""
        by_class = Counter(verdict[0].value for verdict in self._failures.values())
        by_class[OutcomeClass.SUCCEEDED.value] = self._writer.rows
        counts: dict[str, JSON] = {cls.value: by_class[cls.value] for cls in OutcomeClass}
        foreign = self._foreign.total()
        if foreign:
            named = ", ".join(repr(custom_id) for custom_id in list(self._foreign)[:_NAMED])
            log.warning("%d answers are to requests that weren't in the file: %s", foreign, named)
        models: list[JSON] = [model for model in self._models if model]
        return {**counts, "duplicates": self._duplicates, "foreign": foreign, "models": models}

    def failures(self) -> Iterator[Failure]:
        """What failed, in the shard's order."""
        sizes = np.diff(self._first)
        lonely = np.repeat(sizes == 1, sizes)
        for item, (cls, code, message) in sorted(self._failures.items()):
            key = self._keys[KEY_BYTES * item : KEY_BYTES * (item + 1)]
            answer = self._answers.get(item, "")
            yield Failure(key, cls, code, message, alone=bool(lonely[item]), answer=answer)
