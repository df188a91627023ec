"""What a run of the emulator can be told: durations, limits, models, keys."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class Settings:
    """Options of the command line; those in `CHANGEABLE` can also be changed while it runs.

    Durations are seconds of the emulator's clock. `None` for a limit means there is none.
    """

    embeddings: Literal["minilm", "hash"] = "minilm"
    tokens: Literal["exact", "guess"] = "exact"
    """Count prompt tokens by cl100k, or guess them at four bytes each, for load."""
    validating_seconds: float = 1.0
    """From a batch's creation until its file has been validated."""
    batch_seconds: float = 3.0
    """From the first request to the last. The n requests of a batch end evenly spread over it."""
    finalizing_seconds: float = 1.0
    cancelling_seconds: float = 1.0
    completion_window_seconds: float = 86_400.0
    """What isn't done by then expires."""
    enqueued_tokens: dict[str, int] = field(default_factory=dict)
    """Prompt tokens that may wait at a time, by model; "*" stands for every other model."""
    enqueued_requests: dict[str, int] = field(default_factory=lambda: {"*": 1_000_000})
    """Requests of embedding batches that may wait at a time, by model, as with `enqueued_tokens`."""
    creations_per_hour: int | None = 2_000
    max_requests: int = 50_000
    max_inputs: int = 50_000
    """Embedding inputs summed over all requests of a batch."""
    max_batch_file_bytes: int = 200 * 1024 * 1024
    max_upload_bytes: int = 512 * 1024 * 1024
    queued_messages: int | None = 200_000
    """Requests of message batches that may wait at a time, of all models together."""
    max_message_requests: int = 100_000
    max_message_batch_bytes: int = 256 * 1024 * 1024
    cache_hit_share: float = 0.9
    """Share of a batch's requests that find their prompt's prefix where it is in the cache."""
    models: list[str] = field(default_factory=list)
    """The only models that exist; empty means every name but those that start with `no-such`."""
    keys: list[str] = field(default_factory=list)
    """The only API keys that are accepted; empty means any."""
    prices: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Dollars a million tokens in and out, in real time, over the built-in list."""
    missing_input: Literal["refuse", "fail"] = "refuse"
    """A batch over a file that doesn't exist: refused with 400, or accepted and failed later.
    Reports of the real service tell of both."""
    cancelled_lines: Literal["written", "absent"] = "written"
    """Whether the requests that a cancellation left undone stand in the error file. The real
    service documents neither."""

    def model_exists(self, model: str) -> bool:
        """Whether requests may name this model."""
        return model in self.models if self.models else not model.startswith("no-such")

    def limit(self, limits: dict[str, int], model: str) -> int | None:
        """The limit that holds for a model, or None."""
        return limits.get(model, limits.get("*"))

    def change(self, changes: dict[str, Any]) -> None:
        """Set fields by name.

        Raises ValueError naming a field that doesn't exist, can't change while the emulator runs, or
        is of another type; nothing is changed then.
        """
        for name in changes:
            if name not in CHANGEABLE:
                raise ValueError(
                    f"{name!r} is no setting that can be changed; those are {sorted(CHANGEABLE)}"
                )
            now, value = getattr(self, name), changes[name]
            number = isinstance(now, int | float) or name in OPTIONAL
            fits = isinstance(value, int | float) if number else isinstance(value, type(now))
            if not fits and not (value is None and name in OPTIONAL):
                raise ValueError(f"{name!r} can't be {value!r}; it is {now!r} now")
        for name, value in changes.items():
            setattr(self, name, value)

    def describe(self) -> dict[str, Any]:
        """All fields but the keys, JSON-ready."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "keys"}


OPTIONAL = {"creations_per_hour", "queued_messages"}
"""Limits that can be taken away."""

CHANGEABLE = {each.name for each in dataclasses.fields(Settings)} - {"embeddings"}
