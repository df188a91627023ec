"""Every line is checked before it is uploaded: one bad line can fail a whole file.

A line is one line of JSON, bears its custom_id, and names the space's endpoint and model wherever
it names any. The first of some lines is parsed; one that has the same beginning, up to behind its
endpoint and model, needs no parser to tell, and any other is parsed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from include.contracts import Space
from include.errors import BatchInferenceError


class LineCheck:
    """Checks the lines of one space."""

    def __init__(self, space: Space) -> None:
        import simdjson

        self._parser = simdjson.Parser()
        self._endpoint = space.endpoint
        self._model = space.model

    def __call__(self, bodies: Sequence[bytes], custom_ids: Sequence[str]) -> None:
        """Raises BatchInferenceError that says what is wrong with which line."""
        if not bodies:
            return
        self._parse(bodies[0], custom_ids[0])
        before, after = self._beginning(bodies[0], custom_ids[0])
        for body, custom_id in zip(bodies, custom_ids, strict=True):
            if not after or not body.startswith(before + custom_id.encode() + after):
                self._parse(body, custom_id)
            if body.find(b"\n") != len(body) - 1:
                raise _bad(custom_id, "must be one line with its newline")

    def _beginning(self, body: bytes, custom_id: str) -> tuple[bytes, bytes]:
        """What comes before the custom_id of a good line, and from behind it to its endpoint and model.

        The latter is empty where one of them isn't named, or not in that order.
        """
        name = custom_id.encode()
        start = body.find(name) + len(name)
        ends = [start]
        for field, value in (("url", self._endpoint), ("model", self._model)):
            token = orjson.dumps({field: value})[1:-1]
            place = body.find(token, start)
            if place < 0:
                return b"", b""
            ends.append(place + len(token))
        return body[: start - len(name)], body[start : max(ends)]

    def _parse(self, body: bytes, custom_id: str) -> None:
        record: Any = None
        inner: Any = None
        try:
            record = self._parser.parse(body)
            named = record["custom_id"]
            url = record.get("url", self._endpoint)
            inner = record.get("body") or record.get("params")
            model = inner.get("model", self._model)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _bad(custom_id, f"isn't a request as a JSON object ({error})") from None
        finally:
            # The parser can't be used again while objects of its last document live.
            record = inner = None
        if named != custom_id:
            raise _bad(custom_id, f"bears the custom_id {named!r}")
        if url != self._endpoint:
            raise _bad(custom_id, f"is for {url!r}, the batch for {self._endpoint!r}")
        if model != self._model:
            raise _bad(custom_id, f"is for the model {model!r}, the space for {self._model!r}")


def _bad(custom_id: str, what: str) -> BatchInferenceError:
    return BatchInferenceError(
        f"the line of request {custom_id} {what}; nothing was sent: mend the provider's `line`"
    )
