"""A corpus's YAML: what it holds, how it's chunked and embedded, where it's indexed, what it may cost.

Light on purpose: a DAG file loads it each time it's parsed, so only pydantic and PyYAML are imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from include.contracts import KEY_BYTES, PROJECT_ROOT, Metric, Space
from include.corpora.extraction_config import ExtractionConfig
from include.corpora.source_config import DOTTED_PATH, SourceConfig, StrictModel
from include.errors import ConfigError

if TYPE_CHECKING:
    from include.corpora.presend import Presend

SPLITTER = "semantic-text-splitter/0.33"
"""The splitter whose boundaries the stored chunks have. Raised by hand, with the library or with what
`chunking.py` does around it, because a new value gives every chunk a new id and every index a new
version."""

SMALLEST_CHUNK = 8
"""Tokens below which a chunk says nothing."""

Workload = Literal[
    "initial_ingest", "re_embed", "metadata_extraction", "nightly_eval", "query_replay", "dead_letter_replay"
]


class ChunkingConfig(StrictModel):
    """How documents are cut: at most `tokens` cl100k tokens, `overlap` of them shared with the last.

    `splitter` and `cut` are set by the code and frozen with a run's plan; a YAML can't choose them. `cut`
    says to what the chunks are cut smaller that would be too long to send, see `CorpusConfig.fitted`.
    """

    format: Literal["text", "markdown"] = "text"
    tokens: int = Field(default=400, ge=SMALLEST_CHUNK, le=8191)
    overlap: int = Field(default=40, ge=0)
    splitter: str = SPLITTER
    cut: str = ""

    @model_validator(mode="after")
    def _overlap_fits(self) -> ChunkingConfig:
        if self.overlap * 2 > self.tokens:
            raise ValueError(f"overlap {self.overlap} is more than half of tokens {self.tokens}")
        return self

    @property
    def fingerprint(self) -> str:
        """32 hex characters: equal exactly where chunks come out equal."""
        told = self.model_dump(mode="json")
        return _fingerprint(told if self.cut else {name: told[name] for name in told if name != "cut"})


class EmbeddingConfig(StrictModel):
    """Which model embeds. `dimensions` null means the model's own width.

    `too_long` is what becomes of a chunk whose input has more tokens than the model reads.
    """

    provider: str = "openai"
    connection: str = "openai_default"
    endpoint: str = "/v1/embeddings"
    model: str = Field(min_length=1)
    dimensions: int | None = Field(default=None, gt=0)
    inputs_per_line: int = Field(default=1, ge=1, le=2048)
    too_long: Literal["refuse", "split"] = "refuse"


class IndexConfig(StrictModel):
    """Where vectors go."""

    store: str = "lancedb"
    url: str = "{storage_root}/lancedb"
    metric: Literal["cosine", "dot", "l2"] = "cosine"


class BudgetConfig(StrictModel):
    """What a run may spend, in US dollars; null means no cap."""

    run_usd: float | None = Field(default=None, ge=0)


class DeadlineConfig(StrictModel):
    """How many hours a run's batches may take, null for no end, and what then becomes of the rest."""

    hours: float | None = Field(default=None, gt=0)
    then: Literal["send_again", "dead_letter"] = "send_again"


class CorpusConfig(StrictModel):
    """One corpus, whole. Frozen into a run's plan by `to_plan` and read back by `from_plan`."""

    corpus: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    source: SourceConfig
    chunking: ChunkingConfig = ChunkingConfig()
    embedding: EmbeddingConfig
    index: IndexConfig = IndexConfig()
    extraction: ExtractionConfig | None = None
    presend: str | None = None
    presend_text: bool = False
    budget: BudgetConfig = BudgetConfig()
    max_failed_share: float | None = Field(default=0.5, ge=0, le=1)
    deadline: DeadlineConfig = DeadlineConfig()
    approval_above_usd: float | None = Field(default=None, ge=0)
    schedules: dict[Workload, str | None] = Field(default={})
    golden_set: str | None = None

    @field_validator("presend")
    @classmethod
    def _is_a_path(cls, value: str | None) -> str | None:
        if value is not None and not DOTTED_PATH.fullmatch(value):
            raise ValueError("must be the dotted path of a callable, such as include.corpora.redact.emails")
        return value

    @model_validator(mode="after")
    def _has_a_hook(self) -> CorpusConfig:
        if self.presend_text and self.presend is None:
            raise ValueError("presend_text is for a corpus with presend")
        return self

    def hook(self) -> Presend | None:
        """The pre-send hook, loaded. Raises ConfigError where it can't be."""
        from include.corpora.presend import Presend

        return Presend(self.presend) if self.presend is not None else None

    def space(self, service: str) -> Space:
        """The embedding space of this corpus on a service (the connection's label or authority).

        Loads the pre-send hook, where there is one.
        """
        hook = self.hook()
        dimensions = self.embedding.dimensions
        return Space(
            protocol=self.embedding.provider,
            service=service,
            endpoint=self.embedding.endpoint,
            model=self.embedding.model,
            params={} if dimensions is None else {"dimensions": dimensions},
            presend="" if hook is None else hook.fingerprint,
        )

    @property
    def metric(self) -> Metric:
        """How this corpus's vectors are compared."""
        return Metric(self.index.metric)

    def fitted(self, longest: int | None) -> CorpusConfig:
        """The same corpus for a model that reads so many tokens; None where that isn't known.

        Where chunks may have to be cut smaller, into what is part of the chunking: another model's limit or
        another hook cuts other ones, which have ids and an index of their own.
        """
        hook = self.hook()
        may = hook is not None or (longest is not None and self.chunking.tokens > longest)
        cut = ""
        if longest is not None and self.embedding.too_long == "split" and may:
            cut = f"{longest} tokens" + (f" after {hook.fingerprint}" if hook is not None else "")
        return self.model_copy(update={"chunking": self.chunking.model_copy(update={"cut": cut})})

    def index_version(self, space_id: str) -> str:
        """`{corpus}__{12 hex}`: another space, chunking, metric or text is another index."""
        parts = {"space": space_id, "chunking": self.chunking.fingerprint, "metric": self.index.metric}
        if self.presend_text:
            parts["text"] = "as sent"
        return f"{self.corpus}__{_fingerprint(parts)[:12]}"

    def resolve(self, storage_root: str) -> CorpusConfig:
        """The same corpus with `{storage_root}` and `{project}` filled in."""
        values = {"storage_root": storage_root.rstrip("/"), "project": str(PROJECT_ROOT)}

        def fill(text: str) -> str:
            return re.sub(r"\{(storage_root|project)\}", lambda match: values[match.group(1)], text)

        return self.model_copy(
            update={
                "source": self.source.model_copy(update={"url": fill(self.source.url)})
                if self.source.url is not None
                else self.source,
                "index": self.index.model_copy(update={"url": fill(self.index.url)}),
            }
        )

    def to_plan(self) -> dict[str, Any]:
        """JSON-ready data for `plan.json`."""
        return self.model_dump(mode="json")

    @classmethod
    def from_plan(cls, data: dict[str, Any]) -> CorpusConfig:
        """Read what any version of this code froze: what this one doesn't know is left aside.

        Raises ConfigError where what this version needs isn't there.
        """
        try:
            return cls.model_validate(data, extra="ignore")
        except ValidationError as error:
            raise ConfigError(
                f"plan.json can't be read by this version: {_explain(error)}; start a new run"
            ) from None


def load_corpus(path: str | Path) -> CorpusConfig:
    """Read and check one corpus YAML; its golden set's path is made absolute.

    Raises ConfigError naming the file and each wrong field.
    """
    file = Path(path)
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: isn't UTF-8 at byte {error.start}; save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: isn't YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: must be a mapping that starts with `corpus:`, `source:`, `embedding:`")
    chunking = raw.get("chunking")
    for name in ("splitter", "cut"):
        if isinstance(chunking, dict) and name in chunking:
            raise ConfigError(f"{file}: chunking.{name}: is set by the code; leave it out")
    try:
        config = CorpusConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{file}: {_explain(error)}") from None
    if config.extraction is not None:
        try:
            config = config.model_copy(update={"extraction": config.extraction.loaded(file.parent)})
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
    if config.golden_set is None:
        return config
    golden = (file.parent / config.golden_set).resolve()
    if not golden.is_file():
        raise ConfigError(f"{file}: golden_set: there is no file {golden}")
    return config.model_copy(update={"golden_set": str(golden)})


def load_all(directory: str | Path) -> dict[str, CorpusConfig | ConfigError]:
    """Every `*.yaml` of a folder by corpus name; where one is invalid, its error by its file's stem."""
    found: dict[str, CorpusConfig | ConfigError] = {}
    origin: dict[str, Path] = {}
    for file in sorted(Path(directory).glob("*.yaml")):
        try:
            config = load_corpus(file)
        except ConfigError as error:
            found.setdefault(file.stem, error)
            continue
        if config.corpus in origin:
            found[f"{config.corpus} ({file.name})"] = ConfigError(
                f"{file}: corpus: {config.corpus} is taken by {origin[config.corpus].name}; rename one"
            )
            continue
        origin[config.corpus] = file
        found[config.corpus] = config
    return found


def _explain(error: ValidationError) -> str:
    """`field.path: what is wrong` for each mistake, in one line."""
    return "; ".join(
        f"{_field(detail['loc'])}: {_message(detail)}" for detail in error.errors(include_url=False)
    )


def _field(location: tuple[int | str, ...]) -> str:
    """The dotted name as the YAML has it; the two forms of metadata are one field there."""
    parts = [str(part) for part in location]
    if parts[:2] == ["source", "metadata"]:
        del parts[2:3]
    return ".".join(parts) or "corpus"


def _message(detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return "there is no such field"
    if detail["type"] == "missing":
        return "is missing"
    message = str(detail["msg"]).removeprefix("Value error, ")
    given = detail.get("input")
    plain = isinstance(given, str | int | float | bool) or given is None
    return f"{message} (it is {given!r})" if plain else message


def _fingerprint(value: dict[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=KEY_BYTES).hexdigest()
