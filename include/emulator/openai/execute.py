"""Runs a batch's requests, chunk by chunk, and appends what they came to to its two files.

A chunk's bytes are written before its commit and cut back to the last commit's length before they
are written again: a killed process neither loses a line nor writes or charges one twice.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from include.emulator.faults import LINE_ACTIONS, Faults
from include.emulator.lines import CHUNK_BYTES, CHUNK_LINES, SLOW_CHUNK_LINES, file_lines, write_at
from include.emulator.openai.results import Endpoint, Measure, Result, run_all
from include.emulator.openai.wire import PROVIDER
from include.emulator.prices import dollars
from include.emulator.settings import Settings
from include.emulator.store import BatchRecord, Store


class Executor:
    """Only the worker's thread calls it."""

    def __init__(
        self, settings: Settings, store: Store, faults: Faults, endpoints: dict[str, Endpoint]
    ) -> None:
        self.endpoints = endpoints
        self._settings = settings
        self._store = store
        self._faults = faults
        self._chunk_lines = CHUNK_LINES if settings.embeddings == "hash" else SLOW_CHUNK_LINES

    def _measures_path(self, batch_id: str) -> Path:
        return self._store.files / f"{batch_id}.measures.npy"

    def keep_measures(self, batch_id: str, measures: npt.NDArray[np.int32]) -> None:
        """Keep what validation counted, shape (requests, 3), beside the files."""
        np.save(self._measures_path(batch_id), measures)

    def forget(self, batch_id: str) -> None:
        """Remove what only a live batch needs."""
        self._measures_path(batch_id).unlink(missing_ok=True)

    def chunk(self, record: BatchRecord, most: int) -> bool:
        """Run up to `most` of the next requests; False if the file is gone or has no more."""
        path = self._store.path(record.wire["input_file_id"])
        if not path.exists():
            return self._skip_rest(record)
        work = record.work
        read, bodies, custom_ids = work["read"], [], []
        start = read
        for read, raw in itertools.islice(file_lines(path, start), min(most, self._chunk_lines)):
            line = orjson.loads(raw)
            custom_ids.append(line["custom_id"])
            bodies.append(line["body"])
            if read - start > CHUNK_BYTES:
                break
        rows = np.load(self._measures_path(record.id), mmap_mode="r")[
            work["done"] : work["done"] + len(bodies)
        ]
        measures = [Measure(*map(int, row)) for row in rows]
        lines = self._run(record, bodies, custom_ids, measures)
        self._commit(record, lines, len(bodies), read)
        return True

    def _run(
        self,
        record: BatchRecord,
        bodies: list[dict[str, Any]],
        custom_ids: list[str],
        measures: list[Measure],
    ) -> list[_Line]:
        endpoint = self.endpoints[record.wire["endpoint"]]
        lines = [_Line(custom_id, _request_id(record.id, custom_id)) for custom_id in custom_ids]
        if self._faults.watches("line"):
            for line, body in zip(lines, bodies, strict=True):
                subject = endpoint.subject(body)
                for rule in self._faults.strike(
                    "line", subject, actions=LINE_ACTIONS, custom_id=line.custom_id
                ):
                    line.faults[rule.do] = rule.options
        good = [index for index, line in enumerate(lines) if "line_error" not in line.faults]
        results = run_all(endpoint, [bodies[index] for index in good], [measures[index] for index in good])
        for index, result in zip(good, results, strict=True):
            lines[index].result = result
        # Results never come in the order of the requests: nobody shall get used to it.
        return sorted(lines, key=lambda line: line.request_id)

    def _commit(self, record: BatchRecord, lines: list[_Line], count: int, read: int) -> None:
        output = b"".join(line.output() for line in lines if line.succeeded)
        errors = b"".join(line.output() for line in lines if not line.succeeded)
        self._append(record, "output", output)
        self._append(record, "error", errors)
        charged = [line for line in lines if line.succeeded]
        with self._store.transaction():
            fresh = self._store.get_batch(record.id, PROVIDER)
            if fresh is None or not fresh.active:
                return
            work = fresh.work
            for kind, content in (("output", output), ("error", errors)):
                work[kind]["bytes"] += len(content)
                work[kind]["lines"] += content.count(b"\n")
            work["done"] += count
            work["read"] = read
            if work["stop"] is not None:
                work["stop"] = max(work["stop"], work["done"])
            input_tokens = sum(line.result.input_tokens for line in charged if line.result)
            output_tokens = sum(line.result.output_tokens for line in charged if line.result)
            work["input_tokens"] += input_tokens
            work["output_tokens"] += output_tokens
            work["dollars"] += dollars(
                self._settings, fresh.wire["model"], input_tokens, output_tokens, batch=True
            )
            fresh.wire["request_counts"]["completed"] += len(charged)
            fresh.wire["request_counts"]["failed"] += count - len(charged)
            self._store.charge(record.id, (line.custom_id for line in charged))
            self._store.save_batch(fresh)
            if self._faults.watches("line"):
                self._faults.save()

    def _append(self, record: BatchRecord, kind: str, content: bytes) -> None:
        part = record.work[kind]
        write_at(self._store.path(part["id"]), part["bytes"], content)

    def write_unfinished(self, record: BatchRecord, code: str, message: str) -> None:
        """Write an error line for each request that never ran. The caller saves the record."""
        path = self._store.path(record.wire["input_file_id"])
        if not path.exists() or not record.work["requests"]:
            return
        failed = 0
        for chunk in _chunks(file_lines(path, record.work["read"])):
            content = b""
            for raw in chunk:
                custom_id = orjson.loads(raw)["custom_id"]
                line = _Line(custom_id, _request_id(record.id, custom_id))
                line.faults["line_error"] = {"code": code, "message": message}
                content += line.output()
                failed += 1
            self._append(record, "error", content)
            record.work["error"]["bytes"] += len(content)
            record.work["error"]["lines"] += len(chunk)
        record.wire["request_counts"]["failed"] += failed

    def _skip_rest(self, record: BatchRecord) -> bool:
        """The input file was deleted under a running batch: its remaining requests fail."""
        with self._store.transaction():
            fresh = self._store.get_batch(record.id, PROVIDER)
            if fresh is None or not fresh.active:
                return False
            fresh.wire["request_counts"]["failed"] += fresh.work["requests"] - fresh.work["done"]
            fresh.work["done"] = fresh.work["requests"]
            self._store.save_batch(fresh)
        return True


class _Line:
    """One request of a chunk on its way into the output or the error file."""

    __slots__ = ("custom_id", "faults", "request_id", "result")

    def __init__(self, custom_id: str, request_id: str) -> None:
        self.custom_id = custom_id
        self.request_id = request_id
        self.result: Result | None = None
        self.faults: dict[str, dict[str, Any]] = {}

    @property
    def succeeded(self) -> bool:
        return self.result is not None and self.result.status == 200

    def output(self) -> bytes:
        """The line or lines to write, with their newlines."""
        if "line_omit" in self.faults:
            return b""
        raw = self._encode(self.custom_id)
        if "line_duplicate" in self.faults:
            raw += raw
        if foreign := self.faults.get("line_foreign"):
            raw += self._encode(str(foreign.get("foreign_id", f"foreign-{self.request_id[-8:]}")))
        elif "line_foreign" in self.faults:
            raw += self._encode(f"foreign-{self.request_id[-8:]}")
        return raw

    def _encode(self, custom_id: str) -> bytes:
        response: dict[str, Any] | None = None
        error: dict[str, Any] | None = None
        fault = self.faults.get("line_error")
        if self.result is not None:
            body = self.result.body
            if self.succeeded and "line_body" in self.faults:
                body = body | self.faults["line_body"]["body"]
            response = {"status_code": self.result.status, "request_id": self.request_id[10:], "body": body}
        elif fault is not None and fault.get("status"):
            detail = {
                "message": fault.get("message", "The emulator was told to fail this request."),
                "type": fault.get(
                    "type", "server_error" if fault["status"] >= 500 else "invalid_request_error"
                ),
                "param": fault.get("param"),
                "code": fault.get("code"),
            }
            response = {
                "status_code": fault["status"],
                "request_id": self.request_id[10:],
                "body": {"error": detail},
            }
        elif fault is not None:
            error = {
                "code": fault.get("code", "batch_expired"),
                "message": fault.get("message", "This request could not be executed."),
            }
        line = {"id": self.request_id, "custom_id": custom_id, "response": response, "error": error}
        return orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _request_id(batch_id: str, custom_id: str) -> str:
    """The same for the same request of the same batch, so that a chunk run again writes the same bytes."""
    digest = hashlib.blake2b(f"{batch_id}\0{custom_id}".encode(), digest_size=12).hexdigest()
    return f"batch_req_{digest}"


def _chunks(lines: Iterable[tuple[int, bytes]]) -> Iterable[list[bytes]]:
    iterator = (raw for _, raw in lines)
    while chunk := list(itertools.islice(iterator, CHUNK_LINES)):
        yield chunk
