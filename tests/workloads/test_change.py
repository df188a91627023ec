"""What a replay may change about a question, and what it may not."""

from __future__ import annotations

import pytest

from include.contracts import Space
from include.corpora import tokens
from include.errors import ConfigError
from include.workloads.replay import Change

CHAT = Space("openai", "emulator", "/v1/chat/completions", "gpt-5-mini", {"temperature": 0})
EMBEDDINGS = Space("openai", "emulator", "/v1/embeddings", "text-embedding-3-small", {"dimensions": 8})


def test_nothing_is_changed_that_is_not_asked_for() -> None:
    assert Change().space(CHAT) is CHAT
    assert Change().text("all of it") == "all of it"


def test_generated_text_may_be_longer_and_of_another_model() -> None:
    changed = Change(max_tokens=900, model="gpt-5").space(CHAT)
    assert (changed.model, changed.params) == ("gpt-5", {"temperature": 0, "max_completion_tokens": 900})
    assert changed.service == CHAT.service


@pytest.mark.parametrize(
    ("endpoint", "params", "name"),
    [
        ("/v1/chat/completions", {"max_tokens": 5}, "max_tokens"),
        ("/v1/responses", {}, "max_output_tokens"),
        ("/v1/completions", {}, "max_tokens"),
        ("/v1/messages", {"max_tokens": 5}, "max_tokens"),
    ],
)
def test_the_limit_of_an_answer_has_each_endpoints_name(
    endpoint: str, params: dict[str, int], name: str
) -> None:
    changed = Change(max_tokens=900).space(Space("openai", "emulator", endpoint, "m", params))
    assert changed.params == {name: 900}


def test_embeddings_keep_their_model_and_are_never_longer() -> None:
    with pytest.raises(ConfigError, match=r"model is 'text-embedding-3-large'.*text-embedding-3-small"):
        Change(model="text-embedding-3-large").space(EMBEDDINGS)
    with pytest.raises(ConfigError, match="max_tokens is 5"):
        Change(max_tokens=5).space(EMBEDDINGS)
    assert Change(max_input_tokens=5).space(EMBEDDINGS) is EMBEDDINGS


@pytest.mark.parametrize(
    "text", ["word " * 50, "naïve café " * 20, "日本語の文章" * 20, "👩‍👩‍👧 family " * 20]
)
def test_a_shortened_text_is_the_beginning_of_it_and_whole_characters(text: str) -> None:
    for most in (1, 2, 3, 10):
        short = Change(max_input_tokens=most).text(text)
        assert text.startswith(short)
        assert int(tokens.count([short])[0]) <= most
