"""Declaring a tool: its schema for the agent and the check of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trace_bench.core.types import Tool
from trace_bench.envs.toolsandbox.databases import ToolFault

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}

_ANY_NUMBER = (-1e15, 1e15)


@dataclass(frozen=True)
class Parameter:
    """One argument. `kind` is a JSON schema type; `nullable` says that null may be passed;
    `bounds` are inclusive and their breach a ValueError."""

    name: str
    kind: str
    description: str
    required: bool = True
    nullable: bool = False
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class ToolSpec:
    """A tool: `function(databases, **arguments)` returns JSON-safe data or raises ToolFault."""

    name: str
    module: str
    description: str
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    schema: Tool


def required(
    name: str, kind: str, description: str, bounds: tuple[float, float] | None = None
) -> Parameter:
    """A required argument."""
    return Parameter(name, kind, description, bounds=bounds)


def optional(
    name: str,
    kind: str,
    description: str,
    bounds: tuple[float, float] | None = None,
    nullable: bool = False,
) -> Parameter:
    """An argument that can be left out."""
    return Parameter(name, kind, description, False, nullable, bounds)


def tool(
    module: str, function: Callable[..., Any], description: str, *parameters: Parameter
) -> ToolSpec:
    """Declare `function` as a tool under its own name."""
    name = function.__name__
    schema = {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    p.name: {"type": p.kind, "description": p.description} for p in parameters
                },
                "required": [p.name for p in parameters if p.required],
            },
        },
    }
    return ToolSpec(name, module, description, function, parameters, schema)


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
    """ToolFault TypeError for a missing, unknown or wrongly typed argument, ValueError for one
    out of range. As in Python an integer passes for a number; a boolean passes for neither."""
    known = 0
    for parameter in spec.parameters:
        if parameter.name not in arguments:
            if parameter.required:
                raise ToolFault("TypeError", f"Missing argument {parameter.name}")
            continue
        known += 1
        _check_value(parameter, arguments[parameter.name])
    if known < len(arguments):
        names = {p.name for p in spec.parameters}
        extra = next(name for name in arguments if name not in names)
        raise ToolFault("TypeError", f"Unknown argument {extra[:40]}")


def _check_value(parameter: Parameter, value: Any) -> None:
    if value is None and parameter.nullable:
        return
    wanted, is_bool = _PYTHON_TYPES[parameter.kind], isinstance(value, bool)
    if not isinstance(value, wanted) or is_bool != (parameter.kind == "boolean"):
        article = "an" if parameter.kind == "integer" else "a"
        raise ToolFault(
            "TypeError", f"Argument {parameter.name} must be {article} {parameter.kind}"
        )
    if isinstance(value, int | float) and not is_bool:
        low, high = parameter.bounds or _ANY_NUMBER
        # Written so that NaN and infinity, which JSON parsers let through, are out of range too.
        if not low <= value <= high:
            raise ToolFault("ValueError", f"Argument {parameter.name} is out of range")
