"""What a corpus's YAML says of metadata extraction: which model reads its documents, and what for.

Light, like the rest of a corpus's configuration: a DAG file loads it each time it's parsed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from include.corpora.source_config import DOTTED_PATH, StrictModel
from include.errors import ConfigError

ENDPOINTS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
"""The generating endpoint of each provider's batch API."""


class ExtractionConfig(StrictModel):
    """Which model reads each document, or each chunk, and which fields it fills.

    `fields` is a JSON schema, in the YAML or in a `.json` file beside it, or the dotted path of a
    pydantic model; null means summary, keywords and entities. `prompt` is the instructions, in the
    YAML or in a `.md` or `.txt` file beside it. Both are frozen into a run's plan with all else.
    A document of more than `window_tokens` is read in windows, whose answers are merged.
    """

    provider: Literal["openai", "anthropic"] = "openai"
    connection: str | None = None
    model: str = Field(min_length=1)
    per: Literal["document", "chunk"] = "document"
    fields: str | dict[str, Any] | None = None
    prompt: str | None = Field(default=None, min_length=1)
    max_tokens: int = Field(default=1024, ge=16)
    window_tokens: int = Field(default=6000, ge=200, le=8191)

    @field_validator("fields")
    @classmethod
    def _names_something(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if isinstance(value, str) and not value.endswith(".json") and not DOTTED_PATH.fullmatch(value):
            raise ValueError("must be a JSON schema, a .json file, or the dotted path of a pydantic model")
        if isinstance(value, dict) and value.get("type") != "object":
            raise ValueError("must be the schema of an object: type: object, with properties")
        return value

    @property
    def connection_id(self) -> str:
        """The Airflow connection: the provider's own default where the YAML names none."""
        return self.connection or f"{self.provider}_default"

    @property
    def endpoint(self) -> str:
        """The provider's generating endpoint."""
        return ENDPOINTS[self.provider]

    def loaded(self, folder: Path) -> ExtractionConfig:
        """The same with the files it names read in. Raises ConfigError naming a file that can't be."""
        update: dict[str, Any] = {}
        if isinstance(self.fields, str) and self.fields.endswith(".json"):
            update["fields"] = _schema(folder / self.fields)
        if self.prompt is not None and self.prompt.endswith((".md", ".txt")) and "\n" not in self.prompt:
            update["prompt"] = _text(folder / self.prompt, "extraction.prompt")
        return self.model_validate({**self.model_dump(), **update}) if update else self


def _schema(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(file, "extraction.fields"))
    except ValueError as error:
        raise ConfigError(f"extraction.fields: {file} isn't JSON: {error}") from None
    if not isinstance(found, dict) or found.get("type") != "object":
        raise ConfigError(f"extraction.fields: {file} must be the schema of an object, with properties")
    return found


def _text(file: Path, field: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{field}: {file} can't be read: {error}") from None
