"""The format of Qwen3-Coder, Qwen3.5 and Qwen3.6, whose values are texts:

<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.types import Tool
from trace_bench.policies.formats import Format, Malformed, json_of
from trace_bench.policies.formats.hermes import blocks_of

_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_SPELT = {"True": "true", "False": "false", "None": "null"}  # as templates write Python's values


class QwenCoder(Format):
    begin = "<tool_call>"

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        kinds = {t["function"]["name"]: _properties(t) for t in tools}
        blocks, content = blocks_of(text)
        return content, [_call(block.strip(), kinds) for block in blocks]


def _call(block: str, kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    found = _FUNCTION.match(block)
    if found is None:
        raise Malformed("no <function=NAME>")
    name, place = found[1].strip(), found.end()
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(block, place):
        end = block.find("</parameter>", parameter.end())
        if end < 0:
            raise Malformed(f"no </parameter> after <parameter={parameter[1]}>")
        value = block[parameter.end() : end].removeprefix("\n").removesuffix("\n")
        arguments[parameter[1].strip()] = _value(value, kinds.get(name, {}).get(parameter[1], {}))
        place = end + len("</parameter>")
    if block[place:].strip() != "</function>":
        raise Malformed(f"no </function> but {block[place:].strip()[:40]!r}")
    return {"name": name, "arguments": arguments}


def _properties(tool: Tool) -> Mapping[str, Any]:
    """The schemas of a tool's arguments, whoever has written the tool."""
    given = tool["function"].get("parameters")
    found = given.get("properties") if isinstance(given, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _value(text: str, schema: Any) -> Any:
    """The text itself where the schema wants one or says nothing; else the value that it spells,
    or the text, which the environment then refuses."""
    kinds = _kinds(schema)
    if kinds in ([], ["string"]):
        return text
    try:
        value = json_of(_SPELT.get(text.strip(), text))
    except Malformed:
        return text
    return text if "string" in kinds and value is not None else value


def _kinds(schema: Any) -> list[Any]:
    """The JSON types that a schema allows, as far as it says so."""
    if not isinstance(schema, Mapping):
        return []
    kind, choices = schema.get("type"), schema.get("anyOf")
    if isinstance(choices, list):
        return [kind for choice in choices for kind in _kinds(choice)]
    return kind if isinstance(kind, list) else [kind] if kind else []
