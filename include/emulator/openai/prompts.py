"""What a request for generated text says: its prompt, its output format, its ceiling on tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from include.emulator.openai.results import Result, refused

TOKENS_PER_MESSAGE = 3
"""Marks around each chat message, and once more before the answer (OpenAI's cookbook on counting)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is all that is counted, `asked` the user's last text; `schema` what the answer must obey.

    `schema` is None for plain text and empty for JSON of any kind; `ceiling` is in tokens.
    """

    text: str
    asked: str
    messages: int
    schema: dict[str, Any] | None = None
    ceiling: int | None = None
    choices: int = 1


class BadPrompt(Exception):
    """The request is malformed; `result` is what the caller is told."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


def read_prompt(url: str, body: dict[str, Any]) -> Prompt:
    """Take a request of one of the three endpoints apart. Raises BadPrompt."""
    if url == "/v1/chat/completions":
        return _chat(body)
    return _response(body) if url == "/v1/responses" else _completion(body)


def _chat(body: dict[str, Any]) -> Prompt:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadPrompt(
            refused(
                400,
                "Missing required parameter: 'messages'.",
                param="messages",
                code="missing_required_parameter",
            )
        )
    texts, asked = _messages(messages, "messages")
    chosen = body.get("response_format")
    schema = None
    if isinstance(chosen, dict) and chosen.get("type") == "json_schema":
        schema = _schema(chosen.get("json_schema"), "response_format")
    elif isinstance(chosen, dict) and chosen.get("type") == "json_object":
        schema = _any_json(texts, "messages", "response_format")
    ceiling = body.get("max_completion_tokens", body.get("max_tokens"))
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    choices = body.get("n") or 1
    return Prompt("\n".join(texts), asked, len(messages), schema, _ceiling(ceiling, name, 1), int(choices))


def _response(body: dict[str, Any]) -> Prompt:
    given = body.get("input")
    if not given or not isinstance(given, str | list):
        raise BadPrompt(
            refused(
                400, "Missing required parameter: 'input'.", param="input", code="missing_required_parameter"
            )
        )
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    texts, asked = _messages(items, "input")
    if instructions := body.get("instructions"):
        texts.insert(0, str(instructions))
    chosen = (body.get("text") or {}).get("format")
    schema = None
    if isinstance(chosen, dict) and chosen.get("type") == "json_schema":
        schema = _schema(chosen, "text.format")
    elif isinstance(chosen, dict) and chosen.get("type") == "json_object":
        schema = _any_json(texts, "input", "text.format")
    ceiling = _ceiling(body.get("max_output_tokens"), "max_output_tokens", 16)
    return Prompt("\n".join(texts), asked, len(items), schema, ceiling)


def _completion(body: dict[str, Any]) -> Prompt:
    prompt = body.get("prompt", "")
    if isinstance(prompt, list) and all(isinstance(each, str) for each in prompt):
        prompt = "\n".join(prompt)
    if not isinstance(prompt, str):
        raise BadPrompt(refused(400, "Invalid type for 'prompt': expected a string.", param="prompt"))
    # The old endpoint's ceiling is 16 unless told otherwise (API reference).
    return Prompt(
        prompt,
        prompt,
        0,
        None,
        _ceiling(body.get("max_tokens", 16), "max_tokens", 1),
        int(body.get("n") or 1),
    )


def _messages(messages: list[Any], param: str) -> tuple[list[str], str]:
    texts, asked = [], ""
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            where = f"{param}[{index}]"
            raise BadPrompt(
                refused(
                    400, f"Invalid type for '{where}': expected an object.", param=where, code="invalid_type"
                )
            )
        text = _content(message.get("content"))
        texts.append(text)
        if message.get("role") == "user" and text:
            asked = text
    return texts, asked or (texts[-1] if texts else "")


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)


def _ceiling(value: Any, name: str, low: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        message = f"Invalid type for '{name}': expected an integer."
        raise BadPrompt(refused(400, message, param=name, code="invalid_type"))
    if value < low:
        message = f"Invalid '{name}': integer below minimum value. Expected {low} or more, but got {value}."
        raise BadPrompt(refused(400, message, param=name, code="integer_below_min_value"))
    return value


def _any_json(texts: list[str], param: str, where: str) -> dict[str, Any]:
    if not any("json" in each.lower() for each in texts):
        message = (
            f"'{param}' must contain the word 'json' in some form, to use '{where}' of type 'json_object'."
        )
        raise BadPrompt(refused(400, message, param=param))
    return {}


def _schema(given: Any, where: str) -> dict[str, Any]:
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not isinstance(schema, dict):
        message = f"Missing required parameter: '{where}.name' and '{where}.schema'."
        raise BadPrompt(refused(400, message, param=where, code="missing_required_parameter"))
    if given.get("strict"):
        try:
            _check_strict(schema, ())
        except ValueError as error:
            message = f"Invalid schema for {where} '{given['name']}': {error}"
            raise BadPrompt(refused(400, message, param=where, code="invalid_json_schema")) from error
    return schema


def _check_strict(schema: Any, path: tuple[str, ...]) -> None:
    """Strict schemas list every property as required and allow no others (structured outputs guide)."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        if schema.get("additionalProperties") is not False:
            raise ValueError(
                f"In context={path}, 'additionalProperties' is required to be supplied and to be false."
            )
        missing = sorted(set(properties or {}) - set(schema.get("required") or []))
        if missing:
            raise ValueError(
                f"In context={path}, 'required' is required to be supplied and to be an array including "
                f"every key in properties. Missing '{missing[0]}'."
            )
    for group in ("properties", "$defs", "definitions"):
        for name, each in (schema.get(group) or {}).items():
            _check_strict(each, (*path, group, name))
    for union in ("anyOf", "allOf", "oneOf"):
        for index, each in enumerate(schema.get(union) or []):
            _check_strict(each, (*path, union, str(index)))
    _check_strict(schema.get("items"), (*path, "items"))
