"""Parses a model's answers. Error messages say what is wrong, so that the model can correct it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.core.decode import Limits, read
from trace_bench.core.text import fenced, json_in, without_surrogates

ANSWER = Limits(2**20)  # of the JSON in an answer


class Unusable(Exception):
    """An answer that cannot be used; the error's text is sent to the model."""


def read_json(text: str, schema: Mapping[str, Any]) -> Any:
    """The answer's JSON (`json_in`). Raises Unusable if there is none or it violates the schema
    (JSON Schema, 2020-12)."""
    try:
        data = without_surrogates(read(json_in(text), ANSWER))
    except ValueError as error:
        raise Unusable(f"it cannot be read as JSON: {error}.") from error
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
    """The fenced block of an answer. Raises Unusable unless there is one, whole."""
    blocks, unended = fenced(text)
    if unended:
        raise Unusable("its last block has no end (it may have been cut off).")
    if len(blocks) != 1:
        raise Unusable(
            f"it has {len(blocks)} blocks between ``` lines; needed: one (between lines of ````, "
            "where ``` lines are a part of it)."
        )
    return blocks[0].strip() + "\n"
