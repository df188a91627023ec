"""PDF and Office files as Markdown, by a parser that is optional: `requirements-extras.txt`."""

from __future__ import annotations

import importlib.util
import io
import re
from functools import cache
from typing import Any

from include.corpora.records import Reason, Refused
from include.errors import ConfigError

ENDS = (".pdf", ".docx", ".pptx", ".xlsx")
"""The files it reads."""

_SLIDE = re.compile(r"^<!-- Slide number: \d+ -->\n", re.MULTILINE)


def check_installed(name: str) -> None:
    """Raise ConfigError, naming a file that needs it, where the parser isn't installed."""
    if importlib.util.find_spec("markitdown") is None:
        raise ConfigError(
            f"source.url matches {name}, and PDF and Office files are read by an optional parser: install "
            "requirements-extras.txt where the tasks run, or let the URL match other files only (**/*.md)"
        )


def to_markdown(data: bytes, end: str) -> tuple[str, str | None]:
    """The file's text as Markdown, and the title it gives itself. Raises Refused where it's damaged."""
    from markitdown import StreamInfo

    try:
        found = _converter(end).convert(io.BytesIO(data), StreamInfo(extension=end))
    # Each format has a library of its own beneath, and each of those its exceptions.
    except Exception as error:
        detail = f"no {end[1:].upper()} file that can be read: {' '.join(repr(error).split())[:200]}"
        raise Refused(Reason.UNREADABLE_FILE, detail) from None
    # What each slide begins with isn't its text.
    return _SLIDE.sub("", found.markdown).strip("\n"), found.title


@cache
def _converter(end: str) -> Any:
    """By the end of the name, not by MarkItDown's guess, which reads what is damaged as text."""
    from markitdown import converters

    name = f"{end[1:].capitalize()}Converter"
    return getattr(converters, name)()
