"""An HTML page as Markdown: its text with headings, lists, tables and code, without what surrounds it.

Parsed by selectolax (Lexbor): a browser's own rules for broken pages, one wheel without further
packages, released every few weeks. trafilatura guesses at the main text of news pages by scores and
drops short sections, which documentation is made of; here only what is marked as no content goes.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import Any

_NO_CONTENT = (
    "head script style noscript template nav footer aside form iframe object svg canvas button select "
    "dialog menu audio video"
)
_OF_ITS_OWN = (
    "address article blockquote body center dd details div dl dt fieldset figcaption figure header "
    "hgroup html main p section summary table tbody td th thead tfoot tr ul ol"
)
_DROPPED = frozenset(_NO_CONTENT.split())
_BLOCKS = frozenset(_OF_ITS_OWN.split())
_HIDDEN_ROLES = frozenset({"navigation", "banner", "contentinfo", "search", "complementary"})
_HEADING = re.compile(r"h([1-6])")
_BLANKS = re.compile(r"[ \t\r\n\f]+")
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]+)", re.IGNORECASE)
_FENCE = "```"


def decode(data: bytes) -> str:
    """A page's text, by its byte-order mark, its own word, or as UTF-8.

    Raises UnicodeDecodeError where the bytes are none of that.
    """
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(name).removeprefix("\ufeff")
    told = _CHARSET.search(data[:2048])
    name = told.group(1).decode().lower() if told else "utf-8"
    # Browsers read Latin-1 as Windows' own.
    name = "cp1252" if name in ("iso-8859-1", "latin1", "us-ascii", "ascii") else name
    # Whoever could read the word `utf-16` wasn't reading UTF-16.
    name = "utf-8" if name.startswith(("utf-16", "utf-32")) else name
    try:
        return data.decode(name)
    except UnicodeDecodeError:
        raise
    except (LookupError, UnicodeError):
        # No encoding of text, or one for host names and the like.
        return data.decode("utf-8")


@dataclass(slots=True)
class _Page:
    """The Markdown written so far: whole lines, and the line under way."""

    lines: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    prefix: str = ""
    lists: list[int | None] = field(default_factory=list)

    def words(self, text: str) -> None:
        """Add text to the line, blanks made one."""
        text = _BLANKS.sub(" ", text)
        if text.startswith(" ") and (not self.line or self.line[-1].endswith(" ")):
            text = text[1:]
        if text:
            self.line.append(text)

    def end_line(self) -> None:
        """Finish the line under way, if it has text."""
        text = "".join(self.line).strip()
        self.line.clear()
        if text:
            self.lines.append(self.prefix + text)
            self.prefix = " " * len(self.prefix) if self.lists else ""

    def gap(self) -> None:
        """One empty line, wherever there is text above."""
        self.end_line()
        if self.lines and self.lines[-1]:
            self.lines.append("")


def to_markdown(html: str) -> tuple[str, str | None]:
    """The page's text as Markdown, and its title: `<title>`, else its first heading."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(html)
    title_node = tree.css_first("head > title")
    title = _inline(title_node.text()) if title_node is not None else ""
    if not title:
        heading = tree.css_first("h1, h2, h3")
        title = _inline(heading.text()) if heading is not None else ""
    mains = tree.css("main, [role=main]") or tree.css("article")
    roots = _outermost(mains) or [tree.body if tree.body is not None else tree.root]
    page = _Page()
    for root in roots:
        if root is not None:
            _walk(root, page)
            page.gap()
    return "\n".join(page.lines).strip("\n"), title or None


def _outermost(nodes: list[Any]) -> list[Any]:
    """Those that lie in no other of them."""
    inside = {node.mem_id for node in nodes}
    found = []
    for node in nodes:
        above = node.parent
        while above is not None and above.mem_id not in inside:
            above = above.parent
        if above is None:
            found.append(node)
    return found


def _walk(root: Any, page: _Page) -> None:
    """Write a node and all below it, in order; without recursion, as pages nest without end."""
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        node, leaving = waiting.pop()
        if leaving:
            _leave(node, page)
            continue
        if node.is_text_node:
            page.words(node.text_content or "")
            continue
        if not node.is_element_node or _is_dropped(node):
            continue
        if _write_whole(node, page):
            continue
        _enter(node, page)
        waiting.append((node, True))
        children = []
        child = node.first_child
        while child is not None:
            children.append((child, False))
            child = child.next
        waiting.extend(reversed(children))


def _is_dropped(node: Any) -> bool:
    if node.tag in _DROPPED:
        return True
    attributes = node.attributes
    if not attributes:
        return node.tag == "header" and _outside_content(node)
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    return attributes.get("role") in _HIDDEN_ROLES or (node.tag == "header" and _outside_content(node))


def _outside_content(header: Any) -> bool:
    """Whether a header is the site's: it has no heading of the page in it."""
    return header.css_first("h1") is None


def _write_whole(node: Any, page: _Page) -> bool:
    """Write what is taken as one: headings, code, table rows, breaks. Says whether node was such a one."""
    tag = node.tag
    if match := _HEADING.fullmatch(tag):
        # Documentation tools end each heading with a link to itself.
        text = _inline(node.text(separator="")).rstrip("¶").rstrip()
        page.gap()
        if text:
            page.lines += [f"{'#' * int(match.group(1))} {text}", ""]
    elif tag == "pre":
        code = node.text(separator="").strip("\n")
        page.gap()
        if code.strip():
            fence = _FENCE
            while fence in code:
                fence += "`"
            page.lines += [fence, *code.split("\n"), fence, ""]
    elif tag == "tr" and node.css_first("table, h1, h2, h3, h4, ul, ol, pre") is None:
        page.end_line()
        cells = [_inline(cell.text(separator=" ")).replace("|", "\\|") for cell in _cells(node)]
        if any(cells):
            page.lines.append(f"| {' | '.join(cells)} |")
            if all(cell.tag == "th" for cell in _cells(node)):
                page.lines.append("|" + " --- |" * len(cells))
    elif tag == "br":
        page.end_line()
    elif tag == "hr":
        page.gap()
    elif tag == "img":
        page.words(f" {node.attributes.get('alt') or ''} ")
    else:
        return False
    return True


def _cells(row: Any) -> list[Any]:
    found = []
    cell = row.first_child
    while cell is not None:
        if cell.tag in ("td", "th"):
            found.append(cell)
        cell = cell.next
    return found


def _enter(node: Any, page: _Page) -> None:
    tag = node.tag
    if tag in ("ul", "ol"):
        if page.lists:
            page.end_line()
        else:
            page.gap()
        page.lists.append(1 if tag == "ol" else None)
    elif tag == "li":
        page.end_line()
        indent = "  " * max(0, len(page.lists) - 1)
        number = page.lists[-1] if page.lists else None
        page.prefix = f"{indent}- " if number is None else f"{indent}{number}. "
        if number is not None:
            page.lists[-1] = number + 1
    elif tag in _BLOCKS:
        page.end_line() if page.lists else page.gap()


def _leave(node: Any, page: _Page) -> None:
    tag = node.tag
    if tag in ("ul", "ol"):
        page.end_line()
        page.lists.pop()
        page.prefix = ""
        if not page.lists:
            page.gap()
    elif tag == "li":
        page.end_line()
        page.prefix = ""
    elif tag in _BLOCKS:
        page.end_line() if page.lists else page.gap()


def _inline(text: str) -> str:
    return _BLANKS.sub(" ", text).strip()
