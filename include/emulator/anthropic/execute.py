"""Runs a batch's requests, chunk by chunk, and appends what they came to to its results.

A chunk's bytes are written before its commit and cut back to the last commit's length before they
are written again: a killed process neither loses a line nor writes or charges one twice.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from include.emulator.anthropic.cache import PromptCache, is_lucky
from include.emulator.anthropic.messages import Answer, Messages
from include.emulator.anthropic.wire import PROVIDER, error_body, error_type
from include.emulator.faults import LINE_ACTIONS, Faults
from include.emulator.lines import CHUNK_BYTES, CHUNK_LINES, SLOW_CHUNK_LINES, file_lines, write_at
from include.emulator.prices import message_dollars
from include.emulator.settings import Settings
from include.emulator.store import BatchRecord, Store

ENDS = ("succeeded", "errored", "canceled", "expired")
"""What a request can come to."""


def requests_path(store: Store, batch_id: str) -> Path:
    """The requests of a batch, a line each."""
    return store.path(f"{batch_id}.requests")


def results_path(store: Store, batch_id: str) -> Path:
    """The results of a batch, as far as they go."""
    return store.path(f"{batch_id}.results")


class Executor:
    """Only the worker's thread calls it."""

    def __init__(self, settings: Settings, store: Store, faults: Faults, messages: Messages) -> None:
        self._settings = settings
        self._store = store
        self._faults = faults
        self._messages = messages
        self._chunk_lines = CHUNK_LINES if settings.tokens == "guess" else SLOW_CHUNK_LINES

    def chunk(self, record: BatchRecord, most: int) -> bool:
        """Run up to `most` of the next requests; False if the batch has no more."""
        requests, read = self._next(record, min(most, self._chunk_lines))
        if not requests:
            return False
        cache = PromptCache(self._store, record.account)
        lines = [_Line(record.id, each["custom_id"]) for each in requests]
        for place, (line, request) in enumerate(zip(lines, requests, strict=True)):
            self._strike(record, line, request["params"])
            if "line_error" not in line.faults:
                line.answer = self._messages.answer(
                    request["params"],
                    cache,
                    _moment(record, place),
                    batch=True,
                    lucky=is_lucky(line.custom_id, self._settings.cache_hit_share),
                )
        self._commit(record, lines, cache, read)
        return True

    def write_rest(self, record: BatchRecord, end: str) -> None:
        """Write a result for each request that never ran. The caller saves the record."""
        path = requests_path(self._store, record.id)
        for chunk in _chunks(file_lines(path, record.work["read"])):
            lines = [_Line(record.id, orjson.loads(raw)["custom_id"], end) for raw in chunk]
            self._append(record, lines)

    def forget(self, batch_id: str) -> None:
        """Remove what only a live batch needs."""
        requests_path(self._store, batch_id).unlink(missing_ok=True)

    def _next(self, record: BatchRecord, most: int) -> tuple[list[dict[str, Any]], int]:
        """The next requests, and where the one after them begins."""
        start = read = record.work["read"]
        requests = []
        for read, raw in itertools.islice(file_lines(requests_path(self._store, record.id), start), most):
            requests.append(orjson.loads(raw))
            if read - start > CHUNK_BYTES:
                break
        return requests, read

    def _strike(self, record: BatchRecord, line: _Line, params: dict[str, Any]) -> None:
        if fail := record.work["faults"].get("fail_batch"):
            line.faults["line_error"] = {"type": fail.get("code", "api_error"), "status": 500, **fail}
        if not self._faults.watches("line"):
            return
        subject = self._messages.subject(params)
        for rule in self._faults.strike("line", subject, actions=LINE_ACTIONS, custom_id=line.custom_id):
            line.faults[rule.do] = rule.options

    def _commit(self, record: BatchRecord, lines: list[_Line], cache: PromptCache, read: int) -> None:
        # Results never come in the order of the requests: nobody shall get used to it.
        lines = sorted(lines, key=lambda line: line.request_id)
        content = b"".join(line.output() for line in lines)
        write_at(results_path(self._store, record.id), record.work["results"]["bytes"], content)
        paid = [line for line in lines if line.end == "succeeded"]
        with self._store.transaction():
            fresh = self._store.get_batch(record.id, PROVIDER)
            if fresh is None or not fresh.active:
                return
            work = fresh.work
            _count(work, lines, content)
            work["done"] += len(lines)
            work["read"] = read
            if work["stop"] is not None:
                work["stop"] = max(work["stop"], work["done"])
            for line in paid:
                self._book(work, line)
            self._store.charge(record.id, (line.custom_id for line in paid))
            cache.save()
            self._store.save_batch(fresh)
            if self._faults.watches("line"):
                self._faults.save()

    def _book(self, work: dict[str, Any], line: _Line) -> None:
        message = line.message()
        usage = message["usage"]
        written, read = usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
        work["input_tokens"] += usage["input_tokens"] + written + read
        work["cache_read_tokens"] += read
        work["cache_write_tokens"] += written
        work["output_tokens"] += usage["output_tokens"]
        work["dollars"] += message_dollars(self._settings, message["model"], usage, batch=True)

    def _append(self, record: BatchRecord, lines: list[_Line]) -> None:
        content = b"".join(line.output() for line in lines)
        write_at(results_path(self._store, record.id), record.work["results"]["bytes"], content)
        _count(record.work, lines, content)


class _Line:
    """One request on its way into the results."""

    __slots__ = ("_end", "answer", "custom_id", "faults", "request_id")

    def __init__(self, batch_id: str, custom_id: str, end: str = "") -> None:
        self.custom_id = custom_id
        # The same for the same request of the same batch, so that a chunk run again writes the same bytes.
        digest = hashlib.blake2b(f"{batch_id}\0{custom_id}".encode(), digest_size=11).hexdigest()
        self.request_id = f"req_01{digest}"
        self.answer: Answer | None = None
        self.faults: dict[str, dict[str, Any]] = {}
        self._end = end

    @property
    def end(self) -> str:
        """What the request came to, one of `ENDS`."""
        fault = self.faults.get("line_error")
        if fault is not None:
            if fault.get("status"):
                return "errored"
            return "canceled" if fault.get("code") == "batch_cancelled" else "expired"
        if self.answer is None:
            return self._end
        return "succeeded" if self.answer.message is not None else "errored"

    def message(self) -> dict[str, Any]:
        """The message of a request that succeeded."""
        assert self.answer is not None and self.answer.message is not None
        changed: dict[str, Any] = self.faults.get("line_body", {}).get("body", {})
        return self.answer.message | changed

    def output(self) -> bytes:
        """The line or lines to write, with their newlines."""
        if "line_omit" in self.faults:
            return b""
        raw = self._encode(self.custom_id)
        if "line_duplicate" in self.faults:
            raw += raw
        if "line_foreign" in self.faults:
            named = self.faults["line_foreign"].get("foreign_id", f"foreign-{self.request_id[-8:]}")
            raw += self._encode(str(named))
        return raw

    def _encode(self, custom_id: str) -> bytes:
        result: dict[str, Any] = {"type": self.end}
        if self.end == "succeeded":
            result["message"] = self.message()
        elif self.end == "errored":
            result["error"] = self._error()
        return orjson.dumps({"custom_id": custom_id, "result": result}, option=orjson.OPT_APPEND_NEWLINE)

    def _error(self) -> dict[str, Any]:
        fault = self.faults.get("line_error")
        if fault is not None:
            kind = str(fault.get("type") or error_type(int(fault["status"])))
            message = str(fault.get("message", "The emulator was told to fail this request."))
        else:
            assert self.answer is not None
            kind, message = self.answer.kind, self.answer.error
        return error_body(kind, message, self.request_id)


def _count(work: dict[str, Any], lines: list[_Line], content: bytes) -> None:
    work["results"]["bytes"] += len(content)
    for end, number in Counter(line.end for line in lines).items():
        work["counts"][end] += number


def _moment(record: BatchRecord, place: int) -> float:
    """When the request after the `place` next ones ends, by the batch's pace."""
    work = record.work
    share = (work["done"] + place + 1) / max(1, work["requests"])
    return float(work["begun"] + work["pace"]["batch_seconds"] * share)


def _chunks(lines: Iterable[tuple[int, bytes]]) -> Iterable[list[bytes]]:
    iterator = (raw for _, raw in lines)
    while chunk := list(itertools.islice(iterator, CHUNK_LINES)):
        yield chunk
