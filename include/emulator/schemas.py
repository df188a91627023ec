"""Fills any JSON schema from a text, sensibly where a field's name says what it wants, validly always."""

from __future__ import annotations

import math
from typing import Any

from include.emulator.extract import Extract
from include.emulator.patterns import example

MAX_DEPTH = 6
"""Below this, optional parts and array items are left out, so that a recursive schema ends."""
LIST_ITEMS = 5

NAMED_LISTS = {
    "entities": ("entit", "name", "people", "person", "organi", "place", "product", "author"),
    "sentences": ("sentence", "fact", "claim", "point", "highlight", "quote", "bullet", "step"),
    "keywords": ("",),
}
FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}

DEFAULT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "keywords": {"type": "array", "items": {"type": "string"}},
        "entities": {"type": "array", "items": {"type": "string"}},
    },
}
"""What is answered where JSON is asked for without a schema."""


def fill(schema: dict[str, Any], extract: Extract) -> Any:
    """A value that the schema accepts. Raises ValueError where the schema can't be met or read."""
    return _Filler(schema, extract).value(schema, "", 0)


class _Filler:
    def __init__(self, root: dict[str, Any], extract: Extract) -> None:
        self._root = root
        self._extract = extract

    def value(self, schema: Any, name: str, depth: int, index: int = 0) -> Any:
        """A value for one place: `name` is the property it is for, `index` its place in a list."""
        schema = self._resolve(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._choose(schema["enum"])
        for union in ("anyOf", "oneOf"):
            if schema.get(union):
                base = {key: value for key, value in schema.items() if key != union}
                return self.value(base | self._branch(schema[union], depth), name, depth, index)
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"]
            kind = kinds[0] if kinds and depth < MAX_DEPTH else "null" if "null" in kind else kind[0]
        if kind is None:
            kind = next((k for key, k in _IMPLIED.items() if key in schema), "string")
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, name, depth)
            case "string":
                return self._string(schema, name, index)
            case "integer" | "number":
                return self._number(schema, name, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
            case _:
                raise ValueError(f"{kind!r} is no type of a JSON schema")

    def _resolve(self, schema: Any) -> dict[str, Any]:
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise ValueError(f"a schema is an object, not {schema!r}")
        seen = 0
        while "$ref" in schema:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = self._pointer(schema["$ref"]) | rest
            if (seen := seen + 1) > 50:
                raise ValueError("a $ref leads back to itself")
        if "allOf" in schema:
            merged = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                for key, value in self._resolve(part).items():
                    if key == "properties":
                        merged[key] = merged.get(key, {}) | value
                    elif key == "required":
                        merged[key] = [*merged.get(key, []), *value]
                    else:
                        merged[key] = value
            return merged
        resolved: dict[str, Any] = schema
        return resolved

    def _pointer(self, ref: str) -> dict[str, Any]:
        if not ref.startswith("#"):
            raise ValueError(f"only references within the schema are known, not {ref!r}")
        found: Any = self._root
        for part in ref[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise ValueError(f"the reference {ref!r} leads nowhere")
            found = found[key]
        return dict(found)

    def _branch(self, branches: list[Any], depth: int) -> dict[str, Any]:
        resolved = [self._resolve(each) for each in branches]
        if depth >= MAX_DEPTH:
            simple = [each for each in resolved if each.get("type") not in ("object", "array")]
            return (simple or resolved)[0]
        return next((each for each in resolved if each.get("type") != "null"), resolved[0])

    def _choose(self, options: list[Any]) -> Any:
        """The option that the text names most often; the first where it names none."""
        text = self._extract.text.lower()
        counts = [text.count(str(each).lower()) if isinstance(each, str) and each else 0 for each in options]
        return options[counts.index(max(counts))]

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        filled = {}
        for key, each in properties.items():
            if depth < MAX_DEPTH or key in required:
                filled[key] = self.value(each, key, depth + 1)
        extra = schema.get("additionalProperties", True)
        missing = [key for key in required if key not in filled]
        while len(filled) + len(missing) < schema.get("minProperties", 0):
            missing.append(f"property_{len(filled) + len(missing) + 1}")
        for key in missing:
            filled[key] = self.value(extra, key, depth + 1)
        return filled

    def _array(self, schema: dict[str, Any], name: str, depth: int) -> list[Any]:
        low = int(schema.get("minItems", 0))
        high = int(schema.get("maxItems", max(low, LIST_ITEMS)))
        fixed = [self.value(each, name, depth + 1) for each in schema.get("prefixItems", [])]
        items = schema.get("items", True)
        if items is False:
            return fixed[:high]
        plain = self._resolve(items)
        texts = plain.get("type", "string") == "string" and not {"enum", "const", "pattern", "format"} & set(
            plain
        )
        wanted = low if depth >= MAX_DEPTH else max(low, min(high, LIST_ITEMS if texts else 1))
        made = list(fixed)
        for index in range(max(0, wanted - len(fixed))):
            if texts and index >= max(low, len(self._list(name))):
                break
            made.append(self.value(items, name, depth + 1, index + 1))
        return _distinct(made, plain, low) if schema.get("uniqueItems") else made

    def _list(self, name: str) -> list[str]:
        lowered = name.lower()
        for attribute, hints in NAMED_LISTS.items():
            if any(hint in lowered for hint in hints):
                found: list[str] = getattr(self._extract, attribute)
                return found
        return self._extract.keywords

    def _string(self, schema: dict[str, Any], name: str, index: int) -> str:
        if "format" in schema and schema["format"] in FORMATS:
            return FORMATS[schema["format"]]
        low, high = int(schema.get("minLength", 0)), int(schema.get("maxLength", 2_000))
        if "pattern" in schema:
            return example(schema["pattern"])
        text = self._text(name.lower(), index)
        if len(text) < low:
            text = (text + " " + self._extract.text).strip() if len(self._extract.text) >= low else text
            text = text.ljust(low, ".")
        return text[:high].rstrip() if len(text[:high].rstrip()) >= low else text[:high]

    def _text(self, name: str, index: int) -> str:
        extract = self._extract
        if index:
            listed = self._list(name)
            return listed[index - 1] if index <= len(listed) else f"item {index}"
        if any(hint in name for hint in ("title", "headline", "heading", "subject")):
            return extract.title()
        if any(hint in name for hint in ("answer", "response", "reply")):
            return extract.answer()
        if "question" in name or "query" in name:
            return extract.question or f"What is said about {(extract.keywords or ['this'])[0]}?"
        if any(hint in name for hint in ("name", "entity", "author", "person")):
            return (extract.entities or extract.keywords or ["unknown"])[0]
        if any(hint in name for hint in ("keyword", "topic", "tag", "category", "label", "type", "kind")):
            return (extract.keywords or ["unknown"])[0]
        if "lang" in name:
            return "en"
        return extract.summary()

    def _number(self, schema: dict[str, Any], name: str, *, whole: bool) -> int | float:
        step = schema.get("multipleOf") or (1 if whole else None)
        low, high = schema.get("minimum"), schema.get("maximum")
        edge = step or 1e-6
        if "exclusiveMinimum" in schema:
            low = max(low if low is not None else -math.inf, schema["exclusiveMinimum"] + edge)
        if "exclusiveMaximum" in schema:
            high = min(high if high is not None else math.inf, schema["exclusiveMaximum"] - edge)
        graded = any(
            hint in name.lower() for hint in ("score", "rating", "confidence", "relevance", "probab")
        )
        if graded and low is not None and high is not None:
            value = (low + high) / 2
        else:
            fitting = [
                each
                for each in self._extract.numbers
                if (low is None or each >= low) and (high is None or each <= high)
            ]
            value = fitting[0] if fitting else low if low is not None else high if high is not None else 1
        if step:
            value = math.floor(value / step) * step
            if low is not None and value < low:
                value = math.ceil(low / step) * step
            if high is not None and value > high:
                raise ValueError(f"no multiple of {step} lies between {low} and {high}")
        return int(value) if whole or float(value).is_integer() else float(value)


def _distinct(values: list[Any], items: dict[str, Any], low: int) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    if len(kept) < low and items.get("enum"):
        kept += [each for each in items["enum"] if each not in kept]
        return kept[:low]
    if len(kept) < low and items.get("type") in ("integer", "number"):
        start = int(items.get("minimum", 0))
        kept += [each for each in range(start, start + 2 * low) if each not in kept][: low - len(kept)]
    if len(kept) < low:
        raise ValueError(f"{low} distinct items are asked for, and only {len(kept)} can be told apart")
    return kept


_IMPLIED = {
    "properties": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
    "minLength": "string",
    "pattern": "string",
    "minimum": "number",
    "maximum": "number",
}
