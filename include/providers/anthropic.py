"""Anthropic's Message Batches behind `contracts.BatchProvider`.

Built around ready SDK clients; holds no state of a batch. What must not be relaxed:
- `create` is never repeated by the SDK: a repeated create is a second paid batch.
- A batch bears nothing of ours but the custom_ids of its requests, which can be read only once it has
  ended. `find` says yes or no only where they decide; until then it raises ProviderUndecided.
- `outcomes` reads only whole downloads.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, cast

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
)
from include.errors import (
    AccountError,
    ConfigError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUndecided,
)
from include.providers import listing
from include.providers.anthropic_body import CreateBody
from include.providers.anthropic_errors import creating, reading
from include.providers.anthropic_lines import (
    PromptCache,
    custom_id_of,
    judge_message,
    read_line,
    request_body,
    request_line,
)
from include.providers.codes import classify
from include.providers.downloads import WholeLines, downloaded, lines, not_found_is_not_gone
from include.providers.listing import NOT_FOUND, not_found, read_page
from include.providers.prompts import question

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from anthropic.types.messages import MessageBatch

log = logging.getLogger(__name__)

_BATCHES = "/v1/messages/batches"
_PAGE = 1000
_CHUNK_BYTES = 1 << 20
_CREATE_TIMEOUT_SECONDS = 600.0
_SAMPLED_LINES = 1000
"""Of how many results the custom_ids are compared, to tell whose a batch is: keys are 128-bit hashes, so
a stranger's batch has none of ours, and ours nothing else."""
_PROBE_KEY = b"\0" * 16


class AnthropicBatches:
    """`BatchProvider` for Anthropic. `client` may be None where only `poll` is wanted, as in a trigger,
    and `async_client` where it isn't. `cache` marks what requests share, see `PromptCache`."""

    name = "anthropic"
    uploads = False

    def __init__(
        self,
        client: Anthropic | None,
        async_client: AsyncAnthropic | None,
        *,
        account: str,
        cache: PromptCache = "5m",
    ) -> None:
        self._client = client
        self._async_client = async_client
        self.account = account
        self._cache = cache

    @property
    def client(self) -> Anthropic:
        """The synchronous client. Raises ConfigError where this provider was made for polling only."""
        if self._client is None:
            raise ConfigError("this provider was made without a synchronous client; it can only poll")
        return self._client

    # ----------------------------------------------------------------- sending

    def line(self, space: Space, items: Sequence[Item], custom_id: str) -> bytes:
        """The request as a line, UTF-8 with its newline."""
        return request_line(space, items, custom_id, self._cache)

    def upload(self, file: IO[bytes], size: int, submission: Submission) -> str:
        """There are no uploads: requests go with the create. Raises ConfigError."""
        raise ConfigError("Anthropic's batches take no uploaded file; their requests go with the create")

    def newest(self) -> str:
        """The id of the newest batch of the workspace, "" where it has none."""
        with reading("list of batches"):
            data, _ = read_page(self.client.messages.batches.list(limit=1), _is_batch)
        return str(data[0].id) if data else ""

    def create(self, submission: Submission, requests: IO[bytes] | None = None) -> BatchStatus:
        """Create the batch from the request file, streaming it.

        Raises ProviderUnknown unless the answer is a clear yes or no.
        """
        from anthropic.types.messages import MessageBatch

        if requests is None:
            raise ConfigError(f"submission {submission.id} has no request file to create a batch from")
        body = CreateBody(requests)
        once = self.client.with_options(max_retries=0, timeout=_CREATE_TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "Content-Length": str(body.size)}
        with creating(f"create for submission {submission.id}, {body.size:,} bytes"):
            batch = once.post(
                _BATCHES, cast_to=MessageBatch, content=iter(body), options={"headers": headers}
            )
            if not _is_batch(batch):
                raise ValueError("the answer to create isn't a batch")
            return _status(batch)

    # ----------------------------------------------------------------- finding

    def find(self, submission: Submission, evidence: Evidence) -> list[BatchStatus]:
        """The batch whose requests are this submission's; several where something repeated the create.

        Raises ProviderUndecided while a batch that may be it goes on, and none that has ended is it.
        """
        candidates = self._candidates(submission, evidence)
        ended = [status for status in candidates if status.state is BatchState.ENDED]
        sent = evidence.custom_ids() if ended else frozenset[str]()
        shares = {status.batch_id: self._share(status.batch_id, sent) for status in ended}
        best = max(shares.values(), default=0.0)
        if best > 0.5:
            return [status for status in ended if shares[status.batch_id] == best]
        running = [status.batch_id for status in candidates if status.state is BatchState.RUNNING]
        if running:
            raise ProviderUndecided(
                f"create of submission {submission.id} wasn't answered, and of {len(running)} running"
                f" batches of as many requests ({', '.join(running[:3])}) only the end tells whose they are"
            )
        return []

    def _candidates(self, submission: Submission, evidence: Evidence) -> list[BatchStatus]:
        """Batches of as many requests, created at the right time, that the ledger doesn't know."""
        after, until = submission.after_batch_id, submission.until_batch_id
        if until is not None and until in ("", after):
            # None was created in between.
            return []
        newer: list[MessageBatch] = []
        for batch in self._batches():
            if batch.id == after:
                break
            newer.append(batch)
        ids = [batch.id for batch in newer]
        if until in ids:
            newer = newer[ids.index(until) :]
        # What was archived can't be read any more: 29 days have passed since its creation.
        same = [
            _status(batch)
            for batch in newer
            if _total(batch) == submission.lines and not getattr(batch, "archived_at", None)
        ]
        known = evidence.known([status.batch_id for status in same])
        return [status for status in same if status.batch_id not in known]

    def _share(self, batch_id: str, sent: Collection[str]) -> float:
        """How many of some results answer requests of ours, from 0 to 1."""
        with not_found_is_not_gone(), reading(f"results of batch {batch_id}"):
            sampled = [custom_id_of(line) for line in islice(self._results(batch_id), _SAMPLED_LINES)]
        if not sampled:
            raise ProviderUnavailable(
                f"results of batch {batch_id}: there are none, so it can't be told whose"
            )
        return sum(custom_id in sent for custom_id in sampled) / len(sampled)

    def _results(self, batch_id: str) -> Iterator[bytes]:
        """The lines of a batch's results as they arrive, split on `\\n` only."""
        rest = b""
        with closing(self._open(batch_id)) as response:
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole
        if rest:
            yield rest

    def _open(self, batch_id: str) -> Any:
        """The response of the results' endpoint at the client's own base URL.

        Not the batch's `results_url`: where the base URL is a gateway, that one leads past it.
        """
        import httpx2

        return self.client.get(
            f"{_BATCHES}/{batch_id}/results",
            cast_to=httpx2.Response,
            options={"headers": {"Accept": "application/binary"}},
            stream=True,
        )

    def _batches(self) -> Iterator[MessageBatch]:
        after: str | None = None
        while True:
            with reading("list of batches"):
                page = self.client.messages.batches.list(**_page_after(after))
                data, after = read_page(page, _is_batch)
            yield from data
            if after is None:
                return

    def list_batches(self) -> Iterator[HeldBatch]:
        """Every batch of the workspace, page by page; none bears anything of ours."""
        for batch in self._batches():
            yield HeldBatch(_status(batch))

    def list_files(self) -> Iterator[HeldFile]:
        """Nothing: there are no files."""
        return iter(())

    # ----------------------------------------------------------------- waiting

    async def poll(self, batch_ids: Sequence[str]) -> list[BatchStatus]:
        """The present state of these batches. One whose poll failed, for any reason, is left out."""
        return await listing.poll(batch_ids, self._ask, self._listed)

    async def _ask(self, batch_id: str) -> BatchStatus:
        client = self._polling_client()
        with reading(f"batch {batch_id}"):
            return _checked(await client.messages.batches.retrieve(batch_id), batch_id)

    async def _listed(self) -> AsyncIterator[list[BatchStatus]]:
        client = self._polling_client()
        after: str | None = None
        while True:
            page = await client.messages.batches.list(**_page_after(after))
            data, after = read_page(page, _is_batch)
            yield [_status(batch) for batch in data]
            if after is None:
                return

    def _polling_client(self) -> AsyncAnthropic:
        if self._async_client is None:
            raise ConfigError("this provider was made without an asynchronous client; it can't poll")
        return self._async_client

    def status(self, batch_id: str) -> BatchStatus:
        """The present state of one batch; a 404 is the state NOT_FOUND."""
        try:
            with reading(f"batch {batch_id}"):
                return _checked(self.client.messages.batches.retrieve(batch_id), batch_id)
        except ProviderRefused as error:
            if error.status == 404:
                return not_found(batch_id)
            raise

    # ----------------------------------------------------------------- reading

    def outcomes(self, status: BatchStatus, space: Space) -> Iterator[Outcome]:
        """Every result of an ended batch, one line in memory."""
        if status.provider_status == NOT_FOUND:
            return
        what = f"results of batch {status.batch_id}"
        whole = WholeLines(what, status.total)
        with downloaded(what, partial(self._fetch, status.batch_id, whole), None) as file:
            for line in lines(file):
                yield read_line(line)

    def _fetch(self, batch_id: str, whole: WholeLines, target: IO[bytes]) -> None:
        with reading(f"download of the results of batch {batch_id}"):
            with closing(self._open(batch_id)) as response:
                whole.begin()
                for chunk in response.iter_bytes(_CHUNK_BYTES):
                    whole.take(chunk)
                    target.write(chunk)
        whole.check()

    # ----------------------------------------------------------------- ending

    def cancel(self, batch_id: str) -> None:
        """Ask for a cancel. A batch that has ended, or is gone, needs none."""
        try:
            with reading(f"cancel of batch {batch_id}"):
                self.client.messages.batches.cancel(batch_id)
        except (ProviderRefused, ProviderUnavailable) as error:
            if error.status not in (400, 404, 409):
                raise
            if self.status(batch_id).state is BatchState.RUNNING and error.status != 404:
                raise

    def delete_file(self, file_id: str) -> None:
        """Nothing: there are no files."""

    def probe(self, space: Space, text: str) -> Outcome:
        """Ask the real-time twin, with the parameters that a batch's request would carry.

        What the service says no to is an Outcome of its class; only no answer at all raises.
        """
        body = request_body(space, [Item(_PROBE_KEY, question(text), 0)], "off")
        what = f"probe of {space.endpoint} with {space.model}"
        try:
            with reading(what):
                answer = self.client.post(space.endpoint, cast_to=cast(Any, object), body=body)
                return judge_message("", cast(Any, answer))
        except ProviderRefused as error:
            account = isinstance(error, AccountError)
            cls = OutcomeClass.ACCOUNT if account else classify(error.code, error.status)
            return Outcome("", cls, code=error.code or f"http_{error.status}", message=str(error))


def _page_after(after: str | None) -> dict[str, Any]:
    return {"limit": _PAGE, "after_id": after} if after else {"limit": _PAGE}


def _is_batch(batch: Any) -> bool:
    return isinstance(getattr(batch, "id", None), str) and isinstance(
        getattr(batch, "processing_status", None), str
    )


def _checked(batch: Any, batch_id: str) -> BatchStatus:
    if not _is_batch(batch):
        raise ProviderUnavailable(f"batch {batch_id}: the answer isn't a batch")
    return _status(batch)


def _count(batch: Any, name: str) -> int:
    value = getattr(getattr(batch, "request_counts", None), name, 0)
    return value if isinstance(value, int) else 0


def _total(batch: Any) -> int:
    return sum(_count(batch, name) for name in ("processing", "succeeded", "errored", "canceled", "expired"))


def _status(batch: MessageBatch) -> BatchStatus:
    """A batch as we see it. A status never heard of is RUNNING, so nothing is given up on."""
    ended = batch.processing_status == "ended"
    total, succeeded, processing = _total(batch), _count(batch, "succeeded"), _count(batch, "processing")
    return BatchStatus(
        batch_id=batch.id,
        state=BatchState.ENDED if ended else BatchState.RUNNING,
        provider_status=batch.processing_status,
        total=total,
        completed=succeeded,
        failed=total - succeeded - processing,
    )
