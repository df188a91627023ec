"""What each provider's batch API can't do, as data. The contract suite holds each denial to be true.

A test that needs what its provider denies must fail; where it passes, the table is out of date.
"""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """What the contract suite asks for beyond what every provider does."""

    EMBEDDINGS = "embeddings"
    """It embeds texts, several in one request where wanted."""
    FOUND_RUNNING = "found_running"
    """A batch whose create wasn't answered is found while it still runs."""
    PROGRESS = "progress"
    """A running batch tells how many of its requests are done."""
    PROMPT_CACHE = "prompt_cache"
    """What requests share can be marked, and then costs less from the second request on."""
    TELLS_LENGTH = "tells_length"
    """A download that ends early behind a whole line is told from a whole one at once."""


DENIED: dict[str, frozenset[Capability]] = {
    # Batches have no metadata, counts stay in `processing` to the end, results have no length.
    "anthropic": frozenset(
        {
            Capability.EMBEDDINGS,
            Capability.FOUND_RUNNING,
            Capability.PROGRESS,
            Capability.TELLS_LENGTH,
        }
    ),
    # OpenAI caches by itself where it does; nothing can be asked for.
    "openai": frozenset({Capability.PROMPT_CACHE}),
}
"""By provider: what it can't do."""
