"""Parses a model's answers. Error messages say what is wrong, so that the model can correct it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trace_bench.core.decode import Limits, TooMuch, Unreadable, read
from trace_bench.core.text import without_surrogates

_OPENED = re.compile(r"```\w*+(\s*+)")


ANSWER = Limits(2**20)  # of the JSON in an answer


class Unusable(Exception):
    """An answer that cannot be used; the error's text is sent to the model."""


def fenced(text: str) -> list[str]:
    """The blocks between lines of ```, in order; the first line may name a language."""
    blocks: list[str] = []
    place = text.find("```")
    while place >= 0:
        opened = _OPENED.match(text, place)
        newline = opened[1].rfind("\n") if opened else -1
        if opened is None or newline < 0:
            place = text.find("```", place + 1)
            continue
        start = opened.start(1) + newline + 1
        end = text.find("```", start)
        if end < 0:
            break
        blocks.append(text[start:end])
        place = text.find("```", end + 3)
    return blocks


def read_json(text: str, schema: Mapping[str, Any]) -> Any:
    """The answer's JSON: the last fenced block, or everything from the first brace to the last.
    Raises Unusable if there is none or it violates the schema (JSON Schema, 2020-12)."""
    blocks = fenced(text)
    body = blocks[-1] if blocks else text[text.find("{") : text.rfind("}") + 1]
    if not body.strip():
        raise Unusable("there is no JSON object in it.")
    try:
        data = without_surrogates(read(body, ANSWER))
    except TooMuch as error:
        raise Unusable(f"{error}.") from error
    except Unreadable as error:
        raise Unusable(f"it is not JSON ({error}).") from error
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema)
    problems = sorted(validator.iter_errors(data), key=lambda e: list(map(str, e.path)))
    if problems:
        words = "; ".join(f"at {e.json_path}: {_middle_cut(e.message)}" for e in problems[:5])
        raise Unusable(f"{words}.")
    return data


def _middle_cut(text: str) -> str:
    """A message that begins with the value and ends with what is wrong with it."""
    return text if len(text) <= 200 else f"{text[:100]} [...] {text[-100:]}"


def response_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field of a request by which a server holds its answer to a schema. Objects are closed:
    they have the properties that the schema names and no others, in their order."""
    named = {"name": name, "strict": True, "schema": _closed(schema)}
    return {"type": "json_schema", "json_schema": named}


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    out = {key: _closed(part) for key, part in schema.items()}
    fields = out.get("properties")
    if out.get("type") != "object" or not isinstance(fields, dict):
        return out
    return {**out, "required": list(fields), "additionalProperties": False}


def read_block(text: str) -> str:
    """The longest fenced block of an answer. Raises Unusable if there is none."""
    blocks = fenced(text)
    if not blocks:
        cut = " (it may have been cut off)" if "```" in text else ""
        raise Unusable(f"there is no block between ``` lines in it{cut}.")
    return max(blocks, key=len).strip() + "\n"
