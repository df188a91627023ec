"""What failed, an item a line: `shards/{shard}/{attempt}/failures.jsonl`, and `refused.jsonl` of a run.

Written when a submission lands, and by `pack` for items that no request can carry; read by the
second attempt and by the dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import orjson

from include.contracts import OutcomeClass
from include.storage import Storage

#: The fields of a line and their types, as a database that reads the file wants them.
COLUMNS = {"key": "varchar", "class": "varchar", "code": "varchar", "message": "varchar", "alone": "boolean"}

#: What the second attempt asks again.
ASKED_AGAIN = frozenset({OutcomeClass.RETRYABLE, OutcomeClass.INVALID})


@dataclass(frozen=True, slots=True)
class Failure:
    """One item's failure. `alone` is False where its line asked for other items too, so that the
    fault may be another's. `answer` is what was answered and can't be taken, where there is such."""

    key: bytes
    cls: OutcomeClass
    code: str
    message: str
    alone: bool = True
    answer: str = ""

    @property
    def asked_again(self) -> bool:
        """Whether the second attempt asks for the item again, alone."""
        return self.cls in ASKED_AGAIN or not self.alone


def of_attempt(shard_id: str, attempt: int) -> str:
    """The failures file of one landed attempt, relative to the storage root."""
    return f"shards/{shard_id}/{attempt}/failures.jsonl"


def write(storage: Storage, path: str, failures: Iterable[Failure]) -> int:
    """Write a failures file, whole; returns how many it holds. An empty one says that none failed."""
    count = 0
    with storage.open_write(path) as handle:
        for failure in failures:
            handle.write(
                orjson.dumps(
                    {
                        "key": failure.key.hex(),
                        "class": failure.cls.value,
                        "code": failure.code,
                        "message": failure.message,
                        "alone": failure.alone,
                        **({"answer": failure.answer} if failure.answer else {}),
                    },
                    option=orjson.OPT_APPEND_NEWLINE,
                )
            )
            count += 1
    return count


def read(storage: Storage, path: str) -> Iterator[Failure]:
    """Stream a failures file. Raises StorageError when it isn't there."""
    with storage.open_read(path) as handle:
        for line in handle:
            record = orjson.loads(line)
            yield Failure(
                bytes.fromhex(record["key"]),
                OutcomeClass(record["class"]),
                record["code"],
                record["message"],
                record["alone"],
                record.get("answer", ""),
            )
