"""A light check of a call against its tool's schema: names, required, types, enumerations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_DEEPEST = 8


def fault_of(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """What is wrong with a call's arguments, for the agent to read; None if they fit. What a schema
    says besides is not checked."""
    return _fault(dict(arguments), {**parameters, "type": "object"}, "the arguments", 0)


def _fault(value: Any, schema: Any, where: str, depth: int) -> str | None:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    kinds = schema.get("type")
    allowed = kinds if isinstance(kinds, list) else [kinds]
    known = [kind for kind in allowed if isinstance(kind, str) and kind in _TYPES]
    if known and len(known) == len(allowed) and not any(_is(value, kind) for kind in known):
        return f"{where} must be {' or '.join(known)}"
    enum = schema.get("enum")
    if isinstance(enum, list) and value not in enum:
        return f"{where} must be one of {', '.join(map(repr, enum[:20]))}"
    if isinstance(value, dict) and "object" in known:
        return _fault_of_object(value, schema, where, depth)
    if isinstance(value, list):
        for number, part in enumerate(value[:200]):
            if fault := _fault(part, schema.get("items"), f"{where}[{number}]", depth + 1):
                return fault
    return None


def _fault_of_object(
    value: dict[str, Any], schema: Mapping[str, Any], where: str, depth: int
) -> str | None:
    properties = schema.get("properties")
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in value:
            return f"{where} lack {name!r}"
    if not isinstance(properties, Mapping):
        return None
    free = schema.get("additionalProperties", False)
    for name, part in value.items():
        if name not in properties:
            if free is False and (properties or depth == 0):
                return f"{where} have no {name!r}; allowed: {', '.join(properties) or 'none'}"
            continue
        if fault := _fault(part, properties[name], name, depth + 1):
            return fault
    return None


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])
