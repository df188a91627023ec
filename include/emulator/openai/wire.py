"""Shapes that go over OpenAI's wire: errors, ids, who is calling."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from include.emulator.gate import Refusal
from include.emulator.settings import Settings

PROVIDER = "openai"
DEFAULT_ORGANIZATION = "org-emulator"
DEFAULT_PROJECT = "proj_default"


class ApiError(Refusal):
    """A call that is refused: becomes an answer with OpenAI's error body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        """OpenAI's error body."""
        return answer(self.body, self.status, self.headers)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose files and batches a call may see."""

    organization: str
    project: str

    @property
    def account(self) -> str:
        """One string for the store."""
        return f"{self.organization}/{self.project}"


def new_id(prefix: str) -> str:
    """A fresh id: `file-`, `batch_`, `req_`... and 32 hex characters."""
    return f"{prefix}{uuid.uuid4().hex}"


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer with the headers that the service sends; vectors as NumPy arrays are fine."""
    return Response(
        orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY),
        status_code=status,
        media_type="application/json",
        headers={"x-request-id": new_id("req_"), "openai-version": "2020-10-01", **(headers or {})},
    )


def caller_of(request: Request, settings: Settings) -> Caller:
    """Who calls, by the Authorization header and the organisation and project headers.

    Raises ApiError 401 for a missing key, or one that isn't among those configured.
    """
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise ApiError(
            401,
            "You didn't provide an API key. You need to provide your API key in an Authorization header "
            "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
        )
    if settings.keys and key not in settings.keys:
        shown = key if len(key) <= 8 else f"{key[:4]}{'*' * (len(key) - 8)}{key[-4:]}"
        raise ApiError(
            401,
            f"Incorrect API key provided: {shown}. You can find your API key at "
            "https://platform.openai.com/account/api-keys.",
            code="invalid_api_key",
        )
    return Caller(
        request.headers.get("openai-organization") or DEFAULT_ORGANIZATION,
        request.headers.get("openai-project") or DEFAULT_PROJECT,
    )


async def json_body(request: Request) -> dict[str, Any]:
    """The call's JSON object. Raises ApiError 400 if it is none."""
    try:
        body = json.loads(await request.body())
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ApiError(
            400,
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using "
            "your HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was "
            "not valid JSON.)",
        )
    return body


def integer_query(request: Request, name: str, default: int, low: int, high: int) -> int:
    """An integer of the query string. Raises ApiError 400 outside its range."""
    raw = request.query_params.get(name)
    if raw is None:
        return default
    try:
        value = int(raw)
    except ValueError:
        raise ApiError(400, f"Invalid type for '{name}': expected an integer.", param=name) from None
    if value < low or value > high:
        kind, edge, bound = ("below_min", "greater", low) if value < low else ("above_max", "less", high)
        raise ApiError(
            400,
            f"Invalid '{name}': integer {kind.replace('_', ' ')} value. Expected a value {edge} than or "
            f"equal to {bound}, but got {value} instead.",
            param=name,
            code=f"integer_{kind}_value",
        )
    return value
