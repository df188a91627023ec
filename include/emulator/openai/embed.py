"""/v1/embeddings: limits of a request, and its vectors as floats or base64."""

from __future__ import annotations

from typing import Any

import pybase64

from include.emulator.embeddings import DimensionsRefused, Embedder, Matrix
from include.emulator.openai.results import Measure, Result, check_model, refused
from include.emulator.settings import Settings
from include.emulator.tokens import count_all, encoding

MAX_INPUTS = 2_048
MAX_INPUT_TOKENS = 8_192
MAX_REQUEST_TOKENS = 300_000
"""Limits of one embeddings request (OpenAI's API reference)."""

INVALID_INPUT = (
    "'$.input' is invalid. Please check the API reference: https://platform.openai.com/docs/api-reference."
)


class EmbeddingsEndpoint:
    """Embeddings of texts, or of token arrays, which are read back as cl100k text."""

    def __init__(self, settings: Settings, embedder: Embedder) -> None:
        self._settings = settings
        self._embedder = embedder

    def measure(self, bodies: list[dict[str, Any]]) -> list[Measure]:
        """Tokens of each request's inputs."""
        inputs = [_inputs(body.get("input")) or [] for body in bodies]
        texts = [text for each in inputs for text in each if isinstance(text, str)]
        counts = iter(count_all(texts, exact=self._settings.tokens == "exact"))
        measures = []
        for each in inputs:
            sizes = [next(counts) if isinstance(value, str) else len(value) for value in each]
            measures.append(Measure(sum(sizes), max(sizes, default=0), len(sizes)))
        return measures

    def subject(self, body: dict[str, Any]) -> str:
        """The inputs, a line each."""
        return "\n".join(
            each if isinstance(each, str) else str(each) for each in _inputs(body.get("input")) or []
        )

    def run(self, bodies: list[dict[str, Any]], measures: list[Measure]) -> list[Result]:
        """Vectors for all good requests at once, by width."""
        results: list[Result | None] = [
            self._check(body, measure) for body, measure in zip(bodies, measures, strict=True)
        ]
        widths: dict[int, list[int]] = {}
        for index, body in enumerate(bodies):
            if results[index] is None:
                try:
                    width = self._embedder.dimensions(body["model"], body.get("dimensions"))
                except DimensionsRefused as refusal:
                    results[index] = refused(400, str(refusal), param="dimensions")
                else:
                    widths.setdefault(width, []).append(index)
        for width, members in widths.items():
            texts = [_texts(bodies[index]["input"]) for index in members]
            vectors = self._embedder.embed([text for each in texts for text in each], width)
            start = 0
            for index, own in zip(members, texts, strict=True):
                rows = vectors[start : start + len(own)]
                start += len(own)
                results[index] = _answer(bodies[index], rows, measures[index].total)
        return [each for each in results if each is not None]

    def _check(self, body: dict[str, Any], measure: Measure) -> Result | None:
        if refusal := check_model(self._settings, body):
            return refusal
        inputs = _inputs(body.get("input"))
        if not inputs or any(len(each) == 0 for each in inputs):
            return refused(400, INVALID_INPUT)
        if len(inputs) > MAX_INPUTS:
            return refused(
                400,
                f"Invalid 'input': array too long. Expected an array with maximum length {MAX_INPUTS}, "
                f"but got an array with length {len(inputs)} instead.",
                param="input",
                code="array_above_max_length",
            )
        if measure.longest > MAX_INPUT_TOKENS:
            return refused(
                400,
                f"This model's maximum context length is {MAX_INPUT_TOKENS} tokens, however you requested "
                f"{measure.longest} tokens ({measure.longest} in your prompt; 0 for the completion). "
                "Please reduce your prompt; or completion length.",
            )
        if measure.total > MAX_REQUEST_TOKENS:
            return refused(
                400,
                f"Requested {measure.total} tokens, max {MAX_REQUEST_TOKENS} tokens per request",
                kind="max_tokens_per_request",
                code="max_tokens_per_request",
            )
        if body.get("encoding_format", "float") not in ("float", "base64"):
            return refused(
                400,
                f"Invalid value: '{body['encoding_format']}'. Supported values are: 'float' and 'base64'.",
                param="encoding_format",
                code="invalid_value",
            )
        dimensions = body.get("dimensions")
        if dimensions is not None and (not isinstance(dimensions, int) or isinstance(dimensions, bool)):
            return refused(400, "Invalid type for 'dimensions': expected an integer.", param="dimensions")
        return None


def _inputs(value: Any) -> list[Any] | None:
    """The request's inputs, each a text or a token array; None if `input` has another shape."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return None
    if value and all(isinstance(each, int) for each in value):
        return [value]
    if all(isinstance(each, str) for each in value):
        return value
    if all(isinstance(each, list) and all(isinstance(token, int) for token in each) for each in value):
        return value
    return None


def _texts(value: Any) -> list[str]:
    return [
        each if isinstance(each, str) else encoding().decode(each, errors="replace")
        for each in _inputs(value) or []
    ]


def _answer(body: dict[str, Any], rows: Matrix, tokens: int) -> Result:
    as_text = body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": pybase64.b64encode_as_string(row.astype("<f4").tobytes()) if as_text else row,
        }
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Result(200, {"object": "list", "data": data, "model": body["model"], "usage": usage}, tokens)
