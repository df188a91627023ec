"""Shapes that go over Anthropic's wire: errors, ids, times, who is calling."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from include.emulator.gate import Refusal
from include.emulator.settings import Settings

PROVIDER = "anthropic"
DEFAULT_ORGANIZATION = "org-emulator"
DEFAULT_WORKSPACE = "wrkspc_default"

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""What an error is called by its status; any other is an api_error."""


def error_type(status: int) -> str:
    """The type of an error of this HTTP status."""
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def error_body(kind: str, message: str, request_id: str | None = None) -> dict[str, Any]:
    """An error as it stands in an answer, and, whole, in a batch's results."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def status_body(status: int, message: str) -> dict[str, Any]:
    """The body of an error of this status."""
    return error_body(error_type(status), message, new_id("req_"))


class ApiError(Refusal):
    """A call that is refused: becomes an answer with Anthropic's error body."""

    def __init__(
        self, status: int, message: str, *, kind: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body = error_body(kind or error_type(status), message)

    def response(self) -> Response:
        """Anthropic's error body."""
        request_id = new_id("req_")
        body = {**self.body, "request_id": request_id}
        return answer(body, self.status, {**self.headers, "request-id": request_id})


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose batches a call may see: those of one workspace."""

    workspace: str

    @property
    def account(self) -> str:
        """One string for the store."""
        return f"{DEFAULT_ORGANIZATION}/{self.workspace}"


def new_id(prefix: str) -> str:
    """A fresh id: `msgbatch_`, `req_`... and 24 characters."""
    return f"{prefix}01{uuid.uuid4().hex[:22]}"


def rfc3339(moment: float) -> str:
    """A time as the service writes it."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer with the headers that the service sends."""
    return Response(
        orjson.dumps(body),
        status_code=status,
        media_type="application/json",
        headers={"request-id": new_id("req_"), **(headers or {})},
    )


def caller_of(request: Request, settings: Settings) -> Caller:
    """Who calls, by either of the two headers that carry a key, and by the workspace's header.

    Raises ApiError 401 for a missing key, or one that isn't among those configured; 400 without a version.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = request.headers.get("x-api-key", "").strip() or (
        token.strip() if scheme.lower() == "bearer" else ""
    )
    if not key:
        raise ApiError(401, "x-api-key header is required")
    if settings.keys and key not in settings.keys:
        raise ApiError(401, "invalid x-api-key")
    if not request.headers.get("anthropic-version"):
        raise ApiError(400, "anthropic-version: header is required")
    return Caller(request.headers.get("anthropic-workspace-id") or DEFAULT_WORKSPACE)


async def json_body(request: Request) -> dict[str, Any]:
    """The call's JSON object. Raises ApiError 400 if it is none."""
    return json_object(await request.body())


def json_object(content: bytes) -> dict[str, Any]:
    """A JSON object. Raises ApiError 400 if it is none."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "Input should be a valid dictionary")
    return body


def limit_query(request: Request, default: int, most: int) -> int:
    """`limit` of the query string. Raises ApiError 400 outside its range."""
    raw = request.query_params.get("limit")
    try:
        value = default if raw is None else int(raw)
    except ValueError:
        raise ApiError(400, "limit: Input should be a valid integer") from None
    if not 1 <= value <= most:
        raise ApiError(400, f"limit: Input should be between 1 and {most}, not {value}")
    return value
