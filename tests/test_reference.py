"""Limits and prices come from data; an account's own figures win, and a wrong entry is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from include.contracts import Usage
from include.errors import ConfigError
from include.reference import (
    LIMITS_FILE,
    PRICES_FILE,
    account_budget,
    limits_for,
    price_for,
)


def test_every_bundled_figure_has_a_source_with_its_date() -> None:
    for path in (LIMITS_FILE, PRICES_FILE):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for source in data["sources"].values():
            assert source["read"] and source["at"]
        figures = []
        for provider in data["providers"].values():
            if path == PRICES_FILE:
                figures += provider.values()
            else:
                groups = [provider["default"], *provider["endpoints"].values(), *provider["models"].values()]
                figures += [figure for group in groups for figure in group.values()]
        assert figures
        assert all(figure["source"] in data["sources"] for figure in figures)


def test_embeddings_have_limits_that_chat_has_not() -> None:
    embeddings = limits_for("openai", "/v1/embeddings", "text-embedding-3-small")
    assert (embeddings.requests_per_batch, embeddings.bytes_per_batch) == (50_000, 200_000_000)
    assert (embeddings.inputs_per_batch, embeddings.inputs_per_request) == (50_000, 2_048)
    assert (embeddings.tokens_per_request, embeddings.tokens_per_input) == (300_000, 8_192)
    assert embeddings.enqueued_requests == 1_000_000
    chat = limits_for("openai", "/v1/chat/completions", "gpt-5")
    assert (chat.inputs_per_request, chat.inputs_per_batch, chat.creations_per_hour) == (1, None, 2_000)


def test_twenty_million_chunks_cost_what_the_price_list_says() -> None:
    small, large = (
        price_for("openai", "text-embedding-3-small"),
        price_for("openai", "text-embedding-3-large"),
    )
    assert small is not None and large is not None
    corpus = Usage(input=20_000_000 * 500)
    assert small.cost(corpus, batch=False) == pytest.approx(200)
    assert small.cost(corpus, batch=True) == pytest.approx(100)
    assert large.cost(corpus, batch=False) - large.cost(corpus, batch=True) == pytest.approx(650)


def test_a_dated_model_has_its_models_price_and_an_unknown_one_has_none() -> None:
    assert price_for("openai", "gpt-5-2025-08-07") == price_for("openai", "gpt-5") is not None
    assert price_for("openai", "my-own-model") is None
    assert price_for("nobody", "gpt-5") is None


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    return path


BASE = """
providers:
  p:
    default: {requests_per_batch: 10, bytes_per_batch: 100, enqueued_tokens: 5}
    models: {big: {enqueued_tokens: {value: 7, source: x}}}
accounts:
  acme:
    usd_per_month: 12
    limits: {default: {live_batches: 3}, big: {enqueued_tokens: null}}
"""


def test_an_accounts_own_figures_win(tmp_path: Path) -> None:
    path = write(tmp_path, BASE)
    assert limits_for("p", "/e", "small", path=path).enqueued_tokens == 5
    assert limits_for("p", "/e", "big", path=path).enqueued_tokens == 7
    ours = limits_for("p", "/e", "big", account="acme", path=path)
    assert (ours.enqueued_tokens, ours.live_batches, ours.requests_per_batch) == (None, 3, 10)
    assert account_budget("acme", path=path) == 12.0
    assert account_budget("another", path=path) is None


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("live_batches", "alive_batches", "accounts.acme.limits.default"),
        ("enqueued_tokens: 5", "enqueued_tokens: many", "p.default"),
        ("requests_per_batch: 10, ", "", "requests_per_batch"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = write(tmp_path, BASE.replace(old, new))
    with pytest.raises(ConfigError, match=named):
        limits_for("p", "/e", "small", account="acme", path=path)


def test_an_unknown_provider_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nobody"):
        limits_for("nobody", "/e", "m")
