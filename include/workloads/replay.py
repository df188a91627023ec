"""What a replay of dead letters is asked for: which letters, and what is changed about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from include.batches.dead_letters import Which
from include.contracts import JSON, OutcomeClass, Space
from include.corpora import tokens
from include.errors import ConfigError

EMBEDDINGS = "/v1/embeddings"
INGEST = "initial_ingest"
REPLAY = "dead_letter_replay"
_LONGEST_ANSWER = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/responses": ("max_output_tokens",),
    "/v1/completions": ("max_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""The parameters of each endpoint that bound an answer's length, the present one last."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a replay asks instead; nothing by default.

    `max_input_tokens` keeps the beginning of each text, in cl100k tokens. `max_tokens` and `model` are
    for generated text.
    """

    max_input_tokens: int | None = None
    max_tokens: int | None = None
    model: str | None = None

    def space(self, space: Space) -> Space:
        """The space to ask in. Raises ConfigError for what can't be changed there, by its name."""
        if self.model is None and self.max_tokens is None:
            return space
        if space.endpoint == EMBEDDINGS:
            name, value = ("model", self.model) if self.model is not None else ("max_tokens", self.max_tokens)
            raise ConfigError(
                f"{name} is {value!r}, and these letters want embeddings of {space.model}: vectors of another"
                " model, or none at all, can't stand beside them. Leave it out; max_input_tokens shortens"
                " the texts, and re-embedding the corpus changes its model"
            )
        params: Mapping[str, JSON] = space.params
        if self.max_tokens is not None:
            names = _LONGEST_ANSWER.get(space.endpoint)
            if names is None:
                raise ConfigError(f"max_tokens can't be changed for {space.endpoint}: leave it out")
            name = next((name for name in names if name in params), names[-1])
            params = {**params, name: self.max_tokens}
        return replace(space, model=self.model or space.model, params=params)

    def refuse_shortening(self) -> None:
        """Raise ConfigError where texts are to be shortened, for questions that are made of more."""
        if self.max_input_tokens is not None:
            raise ConfigError(
                f"max_input_tokens is {self.max_input_tokens}, and what an extraction asks can't be cut: "
                "leave it out; extraction.window_tokens in the corpus's YAML makes smaller windows"
            )

    def text(self, text: str) -> str:
        """The input to ask for in place of this one."""
        if self.max_input_tokens is None:
            return text
        encoding = tokens.encoding()
        found = encoding.encode_ordinary(text)
        if len(found) <= self.max_input_tokens:
            return text
        # A character that the cut splits goes with the rest.
        return encoding.decode_bytes(found[: self.max_input_tokens]).decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True)
class Replay:
    """Which letters of which workload are asked again, and with what change."""

    which: Which = field(default_factory=Which)
    change: Change = field(default_factory=Change)
    workload: str = INGEST

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Replay:
        """What any version froze in `plan.json`; fields that this one doesn't know are left aside."""
        which, change = (
            {name: value for name, value in data[part].items() if name in kind.__dataclass_fields__}
            for part, kind in (("which", Which), ("change", Change))
        )
        if which.get("cls"):
            which["cls"] = OutcomeClass(which["cls"])
        return cls(Which(**which), Change(**change), data["workload"])
