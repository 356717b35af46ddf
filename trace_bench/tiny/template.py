"""The tiny agent's chat template: ChatML with tool calls as Qwen3 writes them, and tool schemas as
one-line signatures, because a schema in full would be longer than the whole episode. They stand
in the first system message, or in one of their own where the conversation does not begin with one.

The tiny agent does not see what a signature leaves out (descriptions), in training or in use.
`render` gives the same text as the Jinja template, in pieces and much faster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from trace_bench.core.types import Message, Tool

START, END = "<|im_start|>", "<|im_end|>"
PAD = "<|endoftext|>"

CHAT_TEMPLATE = r"""
{%- macro signature(tool) -%}
{%- set f = tool.function -%}
{%- set p = f.parameters.properties if f.parameters and f.parameters.properties else {} -%}
{{- f.name }}(
{%- for name, schema in p.items() -%}
{{- ', ' if not loop.first }}{{ name }}{{ '?' if name not in (f.parameters.required or []) }}
{%- if schema.type is string %}: {{ schema.type }}
{%- elif schema.type %}: {{ schema.type[0] }}
{%- endif %}
{%- endfor -%}
){{- '\n' }}
{%- endmacro -%}
{%- macro offered() -%}
{{ '\n<tools>\n' }}
{%- for t in tools %}{{ signature(t) }}{% endfor %}{{ '</tools>' }}
{%- endmacro -%}
{%- set alone = tools and messages and messages[0].role != 'system' -%}
{%- if alone %}<|im_start|>system{{ offered() }}<|im_end|>{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}
<|im_start|>system{{ '\n' }}{{ m.content }}
{%- if loop.first and tools %}{{ offered() }}{% endif -%}
<|im_end|>
{%- elif m.role == 'user' -%}
{{ '\n' if alone or not loop.first }}<|im_start|>user{{ '\n' }}{{ m.content }}<|im_end|>
{%- elif m.role == 'assistant' -%}
{{ '\n' if alone or not loop.first }}<|im_start|>assistant{{ '\n' }}{{ m.content or '' }}
{%- for c in m.tool_calls or [] -%}
{%- set f = c.function if c.function else c -%}
{{ '\n' if m.content or not loop.first }}
{{- '<tool_call>\n{"name": "' }}{{ f.name }}{{ '", "arguments": ' }}
{%- if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif -%}
{{ '}\n</tool_call>' }}
{%- endfor -%}
<|im_end|>
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
{{- '\n<|im_start|>user' }}
{%- endif -%}
{{ '\n<tool_response>\n' }}{{ m.content }}{{ '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif -%}
"""


def signature(tool: Tool) -> str:
    """A tool's one line in the system prompt."""
    function = tool["function"]
    parameters = function.get("parameters") or {}
    required = parameters.get("required") or []
    fields = []
    for name, schema in (parameters.get("properties") or {}).items():
        kind = schema.get("type")
        kind = kind if isinstance(kind, str) or not kind else kind[0]
        fields.append(f"{name}{'' if name in required else '?'}{f': {kind}' if kind else ''}")
    return f"{function['name']}({', '.join(fields)})\n"


def reply_text(message: Message) -> str:
    """The text that the agent itself writes for a message, without the end-of-turn token."""
    text = message.get("content") or ""
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        text += "\n" if text or index else ""
        text += (
            f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'
        )
    return text


def render(messages: Sequence[Message], tools: Sequence[Tool]) -> list[tuple[str, bool]]:
    """The conversation as pieces: (text, whether the agent writes it). An agent's piece ends with
    the end-of-turn token; the piece before it ends with the generation prompt."""
    pieces: list[tuple[str, bool]] = []
    text, previous = "", ""
    lines = "".join(signature(tool) for tool in tools)
    offered = f"\n<tools>\n{lines}</tools>" if tools else ""
    if tools and messages and messages[0]["role"] != "system":
        text, previous = f"{START}system{offered}{END}", "system"
    for message in messages:
        role = message["role"]
        lead = "\n" if previous else ""
        if previous == "tool" and role != "tool":
            text += END
        if role == "system":
            text += f"{START}system\n{message['content']}{'' if previous else offered}{END}"
        elif role == "user":
            text += f"{lead}{START}user\n{message['content']}{END}"
        elif role == "tool":
            text += "" if previous == "tool" else f"\n{START}user"
            text += f"\n<tool_response>\n{message['content']}\n</tool_response>"
        else:
            pieces.append((f"{text}{lead}{START}assistant\n", False))
            pieces.append((reply_text(message) + END, True))
            text = ""
        previous = role
    if previous == "tool":
        text += END
    return [*pieces, (text, False)] if text else pieces
