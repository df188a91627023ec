"""Whole-file validation: what makes a batch `failed` before its first request runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from include.emulator.lines import CHUNK_BYTES, CHUNK_LINES, file_lines
from include.emulator.openai.results import Endpoint, Measure, measure_all
from include.emulator.settings import Settings

MAX_ERRORS = 100
"""More bad lines than this are cut off; the service reports several, and doesn't say how many."""
FIELDS = ("custom_id", "method", "url", "body")


@dataclass(slots=True)
class Validation:
    """The verdict on a file: `errors` in the service's shape, or the model, counts and measures."""

    errors: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None
    requests: int = 0
    inputs: int = 0
    tokens: int = 0
    measures: npt.NDArray[np.int32] | None = None
    """Shape (requests, 3): prompt tokens, the longest input's, inputs; so that they're counted once."""


def error(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An entry of `errors.data`."""
    return {"code": code, "line": line, "message": message, "param": param}


def validate(path: Path, endpoint_url: str, endpoint: Endpoint, settings: Settings) -> Validation:
    """Read the whole file once, streaming."""
    size = path.stat().st_size
    if size > settings.max_batch_file_bytes:
        message = (
            f"The batch input file is larger than the maximum of {settings.max_batch_file_bytes} bytes "
            f"for batches ({size} bytes)."
        )
        return Validation([error("file_too_large", message)])
    return _Validator(endpoint_url, endpoint, settings).run(path)


class _Validator:
    def __init__(self, url: str, endpoint: Endpoint, settings: Settings) -> None:
        self._url = url
        self._endpoint = endpoint
        self._settings = settings
        self._result = Validation()
        self._seen: set[str] = set()
        self._pending: list[dict[str, Any]] = []
        self._measures: list[Measure] = []

    def run(self, path: Path) -> Validation:
        result = self._result
        # Counted first: a file that is far too long is refused without being read line by line.
        result.requests = sum(1 for _ in file_lines(path))
        if result.requests > self._settings.max_requests:
            result.errors.append(self._too_many("requests", self._settings.max_requests))
            return result
        pending_bytes = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                if len(result.errors) < MAX_ERRORS:
                    self._line(number, line)
                pending_bytes += len(line)
                if len(self._pending) >= CHUNK_LINES or pending_bytes > CHUNK_BYTES:
                    self._measure()
                    pending_bytes = 0
        self._measure()
        if result.requests == 0:
            return Validation([error("empty_file", "The batch input file is empty.")])
        if result.inputs > self._settings.max_inputs and not result.errors:
            result.errors.append(self._too_many("embedding inputs", self._settings.max_inputs))
        if not result.errors:
            rows = [(each.total, each.longest, each.inputs) for each in self._measures]
            result.measures = np.array(rows, dtype=np.int32)
        return result

    def _line(self, number: int, raw: bytes) -> None:
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError:
            line = None
        if not isinstance(line, dict):
            self._fail("invalid_json_line", "This line is not parseable as valid JSON.", number)
            return
        for name in FIELDS:
            if line.get(name) is None:
                self._fail(
                    "missing_required_parameter", f"Missing required parameter: '{name}'.", number, name
                )
                return
        custom_id, body = line["custom_id"], line["body"]
        if not isinstance(custom_id, str) or not isinstance(body, dict):
            name, kind = (
                ("custom_id", "a string") if not isinstance(custom_id, str) else ("body", "an object")
            )
            self._fail("invalid_request", f"Invalid type for '{name}': expected {kind}.", number, name)
            return
        if custom_id in self._seen:
            message = f"The custom_id '{custom_id}' for this request is a duplicate of another request."
            self._fail(
                "duplicate_custom_id",
                message + " The custom_id parameter must be unique.",
                number,
                "custom_id",
            )
            return
        self._seen.add(custom_id)
        if line["method"] != "POST":
            self._fail(
                "invalid_method", "The HTTP method for batch requests must be 'POST'.", number, "method"
            )
            return
        if line["url"] != self._url:
            message = f"The URL provided for this request does not match the batch endpoint ({self._url})."
            self._fail("url_mismatch", message, number, "url")
            return
        self._body(number, body)

    def _body(self, number: int, body: dict[str, Any]) -> None:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            self._fail(
                "missing_required_parameter", "Missing required parameter: 'model'.", number, "body.model"
            )
        elif not self._settings.model_exists(model):
            message = f"The provided model '{model}' is not supported by the Batch API."
            self._fail("model_not_found", message, number, "body.model")
        elif self._result.model is not None and model != self._result.model:
            message = (
                f"The provided model '{model}' does not match the model '{self._result.model}' of the other "
                "requests. All requests of a batch must use the same model."
            )
            self._fail("model_mismatch", message, number, "body.model")
        elif body.get("stream"):
            self._fail("invalid_request", "Streaming is not supported in batches.", number, "body.stream")
        else:
            self._result.model = model
            self._pending.append(body)

    def _measure(self) -> None:
        # Tokens are only needed of a file without errors.
        if not self._result.errors:
            for each in measure_all(self._endpoint, self._pending):
                self._measures.append(each)
                self._result.tokens += each.total
                self._result.inputs += each.inputs
        self._pending.clear()

    def _fail(self, code: str, message: str, line: int, param: str | None = None) -> None:
        self._result.errors.append(error(code, message, line, param))

    def _too_many(self, what: str, limit: int) -> dict[str, Any]:
        return error(
            "too_many_tasks",
            f"The batch input file contains too many {what}. The maximum is {limit:,} per batch.",
        )
