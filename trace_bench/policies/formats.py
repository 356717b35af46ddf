"""What a model writes, read: thoughts, content and tool calls.

Every model writes thoughts as <think>...</think>, before what it says. Calls are written in one of
several formats (`FORMATS`); which one a model has learned is found by rendering a known call with
its own chat template (`policies.chat`).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trace_bench.core.chat import call_json, read_call, text_message
from trace_bench.core.decode import Limits, Unreadable, measure, read
from trace_bench.core.schemas import KINDS, arguments_of, types_of
from trace_bench.core.text import apart, between, without_surrogates
from trace_bench.core.types import Message, Tool

CALL = Limits(2**20)  # of the text of one tool call


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


class Format(ABC):
    """How a model writes tool calls. `begin`: the text with which they begin."""

    begin: ClassVar[str]

    @abstractmethod
    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        """(content, the calls in it as {"name": ..., "arguments": {...}}). Raises Malformed."""

    def prepared(self, message: Message) -> Message:
        """The message as templates of this format take it: arguments as objects."""
        if not message.get("tool_calls"):
            return message
        return {**message, "tool_calls": [self._objects(call) for call in message["tool_calls"]]}

    def _objects(self, call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            name, arguments = read_call(call)
        except ValueError:  # of a conversation that another program has written
            return dict(call)
        return {**call, "function": {"name": name, "arguments": arguments}}

    def before(self, text: str) -> str:
        """The text before the first call, of a text that still grows."""
        return cut(text, self.begin)


def cut(text: str, mark: str) -> str:
    """The text before a mark, also where it ends in the mark's beginning."""
    text = text.partition(mark)[0]
    begun = next(n for n in range(len(mark), -1, -1) if text.endswith(mark[:n]))
    return text[: len(text) - begun]


def read_reply(
    text: str, turn: int, how: Format, tools: Sequence[Tool] = (), opened: bool = False
) -> Reply:
    """The turn in a text. `opened`: the prompt ends inside a thought. What is in a thought is never
    a call."""
    return read_calls(*apart(text, how.begin, opened), turn, how, tools)


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


def as_call(data: Any, arguments: str = "arguments") -> dict[str, Any]:
    """A call from its JSON, whose arguments have that key. Raises Malformed."""
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise Malformed('no string "name"')
    values = data.get(arguments, {})
    if not isinstance(values, dict):
        raise Malformed(f'"{arguments}" is not an object')
    return {"name": data["name"], "arguments": values}


def json_of(text: str) -> Any:
    """The value of a call's JSON. Raises Malformed."""
    try:
        return without_surrogates(read(text, CALL))
    except Unreadable as error:
        raise Malformed(f"not JSON: {error}") from None


def _json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON that begins there, and where it ends. Raises Malformed."""
    try:
        end = json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    return json_of(text[start:end]), end


CALL_END = "</tool_call>"


class Hermes(Format):
    """Of Hermes, Qwen2.5 and Qwen3: <tool_call>{"name": "...", "arguments": {...}}</tool_call>.
    `objects`: the template takes arguments as an object; else as the sampled text."""

    begin = "<tool_call>"

    def __init__(self, objects: bool = False) -> None:
        self.objects = objects

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        blocks, content = _blocks(text)
        return content, [as_call(json_of(block)) for block in blocks]

    def prepared(self, message: Message) -> Message:
        return super().prepared(message) if self.objects else message


def _blocks(text: str) -> tuple[list[str], str]:
    """The texts of the calls, and the text around them. Raises Malformed for a call without end."""
    blocks, content = between(text, Hermes.begin, CALL_END)
    if Hermes.begin in content or CALL_END in content:
        raise Malformed("an unclosed <tool_call> block")
    return blocks, content


_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_SPELT = {"True": "true", "False": "false", "None": "null"}  # as templates write Python's values


class QwenCoder(Format):
    """Of Qwen3-Coder, Qwen3.5 and Qwen3.6, whose values are texts, each mark in a line of its own:
    <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>."""

    begin = "<tool_call>"

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        schemas = {t["function"]["name"]: t["function"].get("parameters") for t in tools}
        blocks, content = _blocks(text)
        return content, [_tagged(block.strip(), schemas) for block in blocks]


def _tagged(block: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
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


_MARK, _ENDS = "<|python_tag|>", ("<|eom_id|>", "<|eot_id|>")  # around what some models write
_BEGUN = re.compile(r'\{\s*"(name|parameters|arguments|function|type"\s*:\s*"function)"')
_BETWEEN = re.compile(r"[\s;]*")


class Llama(Format):
    """Of Llama 3.1 to 3.3: a turn that is nothing but JSON (several calls: with ; between),
    {"name": "...", "parameters": {...}}, its keys in any order."""

    begin = '{"'

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        body = text.strip().removeprefix(_MARK)
        for end in _ENDS:
            body = body.strip().removesuffix(end)
        body, values, place = body.strip(), list[Any](), 0
        try:
            measure(body.encode("utf-8", "surrogatepass"), CALL)
            while body.startswith("{") and place < len(body):
                value, place = _json_at(body, place)
                values.append(_unwrapped(value))
                place = _BETWEEN.match(body, place).end()  # type: ignore[union-attr]
        except (Unreadable, Malformed) as error:
            if _calls(values[0]) if values else _BEGUN.match(body):
                raise Malformed(str(error)) from None
            return text, []  # it only begins as JSON does
        if not values or not _calls(values[0]):
            return text, []
        return "", [as_call(one, _key(one)) for one in values]

    def before(self, text: str) -> str:
        """Nothing, of a text that may become a call."""
        start = text.lstrip()[: len(_MARK)]
        return "" if start.startswith("{") or _MARK.startswith(start) else text


def _unwrapped(value: Any) -> Any:
    """A call whose `function` is its name, or holds it and the arguments."""
    inner = value.get("function") if isinstance(value, dict) else None
    if isinstance(inner, dict):
        return inner
    return {**value, "name": inner} if isinstance(inner, str) else value


def _calls(value: Any) -> bool:
    """Whether it is one, and not an answer that happens to be JSON."""
    has = value.keys() if isinstance(value, dict) else ()
    return "name" in has and (_key(value) in has or value.get("type") == "function")


def _key(data: Any) -> str:
    return "parameters" if isinstance(data, dict) and "parameters" in data else "arguments"


FORMATS: tuple[Format, ...] = (Hermes(), Hermes(objects=True), QwenCoder(), Llama())
"""A tokenizer's is the first that reads the call which its template writes."""
