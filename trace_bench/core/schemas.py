"""What a JSON Schema says, wherever it says so: behind references, and in the schemas that it
combines. One walk for all that read the schemas of tools, also in a worker, which has no packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
KINDS |= {list: "array", dict: "object"}
_SHAPES = {"properties": "object", "additionalProperties": "object", "items": "array"}
_SHAPES |= {"minimum": "number", "maximum": "number"}
"""What a schema is about that names no type."""
_ONE_OF = ("anyOf", "oneOf", "if", "then", "else")
_OPEN = {"patternProperties", "unevaluatedProperties", "dependentSchemas", *_ONE_OF}


@dataclass(frozen=True)
class Arguments:
    """What a tool takes. `schemas`: of each argument that has a name; `others`: whether it takes
    more, or it cannot be told."""

    schemas: Mapping[str, Any]
    required: tuple[str, ...]
    others: bool

    @property
    def undescribed(self) -> list[str]:
        """What is required and cannot be passed."""
        return [] if self.others else [n for n in self.required if n not in self.schemas]


def arguments_of(parameters: Any, root: Any = None) -> Arguments:
    """Those of a tool whose `parameters` have this schema. `root`: of which it is a part."""
    every, always = (list(parts(parameters, root or parameters, every)) for every in (True, False))
    schemas: dict[str, list[Any]] = {}
    for part in every:
        named = part.get("properties")
        for name, one in named.items() if isinstance(named, Mapping) else ():
            schemas.setdefault(name, []).append(one)
    required = [n for part in always for n in _list(part.get("required")) if isinstance(n, str)]
    said = [part["additionalProperties"] for part in always if "additionalProperties" in part]
    free = not any("properties" in part for part in every) or any(_OPEN & p.keys() for p in always)
    others = any("patternProperties" in part for part in always) or (
        not any(one is False for one in said) if said else free
    )
    one_each = {n: all_[0] if len(all_) == 1 else {"anyOf": all_} for n, all_ in schemas.items()}
    return Arguments(one_each, tuple(dict.fromkeys(required)), others)


def types_of(schema: Any, root: Any) -> tuple[set[str], list[Any]]:
    """(the types of JSON, as far as the schema says so, that a value may have; the values that it
    lists, whose types are not among those)."""
    types: set[str] = set()
    listed: list[Any] = []
    for part in parts(schema, root):
        if part.get("enum") or "const" in part:
            listed += [*_list(part.get("enum")), *([part["const"]] if "const" in part else [])]
        elif kind := part.get("type"):
            types |= {str(one) for one in (kind if isinstance(kind, list) else [kind])}
        else:
            types |= {kind for key, kind in _SHAPES.items() if key in part}
    return types, listed


def parts(schema: Any, root: Any, every: bool = True) -> Iterator[Mapping[str, Any]]:
    """The schema and all others that speak of the same value, each once. `every`: also those that
    hold in one case of several."""
    waiting, seen = [schema], set[int]()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [_target(one.get("$ref"), root), *_list(one.get("allOf"))]
        for key in _ONE_OF if every else ():
            waiting += _list(one.get(key)) or [one.get(key)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _target(reference: Any, root: Any) -> Any:
    """What a reference leads to (`#/$defs/A`, `#/oneOf/0`); None if to nothing here."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for step in filter(None, unquote(reference[1:]).split("/")):
        root = root if isinstance(root, Mapping) else {f"{n}": v for n, v in enumerate(_list(root))}
        root = root.get(step.replace("~1", "/").replace("~0", "~"))
    return root
