"""Which JSON schemas structured outputs take (Anthropic's structured outputs guide, its limitations)."""

from __future__ import annotations

from typing import Any

UNSUPPORTED = {
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength"),
    "array": ("maxItems", "uniqueItems"),
    "object": ("minProperties", "maxProperties"),
}
MOST_MIN_ITEMS = 1


def check_schema(schema: Any) -> None:
    """Raise ValueError saying what isn't supported."""
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind == "object" and schema.get("additionalProperties") is not False:
        raise ValueError("For 'object' type, 'additionalProperties' must be explicitly set to false")
    found = [name for name in UNSUPPORTED.get(str(kind), ()) if name in schema]
    if found:
        raise ValueError(f"For '{kind}' type, properties {', '.join(found)} are not supported")
    if kind == "array" and schema.get("minItems", 0) > MOST_MIN_ITEMS:
        raise ValueError("For 'array' type, 'minItems' values other than 0 or 1 are not supported")
    for group in ("properties", "$defs", "definitions"):
        for each in (schema.get(group) or {}).values():
            check_schema(each)
    for union in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for each in schema.get(union) or ():
            check_schema(each)
    check_schema(schema.get("items"))
