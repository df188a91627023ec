"""OpenAI's Batch API, and whatever speaks it, behind `contracts.BatchProvider`.

Built around ready SDK clients; holds no state of a batch. What must not be relaxed:
- `create` is never repeated by the SDK: a repeated create is a second paid batch.
- `find` reads every page that could hold the batch, and a page that it can't read is an error,
  never an empty page: what it doesn't find may be bought again.
- `outcomes` reads only whole downloads.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from include.contracts import (
    BatchState,
    BatchStatus,
    Evidence,
    HeldBatch,
    HeldFile,
    Item,
    Outcome,
    OutcomeClass,
    Space,
    Submission,
    Usage,
)
from include.errors import AccountError, ConfigError, ProviderError, ProviderRefused, ProviderUnavailable
from include.providers import listing
from include.providers.codes import classify
from include.providers.downloads import downloaded, lines, not_found_is_not_gone
from include.providers.listing import not_found, read_page
from include.providers.openai_errors import creating, reading
from include.providers.openai_lines import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    LineReader,
    LineWriter,
    judge_body,
    judge_of,
    request_body,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI
    from openai.types import Batch

_ENDED = frozenset({"completed", "failed", "expired", "cancelled", "canceled"})
_PAGE = 100
_PAGE_OF_FILES = 1000
_FILE_NAME = re.compile(
    r"(?P<deployment>.+)\.(?P<submission>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl$"
)
_CLOCK_MARGIN_SECONDS = 3600
_CHUNK_BYTES = 1 << 20
_CREATE_TIMEOUT_SECONDS = 300.0
_PROBE_KEY = b"\0" * 16


class OpenAIBatches:
    """`BatchProvider` for OpenAI. `client` may be None where only `poll` is wanted, as in a trigger,
    and `async_client` where it isn't."""

    name = "openai"
    uploads = True

    def __init__(
        self,
        client: OpenAI | None,
        async_client: AsyncOpenAI | None,
        *,
        account: str,
        completion_window: Literal["24h"] = "24h",
    ) -> None:
        self._client = client
        self._async_client = async_client
        self.account = account
        self._completion_window = completion_window
        self._writer: LineWriter | None = None

    @property
    def client(self) -> OpenAI:
        """The synchronous client. Raises ConfigError where this provider was made for polling only."""
        if self._client is None:
            raise ConfigError("this provider was made without a synchronous client; it can only poll")
        return self._client

    # ----------------------------------------------------------------- sending

    def line(self, space: Space, items: Sequence[Item], custom_id: str) -> bytes:
        """The JSONL line, UTF-8 with its newline."""
        if self._writer is None or self._writer.space is not space:
            self._writer = LineWriter(space)
        return self._writer.line(items, custom_id)

    def upload(self, file: IO[bytes], size: int, submission: Submission) -> str:
        """Upload the request file, named after the submission; returns the provider's file id."""
        what = f"upload of {size:,} bytes for submission {submission.id}"
        with reading(what):
            uploaded = self.client.files.create(
                file=(_file_name(submission), file, "application/jsonl"), purpose="batch"
            )
        file_id = getattr(uploaded, "id", None)
        if not isinstance(file_id, str) or not file_id:
            raise ProviderUnavailable(f"{what}: the answer names no file")
        return file_id

    def newest(self) -> None:
        """Nothing need be noted: the batch bears our submission's id."""

    def create(self, submission: Submission, requests: IO[bytes] | None = None) -> BatchStatus:
        """Create the batch. Raises ProviderUnknown unless the answer is a clear yes or no."""
        if submission.file_id is None:
            raise ConfigError(f"submission {submission.id} has no uploaded file to create a batch from")
        once = self.client.with_options(max_retries=0, timeout=_CREATE_TIMEOUT_SECONDS)
        with creating(f"create for submission {submission.id}", submission.file_id):
            batch = once.batches.create(
                completion_window=self._completion_window,
                endpoint=cast(Any, submission.endpoint),
                input_file_id=submission.file_id,
                metadata={
                    "submission": submission.id,
                    "shard": submission.shard,
                    "deployment": submission.deployment,
                },
            )
            if not _is_batch(batch):
                raise ValueError("the answer to create isn't a batch")
            return _status(batch)

    # ----------------------------------------------------------------- finding

    def find(self, submission: Submission, evidence: Evidence | None = None) -> list[BatchStatus]:
        """Every batch with our submission id in its metadata, or made from our input file."""
        oldest = self._uploaded_at(submission.file_id)
        found = []
        for batch in self._batches():
            metadata = batch.metadata if isinstance(batch.metadata, dict) else {}
            if metadata.get("submission") == submission.id or (
                submission.file_id is not None and batch.input_file_id == submission.file_id
            ):
                found.append(_status(batch))
            if oldest is not None and isinstance(batch.created_at, int | float) and batch.created_at < oldest:
                # Newest first, and no batch is older than its input file.
                break
        return found

    def _uploaded_at(self, file_id: str | None) -> float | None:
        """The provider's time before which the batch can't have been created; None if unknown."""
        if file_id is None:
            return None
        try:
            with reading(f"file {file_id}"):
                created: Any = self.client.files.retrieve(file_id).created_at
        except (AccountError, ProviderUnavailable):
            raise
        except ProviderError:
            return None
        return created - _CLOCK_MARGIN_SECONDS if isinstance(created, int | float) else None

    def _batches(self) -> Iterator[Batch]:
        after: str | None = None
        while True:
            with reading("list of batches"):
                page: Any = self.client.batches.list(**_page_after(after))
                data, after = read_page(page, _is_batch)
            yield from data
            if after is None:
                return

    def list_batches(self) -> Iterator[HeldBatch]:
        """Every batch of the project. Raises ProviderError where a page can't be read."""
        for batch in self._batches():
            metadata = batch.metadata if isinstance(batch.metadata, dict) else {}
            yield HeldBatch(
                _status(batch),
                str(metadata.get("deployment") or ""),
                str(metadata.get("submission") or ""),
                batch.input_file_id,
            )

    def list_files(self) -> Iterator[HeldFile]:
        """The project's batch input files that are named as `upload` names them."""
        after: str | None = None
        while True:
            query = {**_page_after(after), "purpose": "batch", "limit": _PAGE_OF_FILES}
            with reading("list of files"):
                page: Any = self.client.files.list(**query)
                data, after = read_page(page, _is_file, "files")
            for file in data:
                named = _FILE_NAME.match(file.filename)
                if named:
                    yield HeldFile(file.id, int(file.bytes or 0), named["deployment"], named["submission"])
            if after is None:
                return

    # ----------------------------------------------------------------- waiting

    async def poll(self, batch_ids: Sequence[str]) -> list[BatchStatus]:
        """The present state of these batches. One whose poll failed, for any reason, is left out."""
        return await listing.poll(batch_ids, self._ask, self._listed)

    async def _ask(self, batch_id: str) -> BatchStatus:
        client = self._polling_client()
        with reading(f"batch {batch_id}"):
            return _checked(await client.batches.retrieve(batch_id), batch_id)

    async def _listed(self) -> AsyncIterator[list[BatchStatus]]:
        client = self._polling_client()
        after: str | None = None
        while True:
            page: Any = await client.batches.list(**_page_after(after))
            data, after = read_page(page, _is_batch)
            yield [_status(batch) for batch in data]
            if after is None:
                return

    def _polling_client(self) -> AsyncOpenAI:
        if self._async_client is None:
            raise ConfigError("this provider was made without an asynchronous client; it can't poll")
        return self._async_client

    def status(self, batch_id: str) -> BatchStatus:
        """The present state of one batch; a 404 is the state NOT_FOUND."""
        try:
            with reading(f"batch {batch_id}"):
                return _checked(self.client.batches.retrieve(batch_id), batch_id)
        except ProviderRefused as error:
            if error.status == 404:
                return not_found(batch_id)
            raise

    # ----------------------------------------------------------------- reading

    def outcomes(self, status: BatchStatus, space: Space) -> Iterator[Outcome]:
        """Every line of the output file, then of the error file; one line in memory."""
        reader = LineReader(space)
        for file_id in (status.output_file_id, status.error_file_id):
            if not file_id:
                continue
            what = f"file {file_id} of batch {status.batch_id}"
            with downloaded(what, partial(self._fetch, file_id), self._size(file_id)) as file:
                for line in lines(file):
                    yield reader.read(line)

    def _size(self, file_id: str) -> int | None:
        with not_found_is_not_gone(), reading(f"file {file_id}"):
            size: Any = self.client.files.retrieve(file_id).bytes
        return size if isinstance(size, int) and size >= 0 else None

    def _fetch(self, file_id: str, target: IO[bytes]) -> None:
        with reading(f"download of file {file_id}"):
            with self.client.files.with_streaming_response.content(file_id) as response:
                for chunk in response.iter_bytes(_CHUNK_BYTES):
                    target.write(chunk)

    # ----------------------------------------------------------------- ending

    def cancel(self, batch_id: str) -> None:
        """Ask for a cancel. A batch that has ended, or is gone, needs none."""
        try:
            with reading(f"cancel of batch {batch_id}"):
                self.client.batches.cancel(batch_id)
        except (ProviderRefused, ProviderUnavailable) as error:
            if error.status not in (400, 404, 409):
                raise
            if self.status(batch_id).state is BatchState.RUNNING and error.status != 404:
                raise

    def delete_file(self, file_id: str) -> None:
        """Delete an uploaded file; one that is gone already is no error."""
        try:
            with reading(f"deletion of file {file_id}"):
                self.client.files.delete(file_id)
        except ProviderRefused as error:
            if error.status != 404:
                raise

    def probe(self, space: Space, text: str) -> Outcome:
        """Ask the endpoint's real-time twin, with the body a batch line would carry.

        What the service says no to is an Outcome of its class; only no answer at all raises.
        """
        body = request_body(space, [Item(_PROBE_KEY, _probe_input(space, text), 0)])
        try:
            with reading(f"probe of {space.endpoint} with {space.model}"):
                answer: Any = self.client.post(
                    space.endpoint.removeprefix("/v1"), cast_to=cast(Any, object), body=body
                )
        except ProviderRefused as error:
            cls = (
                OutcomeClass.ACCOUNT
                if isinstance(error, AccountError)
                else classify(error.code, error.status)
            )
            return Outcome("", cls, code=error.code or f"http_{error.status}", message=str(error))
        if not isinstance(answer, dict):
            raise ProviderUnavailable(f"probe of {space.endpoint} with {space.model}: unreadable answer")
        return judge_body("", answer, judge_of(space.endpoint))


def _file_name(submission: Submission) -> str:
    """Tells whose file it is, for whoever cleans up."""
    return f"{submission.deployment}.{submission.id}.jsonl"


def _is_file(file: Any) -> bool:
    return isinstance(getattr(file, "id", None), str) and isinstance(getattr(file, "filename", None), str)


def _probe_input(space: Space, text: str) -> Any:
    if space.endpoint == EMBEDDINGS:
        return text
    if space.endpoint == CHAT:
        return {"messages": [{"role": "user", "content": text}]}
    if space.endpoint == RESPONSES:
        return {"input": text}
    assert space.endpoint == COMPLETIONS, space.endpoint
    return {"prompt": text}


def _page_after(after: str | None) -> dict[str, Any]:
    return {"limit": _PAGE, "after": after} if after else {"limit": _PAGE}


def _is_batch(batch: Any) -> bool:
    return isinstance(getattr(batch, "id", None), str) and isinstance(getattr(batch, "status", None), str)


def _checked(batch: Any, batch_id: str) -> BatchStatus:
    if not _is_batch(batch):
        raise ProviderUnavailable(f"batch {batch_id}: the answer isn't a batch")
    return _status(batch)


def _status(batch: Batch) -> BatchStatus:
    """A batch as we see it. A status never heard of is RUNNING, so nothing is given up on."""
    counts = batch.request_counts
    failed_lines: dict[int, tuple[str, str]] = {}
    error: tuple[str, str] | None = None
    for entry in (batch.errors.data if batch.errors else None) or ():
        code, message = str(entry.code or ""), str(entry.message or "")
        if isinstance(entry.line, int):
            failed_lines.setdefault(entry.line, (code, message))
        elif error is None:
            error = (code, message)
    if error is None and batch.status == "failed" and not failed_lines:
        error = ("failed", "the batch failed and the provider gives no reason")
    return BatchStatus(
        batch_id=batch.id,
        state=BatchState.ENDED if batch.status in _ENDED else BatchState.RUNNING,
        provider_status=batch.status,
        total=(counts.total or 0) if counts else 0,
        completed=(counts.completed or 0) if counts else 0,
        failed=(counts.failed or 0) if counts else 0,
        output_file_id=batch.output_file_id or None,
        error_file_id=batch.error_file_id or None,
        error=error,
        failed_lines=failed_lines,
        usage=_batch_usage(batch),
    )


def _batch_usage(batch: Batch) -> Usage | None:
    usage = batch.usage
    if usage is None:
        return None
    details = usage.input_tokens_details
    return Usage(
        input=usage.input_tokens or 0,
        output=usage.output_tokens or 0,
        cache_read=(details.cached_tokens or 0) if details else 0,
    )
