"""Descriptions of tools as templates take them: a list of {"type": "function", "function": {...}}."""

from __future__ import annotations

import json
from typing import Any

from eagle3lab.data.adapters.base import RowError

# Words that data sets use for types, and the word of JSON schema; None: any type, nothing is said.
_TYPES = {
    "dict": "object", "hashmap": "object", "object": "object", "tuple": "array", "list": "array", "array": "array",
    "arraylist": "array", "str": "string", "string": "string", "char": "string", "int": "integer", "long": "integer",
    "integer": "integer", "float": "number", "double": "number", "number": "number", "bool": "boolean",
    "boolean": "boolean", "any": None, "": None,
}  # fmt: skip


def tools_of(value: Any, where: str = "tools") -> list[dict[str, Any]] | None:
    """Tools from a list or the JSON text of one, bare ({"name", "parameters"}) or wrapped; None for none.

    RowError("bad_tools") for anything else. Names of types are put into JSON schema's words.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise RowError("bad_tools", f"{where} is not JSON: {error}") from error
    if not value:
        return None
    if not isinstance(value, list):
        raise RowError("bad_tools", f"{where} is {type(value).__name__}, not a list")
    found = []
    for number, tool in enumerate(value):
        inner = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise RowError("bad_tools", f"{where}: tool {number} has no name")
        found.append({"type": "function", "function": _json_schema(inner)})
    return found


def json_objects(text: str, where: str) -> list[dict[str, Any]]:
    """JSON objects written one after the other, with nothing but space between them."""
    decoder, found, at = json.JSONDecoder(strict=False), [], 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise RowError("bad_tools", f"{where}: object {len(found)}: {error}") from error
        found.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def _json_schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        if key == "type" and isinstance(item, str):
            item = _TYPES.get(item.lower(), item)
            if item is None:
                continue
        found[key] = _json_schema(item)
    return found
