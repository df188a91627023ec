"""Ask a corpus a question as an application would: pointer, embedding, search.

This is also the reader's code in short: read `live.json`, embed the question with the model that
the pointer names, query the physical index it names.
"""

from __future__ import annotations

from collections.abc import Mapping

from include.contracts import JSON, Hit, OutcomeClass, Space, Vector
from include.errors import ProviderUnavailable
from include.indexes.live import LivePointer
from include.indexes.search import search
from include.workloads.services import Services


def ask(
    services: Services, corpus: str, question: str, k: int, filter: Mapping[str, JSON] | None = None
) -> list[Hit]:
    """The k nearest chunks of the live index to a question, best first; `filter` as a store takes it."""
    return search(services.storage, corpus, lambda pointer: embed(services, pointer, question), k, filter)


def embed(services: Services, pointer: LivePointer, question: str) -> Vector:
    """The question's vector, shape (dimensions,): one real-time call to the index's own model."""
    endpoint = services.endpoint(pointer.provider, pointer.connection)
    space = Space(
        protocol=pointer.provider,
        service=endpoint.service,
        endpoint=pointer.endpoint,
        model=pointer.model,
        params=pointer.params,
    )
    outcome = endpoint.provider.probe(space, question)
    if outcome.cls is not OutcomeClass.SUCCEEDED or isinstance(outcome.values[0], str):
        raise ProviderUnavailable(
            f"the question couldn't be embedded with {pointer.model}: {outcome.code} {outcome.message}"
        )
    return outcome.values[0]
