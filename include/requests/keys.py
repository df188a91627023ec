"""Names: the key of an item and the id of a line, both made of content alone.

A key is 128 bits of BLAKE2b over (space, sample, input). What is hashed, in this order:

- the space's id, 16 bytes
- the sample, 4 bytes little-endian
- `t` and the UTF-8 of the text, or `j` and the canonical JSON (sorted keys, no blanks, UTF-8)

with BLAKE2's personalisation set, so that no other hash of this project can equal a key. The
golden vectors in the tests fix this for ever: a change here would make every answer that was paid
for unfindable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from include.contracts import JSON, KEY_BYTES

_PERSON = b"batch-item"
_LINE_PERSON = b"batch-line"
_TEXT = b"t"
_OTHER = b"j"


def item_key(space_id: str, input: JSON, sample: int = 0) -> bytes:
    """The 16-byte key of one input in a space.

    `space_id` is 32 hex characters (`Space.id`); `sample` is 0 unless a workload wants several
    answers to one input. Raises ValueError for an input that JSON has no form for (NaN, infinity)
    and for text that has no UTF-8 (a lone surrogate).
    """
    if isinstance(input, str):
        return item_keys(space_id, (input,), sample)[0]
    hasher = _prefix(space_id, sample, _OTHER)
    canonical = json.dumps(input, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    hasher.update(canonical.encode())
    return hasher.digest()


def item_keys(space_id: str, inputs: Sequence[str], sample: int = 0) -> list[bytes]:
    """The keys of many texts, in their order: the same as `item_key` of each, and faster."""
    fresh = _prefix(space_id, sample, _TEXT).copy
    keys = []
    for text in inputs:
        hasher = fresh()
        hasher.update(text.encode())
        keys.append(hasher.digest())
    return keys


def line_id(keys: Sequence[bytes]) -> str:
    """The `custom_id` of a line: the key itself in hex, or a hash of the keys where there are several.

    32 hex characters, which every provider takes. The order of the keys counts: it is the order
    of the inputs in the line.
    """
    if len(keys) == 1:
        return keys[0].hex()
    return hashlib.blake2b(b"".join(keys), digest_size=KEY_BYTES, person=_LINE_PERSON).hexdigest()


def _prefix(space_id: str, sample: int, tag: bytes) -> hashlib.blake2b:
    space = bytes.fromhex(space_id)
    if len(space) != KEY_BYTES:
        raise ValueError(f"{space_id!r} is not the id of a space: it must have 32 hex characters")
    return hashlib.blake2b(space + sample.to_bytes(4, "little") + tag, digest_size=KEY_BYTES, person=_PERSON)
