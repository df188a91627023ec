"""The bundled corpus: Python's own help topics, written out as JSONL documents in dated partitions.

The text comes from `pydoc_data.topics`, which every Python carries, so the demo needs no download.
It is the text of the Python that runs this: another version gives slightly different documents.
`python -m include.cli sample-documents` writes them below the storage root.
"""

from __future__ import annotations

import hashlib
import logging
import sys

import orjson
import pendulum

from include.storage import Storage

log = logging.getLogger(__name__)

PARTITIONS: tuple[str, ...] = ("2026-01-01", "2026-01-02", "2026-01-03")
"""The dates that the documents are spread over, by a hash of their id."""

_OTHER = ("Other", "")

#: Chapter of Python's documentation → its page, and the topics that lie there.
_CHAPTERS: dict[tuple[str, str], str] = {
    ("Lexical analysis", "reference/lexical_analysis.html"): (
        "floating id-classes identifiers imaginary integers numbers strings"
    ),
    ("Data model", "reference/datamodel.html"): (
        "attribute-access callable-types context-managers customization numeric-types objects "
        "sequence-types specialnames types"
    ),
    ("Execution model", "reference/executionmodel.html"): "dynamic-features exceptions execmodel naming",
    ("Expressions", "reference/expressions.html"): (
        "atom-identifiers atom-literals attribute-references await binary bitwise booleans calls "
        "comparisons conversions dict exprlists in lambda lists operator-summary power shifting "
        "slicings subscriptions unary"
    ),
    ("Simple statements", "reference/simple_stmts.html"): (
        "assert assignment augassign break continue del global import nonlocal pass raise return yield"
    ),
    ("Compound statements", "reference/compound_stmts.html"): (
        "async class compound else for function if try while with"
    ),
    ("Built-in types", "library/stdtypes.html"): (
        "bltin-code-objects bltin-ellipsis-object bltin-null-object bltin-type-objects specialattrs "
        "string-methods truth typesfunctions typesmapping typesmethods typesmodules typesseq "
        "typesseq-mutable"
    ),
    ("Strings", "library/string.html"): "formatstrings",
    ("Debugger", "library/pdb.html"): "debugger",
}
_CHAPTER_OF = {topic: chapter for chapter, topics in _CHAPTERS.items() for topic in topics.split()}


def documents() -> dict[str, list[dict[str, str]]]:
    """The documents of each partition, sorted by id.

    Each has `id` and `topic` (the topic's label), `title` (its first line), `text` (all of it),
    `url` (empty where the page isn't known), `updated_at` (ISO 8601) and `section`.
    """
    from pydoc_data.topics import topics

    parts: dict[str, list[dict[str, str]]] = {partition: [] for partition in PARTITIONS}
    for topic, text in sorted(topics.items()):
        partition = _partition(topic)
        section, page = _CHAPTER_OF.get(topic, _OTHER)
        parts[partition].append(
            {
                "id": topic,
                "title": text.lstrip().partition("\n")[0].strip(),
                "text": text,
                "url": _url(page, topic),
                "updated_at": pendulum.from_format(partition, "YYYY-MM-DD").isoformat(),
                "topic": topic,
                "section": section,
            }
        )
    return parts


def write_documents(storage: Storage, folder: str = "sources/python_docs") -> list[str]:
    """Write `{folder}/{partition}.jsonl`, one document a line; returns their paths below the root.

    A file that holds these very bytes already is left alone.
    """
    paths = []
    for partition, parts in documents().items():
        path = f"{folder}/{partition}.jsonl"
        data = b"".join(orjson.dumps(document) + b"\n" for document in parts)
        if storage.exists(path) and storage.read_bytes(path) == data:
            log.info("%s is as it should be: %d documents", storage.url(path), len(parts))
        else:
            storage.write_bytes(path, data)
            log.info("%s written: %d documents", storage.url(path), len(parts))
        paths.append(path)
    return paths


def _partition(topic: str) -> str:
    # By hash and not in turn: a topic that another Python adds moves no other one.
    digest = hashlib.blake2b(topic.encode(), digest_size=16).digest()
    return PARTITIONS[int.from_bytes(digest, "little") % len(PARTITIONS)]


def _url(page: str, topic: str) -> str:
    if not page:
        return ""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"https://docs.python.org/{version}/{page}#{topic}"
