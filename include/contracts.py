"""The shared types and Protocols. Everything else in `include` may import this; it imports nothing of ours.

The one idea: a request is named by its content. An *item* is one input that wants one result; its
*key* is 128 bits of BLAKE2b over (space, input, sample). See `docs/how_it_works.md`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

JSON = str | int | float | bool | None | list[Any] | dict[str, Any]
"""Anything `json.loads` can return."""

Vector = npt.NDArray[np.float32]
"""One embedding, shape (dimensions,), little-endian float32."""

KEY_BYTES = 16
"""Width of a key: 128 bits of BLAKE2b. In text it is 32 hex characters."""

FLOAT_BYTES = 4
"""Width of a vector's numbers."""


# --------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class Space:
    """Everything but the input that an answer depends on. Results never mix between spaces.

    `service` is the base URL's authority, or the `service` label in the connection's extra.
    `params` holds the parameters that change the answer (dimensions, input type, schema,
    temperature), not those that don't (`encoding_format`, `user`, cache marks). `presend` is the
    fingerprint of the hook that every input went through, "" without one.
    """

    protocol: str
    service: str
    endpoint: str
    model: str
    params: Mapping[str, JSON] = field(default_factory=dict)
    presend: str = ""

    def describe(self) -> dict[str, JSON]:
        """The space as JSON-ready data, in a fixed order; without a hook, as if there were none."""
        told: dict[str, JSON] = {
            "protocol": self.protocol,
            "service": self.service,
            "endpoint": self.endpoint,
            "model": self.model,
            "params": dict(sorted(self.params.items())),
        }
        return {**told, "presend": self.presend} if self.presend else told

    @property
    def id(self) -> str:
        """32 hex characters: BLAKE2b-128 of the canonical JSON of `describe()`."""
        canonical = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.blake2b(canonical.encode(), digest_size=KEY_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Item:
    """One input that wants one result. `tokens` is the input's count, exact or estimated."""

    key: bytes
    input: JSON
    tokens: int


class OutcomeClass(StrEnum):
    """What a line's answer means for its item."""

    SUCCEEDED = "succeeded"
    INVALID = "invalid"
    """A 200 that is truncated, refused, off-schema, of the wrong dimension or not finite."""
    RETRYABLE = "retryable"
    """Expired, rate limit, server error, cancelled, missing from the output."""
    PERMANENT = "permanent"
    """Bad request, too long, content filter: asking again gives the same."""
    ACCOUNT = "account"
    """Billing or authentication: nothing of this run will work until a person mends it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reports them; `input` includes the cached ones, both read and written.

    `cache_write_hour` is the part of `cache_write` that is kept for an hour instead of minutes.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_hour: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.cache_write_hour + other.cache_write_hour,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one line, judged by the provider's protocol alone.

    `values` has one entry an item of the line, in the line's order: a `Vector` for embeddings,
    text for generated answers. It is empty unless `cls` is SUCCEEDED (or INVALID, where the
    answer is worth keeping for its reader). `usage` is the whole line's.
    """

    custom_id: str
    cls: OutcomeClass
    values: Sequence[Vector | str] = ()
    usage: Usage = Usage()
    model: str = ""
    code: str = ""
    message: str = ""


# --------------------------------------------------------------------------- batches


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider and model allow; `None` means no limit is known. Source: `config/limits.yaml`."""

    requests_per_batch: int
    bytes_per_batch: int
    inputs_per_batch: int | None = None
    inputs_per_request: int = 1
    tokens_per_request: int | None = None
    tokens_per_input: int | None = None
    enqueued_tokens: int | None = None
    enqueued_requests: int | None = None
    account_requests: int | None = None
    """Enqueued requests of all models together; the two above are a model's."""
    live_batches: int | None = None
    creations_per_hour: int | None = None

    @property
    def longest_input(self) -> int | None:
        """Tokens of the longest input that can be sent: no more than a request may hold."""
        known = [most for most in (self.tokens_per_input, self.tokens_per_request) if most is not None]
        return min(known, default=None)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a million tokens. `batch_discount` 0.5 means half price in a batch."""

    input: float
    output: float = 0.0
    batch_discount: float = 0.5
    cache_read: float | None = None
    cache_write: float | None = None
    cache_write_hour: float | None = None

    def cost(self, usage: Usage, *, batch: bool) -> float:
        """Dollars for `usage`, at batch or real-time price. A cache price that is None is that of any
        input; that of an hour is else the other write's."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        hour = write if self.cache_write_hour is None else self.cache_write_hour
        plain = usage.input - usage.cache_read - usage.cache_write
        dollars = (
            plain * self.input
            + usage.cache_read * read
            + (usage.cache_write - usage.cache_write_hour) * write
            + usage.cache_write_hour * hour
            + usage.output * self.output
        ) / 1e6
        return dollars * (1.0 - self.batch_discount) if batch else dollars


@dataclass(frozen=True, slots=True)
class Submission:
    """One attempt at one shard, as a provider needs to see it.

    `id` is ours and goes into the provider's metadata where it has any. `file_id` is set once
    the input is uploaded, `batch_id` once the provider answered `create`. `after_batch_id` is the
    `newest` batch before the create, `until_batch_id` that at the end of the grace for an unknown
    one; "" means that the account had none.
    """

    id: str
    shard: str
    attempt: int
    deployment: str
    endpoint: str
    lines: int
    file_id: str | None = None
    batch_id: str | None = None
    after_batch_id: str | None = None
    until_batch_id: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the ledger knows that tells a submission's batch where the provider keeps nothing of ours.

    `known` returns those of some batch ids that are another submission's; `custom_ids` reads the shard's.
    """

    known: Callable[[Sequence[str]], Collection[str]]
    custom_ids: Callable[[], Collection[str]]


class BatchState(StrEnum):
    """A batch as we see it. A provider's status that we never heard of is RUNNING."""

    RUNNING = "running"
    ENDED = "ended"
    NOT_FOUND = "not_found"
    """The provider answers 404. Unknown for a long while, not gone."""


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One answer to a poll. Counts are hints for the log; outcomes are judged line by line.

    `failed_lines` maps 1-based line numbers to (code, message) where a whole-file validation
    named them. `error` is (code, message) of a failure of the whole batch.
    """

    batch_id: str
    state: BatchState
    provider_status: str
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    error: tuple[str, str] | None = None
    failed_lines: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A batch as the provider lists it. `deployment` and `submission` are what it bears of ours, "" where
    it bears nothing; `file_id` is the input file, where there is one."""

    status: BatchStatus
    deployment: str = ""
    submission: str = ""
    file_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeldFile:
    """An uploaded request file as the provider lists it; `deployment` and `submission` as its name tells."""

    id: str
    bytes: int
    deployment: str
    submission: str


@runtime_checkable
class BatchProvider(Protocol):
    """One provider's batch API. Built around a ready SDK client; holds no state of ours.

    Every method may raise `errors.ProviderError`; what `create` raises decides what we know:
    `ProviderRefused` (no batch exists), `ProviderUnknown` (there may be one; `find` decides).
    """

    name: str
    account: str
    """A label, or the hash of (service, organisation, project); never of the key."""
    uploads: bool
    """Whether the requests are uploaded as a file before `create`; else they go with it."""

    def line(self, space: Space, items: Sequence[Item], custom_id: str) -> bytes:
        """The JSONL line, UTF-8 with its newline, that asks for these items."""
        ...

    def upload(self, file: IO[bytes], size: int, submission: Submission) -> str:
        """Upload a shard's request file; returns the provider's file id. Streams."""
        ...

    def newest(self) -> str | None:
        """What is noted before `create` so that `find` can tell its batch: the id of the newest batch,
        "" where there is none. None where the provider keeps our submission's id with the batch."""
        ...

    def create(self, submission: Submission, requests: IO[bytes] | None = None) -> BatchStatus:
        """Create the batch. The only call that spends money; never retried by the SDK.

        `requests` is the shard's request file, where the provider has no `uploads`.
        """
        ...

    def find(self, submission: Submission, evidence: Evidence) -> list[BatchStatus]:
        """Every batch the provider holds that is this submission; all pages are read.

        Raises `errors.ProviderUndecided` where only time can tell.
        """
        ...

    def list_batches(self) -> Iterator[HeldBatch]:
        """Every batch of the account, page by page, whoever made it."""
        ...

    def list_files(self) -> Iterator[HeldFile]:
        """The account's request files that are named as ours are, page by page; none without `uploads`."""
        ...

    async def poll(self, batch_ids: Sequence[str]) -> list[BatchStatus]:
        """The present state of these batches. A batch whose poll failed is left out."""
        ...

    def status(self, batch_id: str) -> BatchStatus:
        """The present state of one batch."""
        ...

    def outcomes(self, status: BatchStatus, space: Space) -> Iterator[Outcome]:
        """Stream every outcome of an ended batch, output and errors, one line in memory."""
        ...

    def cancel(self, batch_id: str) -> None:
        """Ask the provider to cancel; the batch still ends by itself."""
        ...

    def delete_file(self, file_id: str) -> None:
        """Delete an uploaded file; one that is gone already is no error."""
        ...

    def probe(self, space: Space, text: str) -> Outcome:
        """One real-time call with a fixed text: proves credentials, model and dimensions."""
        ...


# --------------------------------------------------------------------------- stores


class Metric(StrEnum):
    """Distance between vectors."""

    COSINE = "cosine"
    DOT = "dot"
    L2 = "l2"


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """A physical index: its name, the shape of its vectors and how they are compared."""

    name: str
    dimensions: int
    metric: Metric = Metric.COSINE


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result, best first. `score` grows with similarity."""

    chunk_id: str
    document_id: str
    score: float
    text: str
    metadata: Mapping[str, JSON]


#: Rows as every store takes and returns them. `metadata` is a JSON object as text.
#: `vector` is a fixed-size list of float32 of the index's dimensions. `stamp` is a hash of all that
#: the row was made of: a row with the same id and stamp needn't be written again.
ROW_COLUMNS: tuple[str, ...] = ("chunk_id", "document_id", "text", "metadata", "vector", "stamp")


def row_schema(dimensions: int) -> pa.Schema:
    """The Arrow schema of store rows: chunk_id (UUID text), document_id, text, metadata, vector, stamp."""
    fields: list[pa.Field[Any]] = [
        pa.field("chunk_id", pa.string(), nullable=False),
        pa.field("document_id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), dimensions), nullable=False),
        pa.field("stamp", pa.int64(), nullable=False),
    ]
    return pa.schema(fields)


#: What a store lists of its rows.
HELD_COLUMNS: tuple[str, ...] = ("chunk_id", "document_id", "stamp")


Holds = Literal["anything", "nothing", "others"]
"""What an index holds of some ids, as one saw who holds their documents' locks: nothing, or rows with
other stamps."""


@runtime_checkable
class VectorStore(Protocol):
    """A vector store. All writes are idempotent by chunk id and take whole Arrow batches."""

    name: str

    def ensure(self, spec: IndexSpec) -> None:
        """Create the index, or check that the one there has these dimensions and this metric.

        Raises `errors.IndexMismatch` when it hasn't.
        """
        ...

    def exists(self, index: str) -> bool:
        """Whether the physical index is there."""
        ...

    def upsert(self, index: str, rows: Iterable[pa.RecordBatch], *, holds: Holds = "anything") -> None:
        """Insert or overwrite rows of `row_schema`, by chunk_id. Reads the batches as it writes.

        `holds` spares a store from looking where the caller has done so; most make no difference.
        Where rows replace others, both may be seen for a moment, never neither.
        """
        ...

    def set_metadata(self, index: str, rows: pa.RecordBatch) -> None:
        """Overwrite `metadata` and `stamp` of existing chunks; rows have those and chunk_id only.

        A chunk that has its stamp already may be left alone.
        """
        ...

    def delete(self, index: str, chunk_ids: Sequence[str]) -> None:
        """Delete by chunk id; ids that aren't there are no error."""
        ...

    def fetch(self, index: str, chunk_ids: Sequence[str]) -> pa.Table:
        """The rows with these ids, vectors included, in any order; absent ones are left out."""
        ...

    def ids(self, index: str) -> Iterator[pa.Table]:
        """`HELD_COLUMNS` of all rows, streamed in tables."""
        ...

    def ids_of(self, index: str, document_ids: pa.Array[Any]) -> Iterator[pa.Table]:
        """`HELD_COLUMNS` of all rows of these documents, in any order, streamed in tables."""
        ...

    def count(self, index: str) -> int:
        """How many rows the index holds."""
        ...

    def search(
        self, index: str, vector: Vector, k: int, filter: Mapping[str, JSON] | None = None
    ) -> list[Hit]:
        """The k nearest rows, best first; `filter` is equality on metadata fields, or with one text of a
        list."""
        ...

    def drop(self, index: str) -> None:
        """Drop the physical index; one that is gone already is no error."""
        ...

    def compact(self, index: str) -> None:
        """Tidy up after bulk writes where the store has such a thing; else nothing."""
        ...


# --------------------------------------------------------------------------- a run


@dataclass(frozen=True, slots=True)
class RunRef:
    """One run of one workload over one corpus, and where its files lie.

    `run` is unique in the ledger; `uri` is the run's folder in storage.
    """

    run: str
    workload: str
    corpus: str
    uri: str


#: Rows of a run, one a chunk, as `prepare` writes them to `rows/range-NN.parquet`.
#: `key` names the item whose result this row wants; `input` is what is sent and is null where
#: it equals `text`. `metadata` is a JSON object as text and holds what the store keeps.
_RUN_ROW_FIELDS: list[pa.Field[Any]] = [
    pa.field("chunk_id", pa.string(), nullable=False),
    pa.field("key", pa.binary(KEY_BYTES), nullable=False),
    pa.field("document_id", pa.string(), nullable=False),
    pa.field("content_hash", pa.binary(KEY_BYTES), nullable=False),
    pa.field("metadata_hash", pa.binary(KEY_BYTES), nullable=False),
    pa.field("partition", pa.string(), nullable=False),
    pa.field("position", pa.int32(), nullable=False),
    pa.field("text", pa.string(), nullable=False),
    pa.field("input", pa.string()),
    pa.field("tokens", pa.int32(), nullable=False),
    pa.field("metadata", pa.string(), nullable=False),
]
RUN_ROW_SCHEMA = pa.schema(_RUN_ROW_FIELDS)

#: What was paid for: `spaces/{space}/results/{submission}.parquet`, sorted by key.
#: `key` is the question answered, `produced_by` the item whose request answered it (they differ
#: where a corrected retry answered the original question). Exactly one of vector, output is there.


def results_schema(dimensions: int | None) -> pa.Schema:
    """The Arrow schema of results: of vectors where `dimensions` is given, else of text.

    A vector is its bytes, little-endian float32, as `np.frombuffer(value, "<f4")` reads them: readers
    of Parquet copy those as they lie, and take lists apart number by number.
    """
    value: pa.Field[Any] = (
        pa.field("vector", pa.binary(FLOAT_BYTES * dimensions), nullable=False)
        if dimensions is not None
        else pa.field("output", pa.string(), nullable=False)
    )
    fields: list[pa.Field[Any]] = [
        pa.field("key", pa.binary(KEY_BYTES), nullable=False),
        pa.field("produced_by", pa.binary(KEY_BYTES), nullable=False),
        value,
        pa.field("input_tokens", pa.int32(), nullable=False),
        pa.field("output_tokens", pa.int32(), nullable=False),
        pa.field("model", pa.dictionary(pa.int32(), pa.string())),
        pa.field("landed_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
    return pa.schema(fields)


#: The map from a shard's lines to its items: `shards/{shard}/keys.parquet`, in line order.
_SHARD_KEYS_FIELDS: list[pa.Field[Any]] = [
    pa.field("custom_id", pa.string(), nullable=False),
    pa.field("key", pa.binary(KEY_BYTES), nullable=False),
    pa.field("line", pa.int32(), nullable=False),
    pa.field("tokens", pa.int32(), nullable=False),
]
SHARD_KEYS_SCHEMA = pa.schema(_SHARD_KEYS_FIELDS)


@dataclass(frozen=True, slots=True)
class Shard:
    """An immutable request file, named by its content: BLAKE2b-128 over its space and lines."""

    id: str
    space: str
    items: int
    lines: int
    bytes: int
    tokens: int


def iter_batches(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of up to `size` rows."""
    batch: list[Any] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


PROJECT_ROOT = Path(__file__).resolve().parent.parent
"""The checkout, in which `include/config` and the bundled corpora lie."""
