"""/v1/files: upload, list, retrieve, delete, and the bytes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from include.emulator.clock import Clock
from include.emulator.gate import Gate
from include.emulator.openai.upload import receive_upload
from include.emulator.openai.wire import (
    PROVIDER,
    ApiError,
    answer,
    caller_of,
    integer_query,
    new_id,
)
from include.emulator.settings import Settings
from include.emulator.store import FileRecord, Store

BLOCK = 1024 * 1024
DAY = 86_400
BATCH_FILE_DAYS = 30
"""A batch file lives 30 days unless told otherwise (SDK, file_create_params)."""
EXPIRY_RANGE = (3_600, 2_592_000)
PURPOSES = {"assistants", "batch", "fine-tune", "vision", "user_data", "evals"}


def file_object(
    file_id: str, size: int, created_at: float, filename: str, purpose: str, expires_at: float | None
) -> dict[str, Any]:
    """A file as the service shows it."""
    return {
        "id": file_id,
        "object": "file",
        "bytes": size,
        "created_at": int(created_at),
        "expires_at": None if expires_at is None else int(expires_at),
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }


class FileApi:
    """The handlers of /v1/files."""

    def __init__(self, settings: Settings, clock: Clock, store: Store) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store

    def routes(self, gate: Gate) -> list[Route]:
        """The operations `files.*`."""
        return [
            gate.route("files.create", "POST", "/files", self.create),
            gate.route("files.list", "GET", "/files", self.list),
            gate.route("files.retrieve", "GET", "/files/{file_id}", self.retrieve),
            gate.route("files.delete", "DELETE", "/files/{file_id}", self.delete),
            gate.route("files.content", "GET", "/files/{file_id}/content", self.content),
        ]

    async def create(self, request: Request) -> Response:
        """Take a file in; its record is written once its bytes are in place."""
        caller = caller_of(request, self._settings)
        self._store.purge_files(self._clock.now())
        file_id = new_id("file-")
        unfinished = self._store.files / f"{file_id}.uploading"
        try:
            upload = await receive_upload(request, unfinished, self._settings.max_upload_bytes)
            purpose = upload.fields.get("purpose")
            if not purpose:
                raise ApiError(400, "'purpose' is a required property", param="purpose")
            if purpose not in PURPOSES:
                raise ApiError(
                    400,
                    f"'{purpose}' is not one of {sorted(PURPOSES)} - 'purpose'",
                    param="purpose",
                )
            if upload.filename is None:
                raise ApiError(400, "'file' is a required property", param="file")
            if upload.size == 0:
                raise ApiError(400, "File is empty.", param="file")
            now = self._clock.now()
            expires_at = _expiry(upload.fields, purpose, now)
            unfinished.rename(self._store.path(file_id))
        except ClientDisconnect:
            return Response(status_code=499)
        finally:
            unfinished.unlink(missing_ok=True)
        wire = file_object(file_id, upload.size, now, upload.filename, purpose, expires_at)
        self._store.add_file(FileRecord(file_id, PROVIDER, caller.account, expires_at, wire))
        return answer(wire)

    async def list(self, request: Request) -> Response:
        """A page of the account's files."""
        caller = caller_of(request, self._settings)
        limit = integer_query(request, "limit", 10_000, 1, 10_000)
        query = request.query_params
        records = self._store.list_files(PROVIDER, caller.account, self._clock.now())
        if query.get("order", "desc") == "desc":
            records.reverse()
        if purpose := query.get("purpose"):
            records = [each for each in records if each.wire["purpose"] == purpose]
        if after := query.get("after"):
            ids = [each.id for each in records]
            records = records[ids.index(after) + 1 :] if after in ids else []
        page = [each.wire for each in records[:limit]]
        return answer(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(records) > limit,
            }
        )

    async def retrieve(self, request: Request) -> Response:
        """One file."""
        return answer(self._find(request).wire)

    async def delete(self, request: Request) -> Response:
        """Remove a file."""
        record = self._find(request)
        self._store.delete_file(record.id)
        return answer({"id": record.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """A file's bytes, streamed."""
        record = self._find(request)
        path = self._store.path(record.id)
        return StreamingResponse(
            _blocks(path),
            media_type="application/octet-stream",
            headers={
                "content-length": str(path.stat().st_size),
                "content-disposition": f'attachment; filename="{record.id}"',
                "x-request-id": new_id("req_"),
            },
        )

    def _find(self, request: Request) -> FileRecord:
        caller = caller_of(request, self._settings)
        file_id = request.path_params["file_id"]
        record = self._store.get_file(PROVIDER, caller.account, file_id, self._clock.now())
        if record is None:
            raise ApiError(404, f"No such File object: {file_id}", param="id")
        return record


def _expiry(fields: dict[str, str], purpose: str, now: float) -> float | None:
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return now + BATCH_FILE_DAYS * DAY if purpose == "batch" else None
    low, high = EXPIRY_RANGE
    if not seconds.isdigit() or not low <= int(seconds) <= high:
        raise ApiError(
            400,
            f"Invalid 'expires_after.seconds': expected {low} to {high}, but got {seconds!r}.",
            param="expires_after.seconds",
        )
    if fields.get("expires_after[anchor]") != "created_at":
        raise ApiError(
            400,
            "Invalid 'expires_after.anchor': only 'created_at' is supported.",
            param="expires_after.anchor",
        )
    return now + int(seconds)


async def _blocks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while block := await asyncio.to_thread(file.read, BLOCK):
            yield block
