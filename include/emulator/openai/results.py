"""What one request of an endpoint comes to: an answer or an error, and its tokens."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from include.emulator.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measure:
    """A request's prompt in tokens: all of it, and the longest of its inputs; `inputs` counts them."""

    total: int
    longest: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Result:
    """An HTTP status and body. Only a 200 is charged."""

    status: int
    body: dict[str, Any]
    input_tokens: int = 0
    output_tokens: int = 0


class Endpoint(Protocol):
    """What batches and real-time calls have in common."""

    def measure(self, bodies: list[dict[str, Any]]) -> list[Measure]:
        """Prompt tokens of each request; a malformed one counts 0."""
        ...

    def run(self, bodies: list[dict[str, Any]], measures: list[Measure]) -> list[Result]:
        """Answer requests of one model; refused ones are results too, never exceptions."""
        ...

    def subject(self, body: dict[str, Any]) -> str:
        """The text that the request asks about, for faults that match it."""
        ...


def run_all(endpoint: Endpoint, bodies: list[dict[str, Any]], measures: list[Measure]) -> list[Result]:
    """`endpoint.run`, where a request that breaks it gets a server error and the others their answers."""
    try:
        return endpoint.run(bodies, measures)
    except Exception:
        if len(bodies) == 1:
            logger.exception("a request broke its endpoint")
            message = "The server had an error while processing your request."
            return [refused(500, message, kind="server_error")]
        return [
            run_all(endpoint, [body], [measure])[0] for body, measure in zip(bodies, measures, strict=True)
        ]


def measure_all(endpoint: Endpoint, bodies: list[dict[str, Any]]) -> list[Measure]:
    """`endpoint.measure`, where a request that breaks it counts nothing; it fails when it is run."""
    try:
        return endpoint.measure(bodies)
    except Exception:
        if len(bodies) == 1:
            return [Measure(0, 0, 0)]
        return [measure_all(endpoint, [body])[0] for body in bodies]


def refused(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    kind: str = "invalid_request_error",
) -> Result:
    """An error result in OpenAI's shape."""
    return Result(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})


def check_model(settings: Settings, body: dict[str, Any]) -> Result | None:
    """The refusal for a missing or unknown model, or None."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        return refused(400, "you must provide a model parameter")
    if not settings.model_exists(model):
        return refused(
            404,
            f"The model `{model}` does not exist or you do not have access to it.",
            code="model_not_found",
        )
    return None
