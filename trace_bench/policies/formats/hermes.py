"""The format of Hermes, which Qwen2.5 and Qwen3 use:

<tool_call>
{"name": "...", "arguments": {...}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_bench.core.text import between
from trace_bench.core.types import Message, Tool
from trace_bench.policies.formats import Format, Malformed, as_call, json_of

END = "</tool_call>"


class Hermes(Format):
    """`objects`: the template takes arguments as an object; else as the sampled text."""

    begin = "<tool_call>"
    around = (("<tool_call>", "\n"), ("\n", END), "arguments")

    def __init__(self, objects: bool = False) -> None:
        self.objects = objects

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        blocks, content = blocks_of(text)
        return content, [as_call(json_of(block)) for block in blocks]

    def prepared(self, message: Message) -> Message:
        return super().prepared(message) if self.objects else message


def blocks_of(text: str) -> tuple[list[str], str]:
    """The texts of the calls, and the text around them. Raises Malformed for a call without end."""
    blocks, content = between(text, Hermes.begin, END)
    if Hermes.begin in content or END in content:
        raise Malformed("an unclosed <tool_call> block")
    return blocks, content
