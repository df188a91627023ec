"""What the emulator knows of Claude models: their windows, what can be cached, what they refuse.

Sources: Anthropic's model overviews and its pages on prompt caching and structured outputs, November 2026.
"""

from __future__ import annotations

import re

_DATED = re.compile(r"-\d{8}$")

DEFAULT_WINDOW = 200_000
_LARGE_WINDOW = 1_000_000

DEFAULT_CACHEABLE = 1_024
_CACHEABLE = {
    "claude-haiku-4-5": 4_096,
    "claude-opus-4-5": 4_096,
    "claude-opus-4-6": 4_096,
    "claude-sonnet-4-6": 2_048,
}
"""A prefix of fewer tokens isn't cached, and nobody is told."""

_THINKS = re.compile(r"^claude-(fable|mythos|opus|sonnet|haiku)-5")
"""Models that think unless told not to: a thinking block comes before the answer."""

_NO_FORCED_TOOLS = frozenset(
    {"claude-fable-5-1", "claude-fable-5-2", "claude-mythos-5-1", "claude-mythos-5-2"}
    | {"claude-opus-5-5", "claude-sonnet-5-5"}
)
"""Models that refuse a forced tool; their structured outputs come by `output_config`."""


def name_of(model: str) -> str:
    """A model's name without its date."""
    return _DATED.sub("", model)


def window(model: str) -> int:
    """Tokens of prompt and answer together."""
    return _LARGE_WINDOW if _THINKS.match(model) else DEFAULT_WINDOW


def least_cacheable(model: str) -> int:
    """Tokens that a prefix must have to be cached."""
    return _CACHEABLE.get(name_of(model), DEFAULT_CACHEABLE)


def thinks(model: str) -> bool:
    """Whether the model thinks by default."""
    return _THINKS.match(model) is not None


def takes_forced_tools(model: str) -> bool:
    """Whether `tool_choice` may force a tool."""
    return name_of(model) not in _NO_FORCED_TOOLS
