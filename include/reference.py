"""Limits and prices, read from `config/limits.yaml` and `config/prices.yaml`: data, not code."""

from __future__ import annotations

import dataclasses
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from include.contracts import PROJECT_ROOT, Limits, Price
from include.errors import ConfigError

LIMITS_FILE = PROJECT_ROOT / "include" / "config" / "limits.yaml"
PRICES_FILE = PROJECT_ROOT / "include" / "config" / "prices.yaml"

_LIMIT_NAMES = frozenset(field.name for field in dataclasses.fields(Limits))
_PRICE_NAMES = frozenset(field.name for field in dataclasses.fields(Price))
_DATED = re.compile(r"-\d{4}-?\d{2}-?\d{2}$")
_EVERY_MODEL = "default"


def limits_for(
    provider: str,
    endpoint: str,
    model: str,
    *,
    account: str | None = None,
    path: Path = LIMITS_FILE,
) -> Limits:
    """What this provider, endpoint and model allow, with the account's own figures on top.

    Later ones win: the provider's default, its endpoint's, its model's, the account's default, the
    account's for the model. Raises ConfigError naming the file for an unknown provider or field.
    """
    data = _load(path)
    known = data.get("providers") or {}
    if provider not in known:
        raise ConfigError(f"{path.name}: no limits of provider {provider!r}; it knows {', '.join(known)}")
    figures = known[provider]
    overrides = _account(data, account).get("limits") or {}
    merged: dict[str, int | None] = {}
    for section, place in (
        (figures.get("default"), f"{provider}.default"),
        ((figures.get("endpoints") or {}).get(endpoint), f"{provider}.endpoints.{endpoint}"),
        (_of_model(figures.get("models") or {}, model), f"{provider}.models.{model}"),
        (overrides.get(_EVERY_MODEL), f"accounts.{account}.limits.{_EVERY_MODEL}"),
        (_of_model(overrides, model), f"accounts.{account}.limits.{model}"),
    ):
        merged.update(_figures(section, f"{path.name}: {place}"))
    try:
        return Limits(**merged)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(f"{path.name}: provider {provider!r}: {error}") from None


def price_for(provider: str, model: str, *, path: Path = PRICES_FILE) -> Price | None:
    """The price of a model, or None where the file has none. A dated name has its model's price."""
    entry = _of_model((_load(path).get("providers") or {}).get(provider) or {}, model)
    if entry is None:
        return None
    prices = {name: value for name, value in entry.items() if name != "source"}
    unknown = set(prices) - _PRICE_NAMES
    if unknown or "input" not in prices:
        raise ConfigError(
            f"{path.name}: {provider}.{model}: "
            + (f"unknown fields {sorted(unknown)}" if unknown else "`input` is missing")
        )
    return Price(**prices)


def account_budget(account: str, *, path: Path = LIMITS_FILE) -> float | None:
    """US dollars that batches of this account may cost in a calendar month (UTC), None if uncapped."""
    budget = _account(_load(path), account).get("usd_per_month")
    if budget is not None and not isinstance(budget, int | float):
        raise ConfigError(f"{path.name}: accounts.{account}.usd_per_month is {budget!r}, not a number")
    return None if budget is None else float(budget)


@lru_cache(maxsize=8)
def _load(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping")
    return data


def _account(data: dict[str, Any], account: str | None) -> dict[str, Any]:
    found = (data.get("accounts") or {}).get(account) if account else None
    return found or {}


def _of_model(entries: dict[str, Any], model: str) -> dict[str, Any] | None:
    found = entries.get(model) or entries.get(_DATED.sub("", model))
    return found if isinstance(found, dict) else None


def _figures(section: Any, place: str) -> dict[str, int | None]:
    """Figures as plain numbers; one may be written `{value, source}`."""
    figures: dict[str, int | None] = {}
    for name, figure in (section or {}).items():
        value = figure.get("value") if isinstance(figure, dict) else figure
        if name not in _LIMIT_NAMES:
            raise ConfigError(f"{place}: unknown limit {name!r}; there are {', '.join(sorted(_LIMIT_NAMES))}")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ConfigError(f"{place}: {name} is {value!r}, not a whole number")
        figures[name] = value
    return figures
