"""Callables of your own, named in the YAML by their dotted path."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from include.errors import ConfigError


def load_callable(path: str, setting: str) -> Callable[..., Any]:
    """The callable at `package.module.name` or `package.module:name`.

    Raises ConfigError, naming the setting, where there is none.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    # A module of the user's own may raise anything while it loads.
    except Exception as error:
        raise ConfigError(f"{setting} is {path!r} and can't be loaded: {error!r}") from error
    if not callable(found):
        raise ConfigError(
            f"{setting} is {path!r}, which is of type {type(found).__name__} and can't be called"
        )
    checked: Callable[..., Any] = found
    return checked
