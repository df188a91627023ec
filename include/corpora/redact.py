"""Bundled pre-send hooks that put marks in the place of e-mail addresses, phone and card numbers.

They know a pattern when they see one, and no more: names and postal addresses pass. Whoever must
promise that nothing personal leaves takes a hook of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# Each begins where no character before could belong to it, so that a long run is tried once.
_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")
_PHONE = re.compile(
    r"(?<![\w.+-])(?:"
    r"(?:\+|00)[1-9](?:[ ()./-]{0,2}\d){6,14}"  # with a country's code
    r"|\(?\d{2,5}\)?[ /.-]{1,2}\d{3,4}[ .-]\d{4}"  # within a country; not 20.000.000
    r")(?![\w]|[.-]\d)"
)


@dataclass(frozen=True, slots=True)
class Redaction:
    """A hook of several rules, applied in turn. `version` changes whenever a rule does."""

    version: str
    rules: tuple[Callable[[str], str], ...]

    def __call__(self, text: str) -> str:
        """The text with marks in the place of what the rules find."""
        for rule in self.rules:
            text = rule(text)
        return text


def _emails(text: str) -> str:
    return _EMAIL.sub("[email]", text) if "@" in text else text


def _cards(text: str) -> str:
    return _CARD.sub(lambda match: "[card]" if _is_card(match.group()) else match.group(), text)


def _phones(text: str) -> str:
    return _PHONE.sub("[phone]", text)


def _is_card(text: str) -> bool:
    """Whether the check digit is right (ISO/IEC 7812-1, Luhn): most numbers as long are no cards."""
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


emails = Redaction("1", (_emails,))
"""E-mail addresses become `[email]`."""

cards = Redaction("1", (_cards,))
"""Numbers of 13 to 19 digits whose check digit is right become `[card]`."""

phones = Redaction("1", (_phones,))
"""Phone numbers as they are usually written become `[phone]`."""

contacts = Redaction("1", (_emails, _cards, _phones))
"""All three."""
