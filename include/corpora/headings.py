"""The heading path of any place in a Markdown text: `#` and underlined headings, not those in code."""

from __future__ import annotations

import re
from bisect import bisect_right

_ATX = re.compile(r"^ {0,3}(#{1,6})(?=[ \t]|$)")
_SETEXT = re.compile(r"^ {0,3}(=+|-+)[ \t]*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_NOT_A_PARAGRAPH = re.compile(r"^(?: {4}|\t| {0,3}(?:>|[-*+] |\d+[.)] |\|))")


class Headings:
    """All headings of one text, looked up by character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._paths: list[tuple[str, ...]] = []
        stack: list[tuple[int, str]] = []
        for start, end, level, title in _headings(text):
            while stack and stack[-1][0] >= level:
                stack.pop()
            stack.append((level, title))
            self._starts.append(start)
            self._ends.append(end)
            self._paths.append(tuple(entry for _, entry in stack))

    def at(self, start: int, piece: str) -> tuple[str, ...]:
        """The path in force where `piece`, which begins at `start`, has its first character of text."""
        first = start + len(piece) - len(piece.lstrip())
        index = bisect_right(self._starts, first) - 1
        return self._paths[index] if index >= 0 else ()

    def are_all_of(self, start: int, end: int) -> bool:
        """Whether characters [start, end) hold headings and blanks only, at least one heading."""
        found = False
        while True:
            start += len(self._text[start:end]) - len(self._text[start:end].lstrip())
            if start >= end:
                return found
            index = bisect_right(self._starts, start) - 1
            if index < 0 or self._starts[index] != start:
                return False
            found = True
            start = self._ends[index]


def first_heading(text: str) -> str | None:
    """The title of a text's first heading, if it has one."""
    return next((title for _, _, _, title in _headings(text) if title), None)


def _headings(text: str) -> list[tuple[int, int, int, str]]:
    """Each heading as (its first character, the end of its last line, level, title)."""
    found: list[tuple[int, int, int, str]] = []
    fence = ""
    previous, previous_start = "", 0
    position = 0
    for raw in text.split("\n"):
        start, line = position, raw.rstrip("\r")
        position += len(raw) + 1
        opening = _FENCE.match(line)
        if fence:
            if opening and opening.group(1).startswith(fence) and not line.strip(" `~\t"):
                fence = ""
            previous = ""
            continue
        if opening:
            fence = opening.group(1)
            previous = ""
            continue
        if match := _ATX.match(line):
            end = start + len(line)
            found.append((start + match.start(1), end, len(match.group(1)), _atx_title(line[match.end() :])))
            previous = ""
        elif previous.strip() and (match := _SETEXT.match(line)):
            if not _NOT_A_PARAGRAPH.match(previous):
                indent = len(previous) - len(previous.lstrip())
                level = 1 if match.group(1)[0] == "=" else 2
                found.append((previous_start + indent, start + len(line), level, previous.strip()))
            previous = ""
        else:
            previous, previous_start = line, start
    return found


def _atx_title(rest: str) -> str:
    """What follows the `#`s, without closing ones, which a blank must set apart."""
    title = rest.strip()
    bare = title.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else title
