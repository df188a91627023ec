"""What a Messages request says: its blocks in the order of the prompt, its output format, its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from include.emulator.anthropic.models import takes_forced_tools
from include.emulator.anthropic.schemas import check_schema

MARK_TTLS = ("5m", "1h")
MOST_MARKS = 4


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of the prompt. `ttl` is set where the prompt up to here is to be cached."""

    text: str
    ttl: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request taken apart. `asked` is the last user text; `schema` what the answer must obey, None for
    plain text; `tool` the tool that is forced."""

    blocks: tuple[Block, ...]
    asked: str
    messages: int
    max_tokens: int
    schema: dict[str, Any] | None = None
    tool: str | None = None
    stop_sequences: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(block.text for block in self.blocks)


class BadRequest(Exception):
    """The request is malformed; the text is what the caller is told."""


def read_prompt(body: dict[str, Any], *, batch: bool) -> Prompt:
    """Take a request apart. Raises BadRequest."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise BadRequest("messages: Field required")
    if not messages:
        raise BadRequest("messages: at least one message is required")
    if body.get("stream") and batch:
        raise BadRequest("stream: streaming is not supported in batches")
    if body.get("speed") and batch:
        raise BadRequest("speed: fast mode is not supported in batches")
    tools = _tools(body)
    texts, asked = _messages(messages)
    blocks = (*tools, *_system(body.get("system")), *texts)
    if sum(block.ttl is not None for block in blocks) > MOST_MARKS:
        raise BadRequest(f"A maximum of {MOST_MARKS} blocks with cache_control may be provided.")
    if top := _ttl(body, "cache_control"):
        blocks = (*blocks[:-1], Block(blocks[-1].text, top))
    schema = _format(body)
    tool = _forced(body)
    if tool is not None:
        schema = next(each["input_schema"] for each in body["tools"] if each["name"] == tool)
    return Prompt(
        blocks,
        asked,
        len(messages),
        _max_tokens(body),
        schema,
        tool,
        tuple(str(each) for each in body.get("stop_sequences") or ()),
    )


def _max_tokens(body: dict[str, Any]) -> int:
    value = body.get("max_tokens")
    if value is None:
        raise BadRequest("max_tokens: Field required")
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest("max_tokens: Input should be a valid integer")
    if value < 1:
        raise BadRequest("max_tokens: Input should be greater than or equal to 1")
    return value


def _tools(body: dict[str, Any]) -> list[Block]:
    blocks = []
    for index, tool in enumerate(body.get("tools") or ()):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise BadRequest(f"tools.{index}.name: Field required")
        if not isinstance(tool.get("input_schema"), dict):
            raise BadRequest(f"tools.{index}.input_schema: Field required")
        if tool.get("strict"):
            _checked(tool["input_schema"], f"tools.{index}.input_schema")
        plain = {key: value for key, value in tool.items() if key != "cache_control"}
        blocks.append(Block(orjson.dumps(plain).decode(), _ttl(tool, f"tools.{index}.cache_control")))
    return blocks


def _system(system: Any) -> list[Block]:
    if system is None:
        return []
    if isinstance(system, str):
        return [Block(system)]
    if not isinstance(system, list):
        raise BadRequest("system: Input should be a valid string or list")
    return [_block(block, f"system.{index}") for index, block in enumerate(system)]


def _messages(messages: list[Any]) -> tuple[list[Block], str]:
    blocks: list[Block] = []
    asked = ""
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise BadRequest(f"{where}.role: Input should be 'user' or 'assistant'")
        content = message.get("content")
        if isinstance(content, str):
            own = [Block(content)]
        elif isinstance(content, list):
            own = [_block(block, f"{where}.content.{place}") for place, block in enumerate(content)]
        else:
            raise BadRequest(f"{where}.content: Field required")
        text = "\n".join(block.text for block in own)
        if not text.strip():
            raise BadRequest(f"{where}: all messages must have non-empty content")
        blocks.extend(own)
        if message["role"] == "user":
            asked = text
    return blocks, asked or blocks[-1].text


def _block(block: Any, where: str) -> Block:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise BadRequest(f"{where}.type: Field required")
    if block["type"] == "text" and not isinstance(block.get("text"), str):
        raise BadRequest(f"{where}.text: Field required")
    ttl = _ttl(block, f"{where}.cache_control")
    if block["type"] == "text":
        return Block(block["text"], ttl)
    plain = {key: value for key, value in block.items() if key != "cache_control"}
    return Block(orjson.dumps(plain).decode(), ttl)


def _ttl(block: dict[str, Any], where: str) -> str | None:
    mark = block.get("cache_control")
    if mark is None:
        return None
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
        raise BadRequest(f"{where}: Input tag found does not match any of the expected tags: 'ephemeral'")
    ttl = mark.get("ttl", "5m")
    if ttl not in MARK_TTLS:
        raise BadRequest(f"{where}.ttl: Input should be '5m' or '1h'")
    return str(ttl)


def _format(body: dict[str, Any]) -> dict[str, Any] | None:
    config = body.get("output_config")
    if config is None:
        return None
    if not isinstance(config, dict):
        raise BadRequest("output_config: Input should be a valid dictionary")
    chosen = config.get("format")
    if chosen is None:
        return None
    if not isinstance(chosen, dict) or chosen.get("type") != "json_schema":
        raise BadRequest("output_config.format.type: Input should be 'json_schema'")
    schema = chosen.get("schema")
    if not isinstance(schema, dict):
        raise BadRequest("output_config.format.schema: Field required")
    return _checked(schema, "output_config.format.schema")


def _checked(schema: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        check_schema(schema)
    except ValueError as error:
        raise BadRequest(f"{where}: {error}") from error
    return schema


def _forced(body: dict[str, Any]) -> str | None:
    """The tool that the answer must use, where one is forced."""
    choice = body.get("tool_choice")
    if choice is None:
        return None
    names = [tool["name"] for tool in body.get("tools") or ()]
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("auto", "none"):
        return None
    if kind not in ("any", "tool"):
        raise BadRequest("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
    if not names:
        raise BadRequest("tool_choice may only be specified while providing tools")
    if not takes_forced_tools(str(body.get("model"))):
        raise BadRequest(f"tool_choice: {body['model']} thinks always, which forbids forcing tool use")
    if kind == "any":
        return str(names[0])
    if choice.get("name") not in names:
        raise BadRequest(f"tool_choice: Tool '{choice.get('name')}' not found in provided tools")
    return str(choice["name"])
