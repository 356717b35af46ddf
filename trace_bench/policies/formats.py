"""What a model writes, read: thoughts, content and tool calls.

Every model writes thoughts as <think>...</think>, before what it says, and calls between
<tool_call> and </tool_call>, in one of several formats (`FORMATS`); which one a model has learned
is found by rendering a known call with its own chat template (`policies.chat`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.chat import KINDS, arguments_of, call_json, read_call, text_message, types_of
from trace_bench.core.decode import Limits, Unreadable, read
from trace_bench.core.text import apart, between, without_surrogates
from trace_bench.core.types import Message, Tool

CALL = Limits(2**20)  # of the text of one tool call
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"


class Malformed(ValueError):
    """Why a tool call cannot be parsed."""


@dataclass(frozen=True)
class Reply:
    """An assistant's turn. The message has content and calls, which are what others see; `thoughts`
    are for readers of logs. `malformed`: why a tool call could not be parsed (None: no error); the
    message then keeps its text as content."""

    message: Message
    thoughts: str = ""
    malformed: str | None = None

    @property
    def remembered(self) -> Message:
        """The message as servers get it back: with the thoughts, which their template keeps or
        drops, by vLLM's present and former name."""
        if not self.thoughts:
            return self.message
        return {**self.message, "reasoning": self.thoughts, "reasoning_content": self.thoughts}


@dataclass(frozen=True)
class Format:
    """How a model writes a tool call. `objects`: its template takes arguments as an object, else as
    the sampled text; `call`: a call's text and the schemas of all tools' arguments ->
    {"name": ..., "arguments": {...}}, or Malformed."""

    name: str
    objects: bool
    call: Callable[[str, Mapping[str, Any]], dict[str, Any]]

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        """(content, the calls in it). Raises Malformed."""
        blocks, content = between(text, CALL_BEGIN, CALL_END)
        if CALL_BEGIN in content or CALL_END in content:
            raise Malformed("an unclosed <tool_call> block")
        schemas = {t["function"]["name"]: t["function"].get("parameters") for t in tools}
        return content, [self.call(block, schemas) for block in blocks]

    def prepared(self, message: Message) -> Message:
        """The message as templates of this format take it."""
        if not self.objects or not message.get("tool_calls"):
            return message
        return {**message, "tool_calls": [self._objects(call) for call in message["tool_calls"]]}

    def _objects(self, call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            name, arguments = read_call(call)
        except ValueError:  # of a conversation that another program has written
            return dict(call)
        return {**call, "function": {"name": name, "arguments": arguments}}


def cut(text: str, mark: str) -> str:
    """The text before a mark, also where it ends in the mark's beginning."""
    text = text.partition(mark)[0]
    begun = next(n for n in range(len(mark), -1, -1) if text.endswith(mark[:n]))
    return text[: len(text) - begun]


def read_reply(
    text: str, turn: int, how: Format, tools: Sequence[Tool] = (), opened: bool = False
) -> Reply:
    """The turn in a text. `opened`: the prompt ends inside a thought, which holds no call."""
    return read_calls(*apart(text, CALL_BEGIN, opened), turn, how, tools)


def read_calls(
    thoughts: str, said: str, turn: int, how: Format, tools: Sequence[Tool] = ()
) -> Reply:
    """The turn in a text without its thoughts."""
    try:
        content, parsed = how.calls(said, tools)
    except Malformed as error:
        said = said.strip() if thoughts else said
        return Reply(text_message(said), thoughts, str(error))
    calls = [
        call_json(f"call_{turn}_{i}", c["name"], json.dumps(c["arguments"], ensure_ascii=False))
        for i, c in enumerate(parsed)
    ]
    return Reply(text_message(content.strip(), calls), thoughts)


def as_call(data: Any) -> dict[str, Any]:
    """A call from its JSON. Raises Malformed."""
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise Malformed('no string "name"')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Malformed('"arguments" is not an object')
    return {"name": data["name"], "arguments": arguments}


def json_of(text: str) -> Any:
    """The value of a call's JSON. Raises Malformed."""
    try:
        return without_surrogates(read(text, CALL))
    except Unreadable as error:
        raise Malformed(f"not JSON: {error}") from None


def _hermes(block: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """{"name": "...", "arguments": {...}}."""
    return as_call(json_of(block))


_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_SPELT = {"True": "true", "False": "false", "None": "null"}  # as templates write Python's values


def _tagged(block: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """<function=NAME><parameter=KEY>VALUE</parameter></function>, each mark in its own line."""
    block = block.strip()
    function = _FUNCTION.match(block)
    if function is None:
        raise Malformed("no <function=NAME>")
    name, place = function[1].strip(), function.end()
    root = schemas.get(name)
    taken, arguments = arguments_of(root).schemas, dict[str, Any]()
    while parameter := _PARAMETER.match(block, place):
        end = block.find("</parameter>", parameter.end())
        if end < 0:
            raise Malformed(f"no </parameter> after <parameter={parameter[1]}>")
        value = block[parameter.end() : end].removeprefix("\n").removesuffix("\n")
        key = parameter[1].strip()
        arguments[key] = _spelt(value, taken.get(key), root)
        place = end + len("</parameter>")
    if block[place:].strip() != "</function>":
        raise Malformed(f"no </function> but {block[place:].strip()[:40]!r}")
    return {"name": name, "arguments": arguments}


def _spelt(text: str, schema: Any, root: Any) -> Any:
    """The text itself where the schema wants one or says nothing; else the value that it spells,
    or the text, which the environment then refuses."""
    types, listed = types_of(schema, root)
    types |= {KINDS.get(type(value), "object") for value in listed} - {"string"}
    if text in listed or types <= {"string"}:
        return text
    try:
        value = json_of(_SPELT.get(text.strip(), text))
    except Malformed:
        return text
    return text if "string" in types and not (value is None and "null" in types) else value


HERMES = Format("Hermes", False, _hermes)
"""Of Hermes, Qwen2.5 and Qwen3."""
FORMATS = (HERMES, Format("Hermes", True, _hermes), Format("QwenCoder", True, _tagged))
"""A tokenizer's is the first that reads the call which its template writes. QwenCoder is of
Qwen3-Coder, Qwen3.5 and Qwen3.6; its values are texts."""
