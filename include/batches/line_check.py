"""Every line is checked before it is uploaded: one bad line can fail a whole file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from include.contracts import Space
from include.errors import BatchInferenceError


class LineCheck:
    """Checks that a line is one line of JSON, bears its custom_id, and names the space's endpoint
    and model wherever it names any."""

    def __init__(self, space: Space) -> None:
        import simdjson

        self._parser = simdjson.Parser()
        self._endpoint = space.endpoint
        self._model = space.model

    def __call__(self, bodies: Sequence[bytes], custom_ids: Sequence[str]) -> None:
        """Raises BatchInferenceError that says what is wrong with which line."""
        parse, endpoint, model = self._parser.parse, self._endpoint, self._model
        record: Any = None
        inner: Any = None
        for body, custom_id in zip(bodies, custom_ids, strict=True):
            try:
                # The parser can't be used again while objects of its last document live.
                record = inner = None
                record = parse(body)
                named = record["custom_id"]
                url = record.get("url", endpoint)
                inner = record.get("body") or record.get("params")
                asked = inner.get("model", model)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                record = inner = None
                raise _bad(custom_id, f"isn't a request as a JSON object ({error})") from None
            if named != custom_id:
                raise _bad(custom_id, f"bears the custom_id {named!r}")
            if url != endpoint:
                raise _bad(custom_id, f"is for {url!r}, the batch for {endpoint!r}")
            if asked != model:
                raise _bad(custom_id, f"is for the model {asked!r}, the space for {model!r}")
            if body.find(b"\n") != len(body) - 1:
                raise _bad(custom_id, "must be one line with its newline")


def _bad(custom_id: str, what: str) -> BatchInferenceError:
    return BatchInferenceError(
        f"the line of request {custom_id} {what}; nothing was sent: mend the provider's `line`"
    )
