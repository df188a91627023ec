"""Which model and index a run works for: what is live counts, then the YAML.

Readers embed their questions with the model their index was built with. So while an index is
live, an ingest keeps to its model, chunking and metric, whatever the YAML says by now; changing
them is the work of a re-embed, which fills a new index and switches when that one is complete.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from include.contracts import Space
from include.corpora.config import CorpusConfig
from include.errors import ConfigError
from include.indexes import versions
from include.ledger.connect import Connection
from include.providers.prompts import answer_params
from include.reference import limits_for
from include.workloads.extraction.shape import Shape
from include.workloads.plan import Plan
from include.workloads.services import Endpoint, Services

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What a run builds: its effective configuration, its space and its index version."""

    config: CorpusConfig
    space: Space
    version: str
    endpoint: Endpoint
    disagreements: tuple[str, ...]


def resolve(services: Services, connection: Connection, config: CorpusConfig) -> Target:
    """The target of a run that begins now."""
    disagreements: tuple[str, ...] = ()
    live = versions.live(connection, config.corpus)
    if live is not None:
        built = Plan.load(services.storage, live.built_by).corpus_config()
        disagreements = _compare(config, built)
        for text in disagreements:
            log.warning("%s: %s", config.corpus, text)
        config = config.model_copy(
            update={
                "chunking": built.chunking,
                "embedding": built.embedding.model_copy(
                    update={
                        "connection": config.embedding.connection,
                        "inputs_per_line": config.embedding.inputs_per_line,
                        "too_long": config.embedding.too_long,
                    }
                ),
                "index": built.index,
            }
        )
    endpoint = services.endpoint(config.embedding.provider, config.embedding.connection)
    space = config.space(endpoint.service)
    limits = limits_for(space.protocol, space.endpoint, space.model, account=endpoint.account)
    config = config.fitted(limits.longest_input)
    version = config.index_version(space.id)
    if live is not None and version != live.version:
        text = (
            f"what is sent (presend, too_long, or the connection's service) isn't what {live.version} was "
            f"built with; this run fills {version}, and {live.version} stays live without its documents "
            "until that one holds every partition: run all partitions"
        )
        log.warning("%s: %s", config.corpus, text)
        disagreements = (*disagreements, text)
    return Target(config, space, version, endpoint, disagreements)


def extracting(services: Services, target: Target) -> Target:
    """The same corpus and index, and the space in which its metadata is asked for."""
    config = target.config.extraction
    if config is None:
        raise ConfigError(
            f"corpus {target.config.corpus} has no `extraction`: add it to its YAML, with a model at least"
        )
    endpoint = services.endpoint(config.provider, config.connection_id)
    hook = target.config.hook()
    params = answer_params(
        config.provider,
        config.endpoint,
        max_tokens=config.max_tokens,
        schema=Shape(config.fields).schema,
        schema_name="metadata",
    )
    space = Space(
        protocol=config.provider,
        service=endpoint.service,
        endpoint=config.endpoint,
        model=config.model,
        params=params,
        presend="" if hook is None else hook.fingerprint,
    )
    return replace(target, space=space, endpoint=endpoint, disagreements=())


def _compare(wanted: CorpusConfig, live: CorpusConfig) -> tuple[str, ...]:
    """What the YAML says and the live index contradicts, each with the way out."""
    found = []
    for name, ours, theirs in (
        ("embedding.provider", wanted.embedding.provider, live.embedding.provider),
        ("embedding.model", wanted.embedding.model, live.embedding.model),
        ("embedding.dimensions", wanted.embedding.dimensions, live.embedding.dimensions),
        ("chunking", wanted.chunking, live.chunking.model_copy(update={"cut": ""})),
        ("index", wanted.index, live.index),
    ):
        if ours != theirs:
            found.append(
                f"the YAML's {name} is {ours}, the live index was built with {theirs}; this run keeps "
                "to the live index, re-embedding the corpus changes it"
            )
    return tuple(found)
