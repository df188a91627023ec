"""The `source` section of a corpus's YAML: where documents come from, and which field holds what."""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

RESERVED_METADATA = frozenset({"title", "url", "partition", "position", "span", "heading"})
"""What each chunk's metadata holds already; a source's own fields can't take these names."""

WHOLE = "all"
"""The partition of what has none."""

FILES = ("jsonl", "csv", "parquet", "folder")
"""Kinds of sources that are files at a URL."""

DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")
"""A callable of your own: `package.module.name`, or `package.module:name`."""

DAY_GROUPS = ("year", "month", "day")
"""Groups of a path's regular expression that make a day, however the path writes it."""

WINDOW = re.compile(r"(?<![:\w]):(start|end)\b")
"""The bound parameters of a query: the first moment of its partitions, and the first after them."""

MetadataType = Literal["string", "integer", "number", "boolean", "date", "time", "strings"]


class StrictModel(BaseModel):
    """A section of the YAML: unknown fields and other types are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Fields(StrictModel):
    """Which field of a source's record holds what. `deleted` is for sources of changes: where it's
    true, the document is gone. `partition` names each record's partition, by the day of a time."""

    id: str = "id"
    text: str = "text"
    title: str | None = "title"
    url: str | None = "url"
    updated_at: str | None = "updated_at"
    deleted: str | None = None
    tenant: str | None = None
    partition: str | None = None


class CsvConfig(StrictModel):
    """How CSV files are written. The first row names the columns."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    quote: str = Field(default='"', min_length=1, max_length=1)
    encoding: str = "utf-8"

    @field_validator("encoding")
    @classmethod
    def _keeps_line_ends(cls, value: str) -> str:
        try:
            codecs.lookup(value)
            ends = "\n".encode(value)
        except (LookupError, ValueError):
            raise ValueError("there is no such encoding") from None
        if ends != b"\n":
            raise ValueError("lines can't be told apart in it; save the files as UTF-8")
        return value


class SourceConfig(StrictModel):
    """Where documents come from.

    `kind` is one of `FILES`, `sql`, or the dotted path of a loader of your own. `url` is any fsspec
    URL and may be a glob; gzip and zstd are told by the name. `partition` is a regular expression
    searched for in a file's path: the day of its groups `year`, `month` and `day`, else its group
    `partition`, else its first group, else the whole match. `max_document_bytes` is the longest line
    (jsonl), file (folder) or text (others) read. `max_bad_share` of the records read may be unusable,
    else the run stops before it spends.
    """

    kind: str
    url: str | None = Field(default=None, min_length=1)
    connection: str | None = Field(default=None, min_length=1)
    query: str | None = Field(default=None, min_length=1)
    options: dict[str, Any] = {}
    partition: str | None = None
    mode: Literal["snapshot", "changes"] = "snapshot"
    fields: Fields = Fields()
    metadata: Annotated[
        Annotated[list[str], Tag("list")] | Annotated[dict[str, MetadataType], Tag("types")],
        Discriminator(lambda value: "types" if isinstance(value, dict) else "list"),
    ] = []
    csv: CsvConfig = CsvConfig()
    max_document_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    max_bad_share: float | None = Field(default=0.5, ge=0, le=1)

    @property
    def dated(self) -> bool:
        """Whether documents are in partitions, so that a data interval says which to read."""
        return self.partition is not None or self.fields.partition is not None

    @property
    def where(self) -> str:
        """What people know this source by."""
        if self.kind in FILES:
            return str(self.url)
        return f"the query on {self.connection}" if self.kind == "sql" else self.kind

    @field_validator("kind")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in (*FILES, "sql") and not DOTTED_PATH.fullmatch(value):
            known = ", ".join((*FILES, "sql"))
            raise ValueError(f"must be one of {known}, or the dotted path of a loader")
        return value

    @field_validator("partition")
    @classmethod
    def _is_a_regex(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("metadata")
    @classmethod
    def _not_reserved(cls, value: list[str] | dict[str, MetadataType]) -> Any:
        taken = sorted(RESERVED_METADATA.intersection(value))
        if taken:
            raise ValueError(f"{', '.join(taken)}: every chunk has this already; leave it out")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> SourceConfig:
        fields = self.fields
        if fields.deleted is not None and self.mode == "snapshot":
            raise ValueError("fields.deleted is for mode: changes; in a snapshot what is missing is deleted")
        if fields.tenant is not None and "tenant" in self.metadata:
            raise ValueError("fields.tenant keeps the tenant; leave it out of metadata")
        if fields.partition is not None and (self.partition is not None or self.kind == "folder"):
            raise ValueError("fields.partition is for records, partition for paths: leave out one")
        return self

    @model_validator(mode="after")
    def _fits_its_kind(self) -> SourceConfig:
        own = {"url", "partition"} if self.kind in FILES else {"connection", "query"}
        own = own if self.kind in (*FILES, "sql") else {"options"}
        kinds = {"url": "files", "partition": "files", "connection": "sql", "query": "sql"}
        for name, kind in (kinds | {"options": "a loader of your own"}).items():
            given = getattr(self, name)
            if given and name not in own:
                raise ValueError(f"{name} is for {kind}; leave it out with kind: {self.kind}")
            if not given and name in own - {"options", "partition"}:
                raise ValueError(f"{name} is missing; kind: {self.kind} needs it")
        if self.query is not None and WINDOW.search(self.query) and self.fields.partition is None:
            raise ValueError("a query with :start or :end needs fields.partition, its column of dates")
        return self
