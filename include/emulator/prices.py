"""What the emulator reckons for tokens, so that its books show dollars as an invoice would."""

from __future__ import annotations

from typing import Any

from include.emulator.anthropic.models import name_of
from include.emulator.settings import Settings

PRICES: dict[str, tuple[float, float]] = {
    "text-embedding-3-small": (0.02, 0.0),
    "text-embedding-3-large": (0.13, 0.0),
    "text-embedding-ada-002": (0.10, 0.0),
    "gpt-5": (1.25, 10.0),
    "gpt-5-mini": (0.25, 2.0),
}
"""Dollars a million tokens in and out, in real time. Source: the price lists of November 2026."""

MESSAGE_PRICES: dict[str, tuple[float, float]] = {
    "claude-fable-5": (10.0, 50.0),
    "claude-haiku-4-5": (1.0, 5.0),
    "claude-opus-4-5": (5.0, 25.0),
    "claude-opus-4-6": (5.0, 25.0),
    "claude-opus-4-7": (5.0, 25.0),
    "claude-opus-4-8": (5.0, 25.0),
    "claude-opus-5": (5.0, 25.0),
    "claude-opus-5-5": (4.0, 20.0),
    "claude-sonnet-4-5": (3.0, 15.0),
    "claude-sonnet-4-6": (3.0, 15.0),
    "claude-sonnet-5": (2.0, 10.0),
    "claude-sonnet-5-5": (2.0, 10.0),
}
"""The same of Claude models. Source: Anthropic's model overviews of November 2026."""

WRITE_5M, WRITE_1H = 1.25, 2.0
"""What writing to the prompt cache costs, in prices of an input token."""
READ = 0.1
READ_OF = {"claude-opus-5-5": 0.05}
"""What reading from it costs; of some models less."""

BATCH_SHARE = 0.5
"""A batch costs half (OpenAI's batch guide, Anthropic's batch processing), cached tokens included."""


def dollars(settings: Settings, model: str, input_tokens: int, output_tokens: int, *, batch: bool) -> float:
    """What a request costs; a model without a known price costs nothing."""
    price_in, price_out = settings.prices.get(model) or PRICES.get(model) or (0.0, 0.0)
    full = (input_tokens * price_in + output_tokens * price_out) / 1_000_000
    return full * BATCH_SHARE if batch else full


def message_dollars(settings: Settings, model: str, usage: dict[str, Any], *, batch: bool) -> float:
    """What a message costs, by the usage that it tells."""
    name = name_of(model)
    price_in, price_out = settings.prices.get(name) or MESSAGE_PRICES.get(name) or (0.0, 0.0)
    written = usage["cache_creation"]
    weighed = (
        usage["input_tokens"]
        + WRITE_5M * written["ephemeral_5m_input_tokens"]
        + WRITE_1H * written["ephemeral_1h_input_tokens"]
        + READ_OF.get(name, READ) * usage["cache_read_input_tokens"]
    )
    full: float = (weighed * price_in + usage["output_tokens"] * price_out) / 1_000_000
    return full * BATCH_SHARE if batch else full
