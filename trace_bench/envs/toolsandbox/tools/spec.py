"""Declaring a tool: its schema for the agent and the check of its arguments; and how search tools
filter rows, with checks that several tools share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from trace_bench.core.chat import tool_json
from trace_bench.core.types import Tool
from trace_bench.envs.toolsandbox.databases import Row, ToolFault

# A POSIX time before 1980 or after 2049 is a wrong unit (milliseconds, days), not a date.
TIMES = (315532800.0, 2524608000.0)
LATITUDES = (-90.0, 90.0)
LONGITUDES = (-180.0, 180.0)
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}

_ANY_NUMBER = (-1e15, 1e15)


@dataclass(frozen=True)
class ToolParameter:
    """One argument. `kind` is a JSON schema type; `nullable` says that null may be passed;
    `bounds` are inclusive and their breach a ValueError; `phone` asks for a number in E.164 form
    ("+14155550132")."""

    name: str
    kind: str
    description: str
    bounds: tuple[float, float] | None = None
    nullable: bool = False
    required: bool = True
    phone: bool = False


required, optional = ToolParameter, partial(ToolParameter, required=False)


@dataclass(frozen=True)
class ToolSpec:
    """A tool: `function(databases, **arguments)` returns JSON-safe data or raises ToolFault."""

    name: str
    module: str
    function: Callable[..., Any]
    parameters: tuple[ToolParameter, ...]
    schema: Tool


def tool(
    module: str, description: str, *parameters: ToolParameter, name: str | None = None
) -> Callable[[Callable[..., Any]], ToolSpec]:
    """Declares a function as a tool of a module, under its own name or `name`."""

    def declare(function: Callable[..., Any]) -> ToolSpec:
        tool_name = name or function.__name__
        properties = {p.name: {"type": p.kind, "description": p.description} for p in parameters}
        needed = [p.name for p in parameters if p.required]
        arguments = {"type": "object", "properties": properties, "required": needed}
        schema = tool_json(tool_name, description, arguments)
        return ToolSpec(tool_name, module, function, parameters, schema)

    return declare


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
    """ToolFault TypeError for a missing, unknown or wrongly typed argument, ValueError for one
    out of range, InvalidPhoneNumberError for a number of another form. As in Python an integer
    passes for a number; a boolean passes for neither."""
    for parameter in spec.parameters:
        if parameter.name in arguments:
            _check_value(parameter, arguments[parameter.name])
        elif parameter.required:
            raise ToolFault("TypeError", f"Missing argument {parameter.name}")
    names = {p.name for p in spec.parameters}
    for extra in arguments:
        if extra not in names:
            raise ToolFault("TypeError", f"Unknown argument {extra[:40]}")
    phones = (arguments[p.name] for p in spec.parameters if p.phone and p.name in arguments)
    if not all(map(_is_e164, phones)):
        raise ToolFault("InvalidPhoneNumberError", "Not a valid E.164 number")


def _check_value(parameter: ToolParameter, value: Any) -> None:
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


@lru_cache(maxsize=1024)
def _is_e164(number: str) -> bool:
    import phonenumbers

    try:
        parsed = phonenumbers.parse(number, None)
    except phonenumbers.NumberParseException:
        return False
    form = phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)
    return form == number and phonenumbers.is_possible_number(parsed)


@lru_cache(maxsize=4096)
def similarity(query: str, text: str) -> float:
    """0 to 100: rapidfuzz's WRatio on lower-cased text without punctuation."""
    from rapidfuzz import fuzz, utils

    return fuzz.WRatio(query, text, processor=utils.default_process)


def search(
    rows: Sequence[Row], criteria: Mapping[str, Any], fuzzy: Mapping[str, float]
) -> list[Row]:
    """Copies of the rows that meet all criteria, the most similar texts first.

    Columns in `fuzzy` are compared by similarity with that threshold, `…_lowerbound` and
    `…_upperbound` bound their column, all others are exact."""
    matches = [row for row in rows if all(_meets(row, *one, fuzzy) for one in criteria.items())]
    texts = [(name, wanted) for name, wanted in criteria.items() if name in fuzzy]
    if texts and len(matches) > 1:
        matches.sort(key=lambda row: -sum(similarity(wanted, row[name]) for name, wanted in texts))
    return [dict(row) for row in matches]


def _meets(row: Row, name: str, wanted: Any, fuzzy: Mapping[str, float]) -> bool:
    column, _, bound = name.rpartition("_")
    bounded = bound in ("lowerbound", "upperbound")
    value = row[column if bounded else name]
    if not bounded and name not in fuzzy:
        return bool(value == wanted)
    if value is None:
        return False
    if name in fuzzy:
        return similarity(wanted, value) >= fuzzy[name]
    return bool(value >= wanted if bound == "lowerbound" else value <= wanted)


def tidy(value: float, digits: int = 2) -> float:
    """A short number: rounded, four significant digits below 1, whole numbers as integers."""
    if not -1e15 <= value <= 1e15:
        raise ToolFault("ValueError", "Result is out of range")
    short = round(value, digits) if abs(value) >= 1 else float(f"{value:.4g}")
    return int(short) if short == int(short) else short


def require_any(criteria: Mapping[str, Any]) -> None:
    """ToolFault ValueError for a search without criteria or a change of nothing."""
    if not criteria:
        raise ToolFault("ValueError", "Give at least one argument")
