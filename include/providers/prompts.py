"""The shape of an input that wants a generated answer, the same for every provider.

    {"system": "What to do, the same in every request.",
     "messages": [{"role": "user", "content": "What to do it with."}]}

`system` is optional text; `messages` alternate between `user` and `assistant`, each with text. A
provider puts the two where its API wants them, so a corpus moves from one to the other by naming it.
Anything more is passed on as a field of that provider's own request body. What decides the form of
the answer (model, length, schema) isn't part of the input: it is the space's, and `answer_params`
writes it in each provider's own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from include.contracts import JSON, Item
from include.errors import ConfigError

OPENAI_CHAT = "/v1/chat/completions"
OPENAI_RESPONSES = "/v1/responses"
ANTHROPIC_MESSAGES = "/v1/messages"

_ANTHROPIC_DROPS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
    | {"maxItems", "uniqueItems", "minProperties", "maxProperties"}
)
"""What Anthropic's structured outputs refuse in a schema (its guide, `limitations`). Whoever reads the
answer checks them."""


def body_of(endpoint: str, items: Sequence[Item]) -> dict[str, Any]:
    """The one input of a line, a JSON object. Raises ConfigError for any other shape."""
    inputs = [item.input for item in items]
    if len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise ConfigError(
            f"a line of {endpoint} takes one input, a JSON object such as"
            ' {"system": "…", "messages": [{"role": "user", "content": "…"}]}'
        )
    return inputs[0]


def question(text: str) -> dict[str, JSON]:
    """The input that asks this text."""
    return {"messages": [{"role": "user", "content": text}]}


def answer_params(
    protocol: str,
    endpoint: str,
    *,
    max_tokens: int,
    schema: Mapping[str, Any] | None = None,
    schema_name: str = "answer",
    temperature: float | None = None,
) -> dict[str, JSON]:
    """A space's parameters for generated answers, in the provider's own words.

    With a `schema`, a JSON schema of an object, answers are JSON that obeys it: every property is
    required then, and no other is allowed. Raises ConfigError for an endpoint that isn't known here.
    """
    params: dict[str, JSON] = {} if temperature is None else {"temperature": temperature}
    form = None if schema is None else strict_schema(protocol, schema)
    if (protocol, endpoint) == ("openai", OPENAI_CHAT):
        params["max_completion_tokens"] = max_tokens
        if form is not None:
            named = {"name": schema_name, "strict": True, "schema": form}
            params["response_format"] = {"type": "json_schema", "json_schema": named}
    elif (protocol, endpoint) == ("openai", OPENAI_RESPONSES):
        params["max_output_tokens"] = max_tokens
        if form is not None:
            chosen = {"type": "json_schema", "name": schema_name, "strict": True, "schema": form}
            params["text"] = {"format": chosen}
    elif (protocol, endpoint) == ("anthropic", ANTHROPIC_MESSAGES):
        params["max_tokens"] = max_tokens
        if form is not None:
            params["output_config"] = {"format": {"type": "json_schema", "schema": form}}
    else:
        raise ConfigError(f"{protocol}'s endpoint {endpoint!r} generates no answers that are known here")
    return params


def strict_schema(protocol: str, schema: Any) -> Any:
    """A JSON schema as the provider's structured outputs take it: all properties of every object are
    required and no others allowed, and what Anthropic refuses is left out."""
    if isinstance(schema, list):
        return [strict_schema(protocol, each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    dropped = _ANTHROPIC_DROPS if protocol == "anthropic" else frozenset()
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name in ("properties", "$defs", "definitions"):
            made[name] = {key: strict_schema(protocol, each) for key, each in value.items()}
        elif name in ("enum", "const", "default", "examples"):
            made[name] = value
        elif name == "minItems" and protocol == "anthropic":
            made[name] = min(value, 1)
        elif name not in dropped:
            made[name] = strict_schema(protocol, value)
    if made.get("type") == "object":
        made["required"] = list(made.get("properties", {}))
        made["additionalProperties"] = False
    return made
