"""What an answer must look like: the schema that is sent, and the check of what comes back."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from include.corpora.dotted import load_callable
from include.errors import ConfigError
from include.providers.prompts import strict_schema

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Described(BaseModel):
    """The fields of a corpus that names none of its own."""

    model_config = ConfigDict(extra="forbid")

    summary: Text
    keywords: list[Text]
    entities: list[Text]


class Shape:
    """The fields a corpus wants: a pydantic model, or a JSON schema of its own."""

    def __init__(self, fields: str | dict[str, Any] | None) -> None:
        """`fields` as `ExtractionConfig.fields`, files read in.

        Raises ConfigError where it names no model, or is no JSON schema.
        """
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        self._model = None if isinstance(fields, dict) else _model(fields)
        self.schema = fields if isinstance(fields, dict) else self._model_schema()
        """The JSON schema; what is sent is this, closed and with every property required."""
        whole = strict_schema("openai", self.schema)
        try:
            Draft202012Validator.check_schema(whole)
        except SchemaError as error:
            raise ConfigError(f"extraction.fields is no JSON schema: {error.message}") from None
        self._validator = Draft202012Validator(whole)

    def fault(self, answer: str) -> str | None:
        """Why an answer can't be taken, in words its author understands; None for a good one."""
        try:
            value = json.loads(answer, parse_constant=_refuse_constant)
        except ValueError as error:
            return f"it isn't JSON: {error}"
        if self._model is not None:
            try:
                self._model.model_validate(value)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                return f"{_place(first['loc'])}: {first['msg']}"
            return None
        problem = next(iter(self._validator.iter_errors(value)), None)
        return None if problem is None else f"{_place(problem.absolute_path)}: {problem.message[:300]}"

    def _model_schema(self) -> dict[str, Any]:
        assert self._model is not None
        return self._model.model_json_schema()


def _model(path: str | None) -> type[BaseModel]:
    if path is None:
        return Described
    found: Any = load_callable(path, "extraction.fields")
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise ConfigError(f"extraction.fields: {path} is no pydantic model")
    return found


def _place(location: Any) -> str:
    return ".".join(str(part) for part in location) or "the answer"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} isn't JSON")
