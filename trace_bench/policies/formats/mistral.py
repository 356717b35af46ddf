"""The formats of Mistral's models, the calls at the end of a turn:

[TOOL_CALLS][{"name": "...", "arguments": {...}}]
[TOOL_CALLS]NAME[ARGS]{...}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from trace_bench.core.types import Message, Tool
from trace_bench.policies.formats import Format, Malformed, as_call, json_of

_NAME = re.compile(r"\s*([^\s\[\]{}]*)(?:\[CALL_ID\][^\[\]]*)?(\[ARGS\])?\s*")
_DECODER = json.JSONDecoder()


class Mistral(Format):
    begin = "[TOOL_CALLS]"

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        content, begun, rest = text.partition(self.begin)
        found: list[dict[str, Any]] = []
        place = 0
        while begun:
            name = _NAME.match(rest, place)
            if name is None or bool(name[1]) != bool(name[2]):
                raise Malformed("neither a list of calls nor NAME[ARGS]")
            data, end = _value(rest, name.end())
            given = [{"name": name[1], "arguments": data}] if name[1] else data
            found += [as_call(one) for one in (given if isinstance(given, list) else [given])]
            place = rest.find(self.begin, end)
            if rest[end : None if place < 0 else place].strip():
                raise Malformed(f"text after a call: {rest[end:][:40]!r}")
            begun, place = self.begin if place >= 0 else "", place + len(self.begin)
        return content, found

    def prepared(self, message: Message) -> Message:
        """Their templates refuse ids that are not nine letters and digits."""
        message = super().prepared(message)
        if message.get("tool_calls"):
            calls = [{**call, "id": _short(call.get("id"))} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        if message["role"] == "tool":
            message = {**message, "tool_call_id": _short(message.get("tool_call_id"))}
        return message


def _value(text: str, start: int) -> tuple[Any, int]:
    """The JSON that begins there, and where it ends. Raises Malformed."""
    try:
        end = _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    return json_of(text[start:end]), end


def _short(identity: Any) -> str:
    return hashlib.sha256(str(identity).encode()).hexdigest()[:9]
