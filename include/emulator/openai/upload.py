"""A multipart upload written to disk as it arrives: 200 MB take no memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from python_multipart import multipart
from python_multipart.exceptions import MultipartParseError
from starlette.requests import Request

from include.emulator.openai.wire import ApiError

MAX_FIELD_BYTES = 64 * 1024


@dataclass(slots=True)
class Upload:
    """The form's plain fields, and the one file: its name and size; its bytes are at the given path."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    size: int = 0


class _Form:
    """Callbacks of the multipart parser."""

    def __init__(self, out: IO[bytes], limit: int) -> None:
        self.upload = Upload()
        self._out = out
        self._limit = limit
        self._header = bytearray()
        self._value = bytearray()
        self._name = ""
        self._in_file = False
        self._text = bytearray()

    def part_begin(self) -> None:
        self._name, self._in_file = "", False
        self._text.clear()

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = multipart.parse_options_header(bytes(self._value))
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            if b"filename" in options:
                self._in_file = True
                self.upload.filename = options[b"filename"].decode("utf-8", "replace")
        self._header.clear()
        self._value.clear()

    def part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self.upload.size += end - start
            if self.upload.size > self._limit:
                raise ApiError(413, f"The file is larger than the maximum of {self._limit} bytes.")
            self._out.write(memoryview(data)[start:end])
        elif len(self._text) < MAX_FIELD_BYTES:
            self._text += data[start:end]

    def part_end(self) -> None:
        if not self._in_file:
            self.upload.fields[self._name] = self._text.decode("utf-8", "replace")


async def receive_upload(request: Request, path: Path, limit: int) -> Upload:
    """Write the form's file to `path`.

    Raises ApiError 400 for a body that is no form, 413 above `limit` bytes.
    """
    kind, options = multipart.parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise ApiError(400, "Could not parse multipart form", param=None)
    with path.open("wb") as out:
        form = _Form(out, limit)
        parser = multipart.MultipartParser(
            boundary,
            {
                "on_part_begin": form.part_begin,
                "on_part_data": form.part_data,
                "on_part_end": form.part_end,
                "on_header_field": form.header_field,
                "on_header_value": form.header_value,
                "on_header_end": form.header_end,
            },
        )
        try:
            async for chunk in request.stream():
                parser.write(chunk)
            parser.finalize()
        except MultipartParseError as error:
            raise ApiError(400, f"Could not parse multipart form: {error}") from error
    return form.upload
