"""Files that are a document each: Markdown, HTML, plain text, PDF and Office."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from include.corpora import office
from include.corpora.files import BOM, Files, SourceFile
from include.corpora.headings import first_heading
from include.corpora.html import decode, to_markdown
from include.corpora.records import SKIPPED, Fault, Found, Reason, Refused
from include.corpora.source_config import SourceConfig

_FRONT_MATTER = re.compile(
    r"\A---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)

Parsed = tuple[dict[str, Any], str, str | None]
"""What a file says of itself (front matter), its text, its title."""


class _FrontMatter(yaml.SafeLoader):
    """YAML without aliases, by which some lines can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuses an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def is_text(name: str) -> bool:
    """Whether a folder's file is a document, by the end of its name without that of its compression.

    Raises ConfigError where it's one that only a parser which isn't installed can read.
    """
    end = _end(name)
    if end in office.ENDS:
        office.check_installed(name)
    return end in _PARSERS


def read_text(files: Files, file: SourceFile, config: SourceConfig) -> Iterator[Found | Fault]:
    """The one document of a file; its id is the file's path below the URL's fixed part."""
    limit, id = config.max_document_bytes, file.name
    with files.open(file) as handle:
        data = handle.read(limit + 1)
    if len(data) > limit:
        detail = f"more than {limit:,} bytes, which is source.max_document_bytes"
        yield Fault(None, Reason.TOO_LONG, detail, SKIPPED, id)
        return
    if not data:
        yield Fault(None, Reason.EMPTY_FILE, "no bytes in it", SKIPPED, id)
        return
    try:
        told, text, title = _PARSERS[_end(id)](data)
    except UnicodeDecodeError as error:
        detail = f"byte {error.start} isn't {error.encoding.upper()}"
        yield Fault(None, Reason.UNDECODABLE, detail, SKIPPED, id)
        return
    except Refused as refused:
        yield Fault(None, refused.reason, refused.detail, SKIPPED, id)
        return
    fields = config.fields
    named = {fields.id: id, fields.text: text}
    if fields.title is not None and not isinstance(told.get(fields.title), str):
        named[fields.title] = title or posixpath.splitext(posixpath.basename(id))[0]
    yield Found(None, {**told, **named})


def _plain(data: bytes) -> Parsed:
    return {}, data.removeprefix(BOM).decode("utf-8"), None


def _markdown(data: bytes) -> Parsed:
    """Front matter is what the file says of itself, and no text; what is no YAML mapping is text."""
    text = data.removeprefix(BOM).decode("utf-8")
    told: dict[str, Any] = {}
    if match := _FRONT_MATTER.match(text):
        try:
            found = yaml.load(match.group(1), _FrontMatter)
        # Beside its own errors it raises whatever Python's types do: of dates, of numbers, of depth.
        except Exception:
            found = None
        if isinstance(found, dict):
            told = {str(name): value for name, value in found.items()}
            text = text[match.end() :]
    return told, text, first_heading(text)


def _html(data: bytes) -> Parsed:
    text, title = to_markdown(decode(data))
    return {}, text, title


def _office(end: str) -> Callable[[bytes], Parsed]:
    def parse(data: bytes) -> Parsed:
        text, title = office.to_markdown(data, end)
        return {}, text, title or first_heading(text)

    return parse


def _end(name: str) -> str:
    return posixpath.splitext(name)[1].lower()


_PARSERS: dict[str, Callable[[bytes], Parsed]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _plain,
    ".text": _plain,
    ".rst": _plain,
    ".html": _html,
    ".htm": _html,
    ".xhtml": _html,
    **{end: _office(end) for end in office.ENDS},
}
"""How each kind of file is read. Raises UnicodeDecodeError, or Refused."""
