"""What the emulator reckons for tokens, so that its books show dollars as an invoice would."""

from __future__ import annotations

from include.emulator.settings import Settings

PRICES: dict[str, tuple[float, float]] = {
    "text-embedding-3-small": (0.02, 0.0),
    "text-embedding-3-large": (0.13, 0.0),
    "text-embedding-ada-002": (0.10, 0.0),
    "gpt-5": (1.25, 10.0),
    "gpt-5-mini": (0.25, 2.0),
}
"""Dollars a million tokens in and out, in real time. Source: the price lists of November 2026."""

BATCH_SHARE = 0.5
"""A batch costs half (OpenAI's batch guide)."""


def dollars(settings: Settings, model: str, input_tokens: int, output_tokens: int, *, batch: bool) -> float:
    """What a request costs; a model without a known price costs nothing."""
    price_in, price_out = settings.prices.get(model) or PRICES.get(model) or (0.0, 0.0)
    full = (input_tokens * price_in + output_tokens * price_out) / 1_000_000
    return full * BATCH_SHARE if batch else full
