"""Thoughts and tool calls in the formats of today's models, with templates written as theirs are:
what a template writes is what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from models import byte_tokenizer, save_model
from test_chat import CALL
from thinking import SWITCH
from toy import TOOLS

from trace_bench.core.chat import call_json, make_tool
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, TurnRequest
from trace_bench.policies.chat import Chat
from trace_bench.policies.formats import FORMATS, read_reply
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.openai import OpenAISettings, served
from trace_bench.policies.talk import read_message

CHATML = """\
{%- for m in messages %}
{%- if loop.first and tools %}<|im_start|>system
{% if m.role == 'system' %}{{ m.content }}
{% endif %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- if m.role == 'assistant' %}<|im_start|>assistant
{{ m.content }}{% for call in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>
{% elif not (loop.first and tools and m.role == 'system') %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
BEGIN{% endif %}"""
CODER = """
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value | tojson if value is mapping or (value is sequence and value is not string) else value }}
</parameter>
{% endfor %}</function>
</tool_call>"""
OBJECTS = """
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>"""
OPENED = "<think>\n"  # templates whose prompt begins a thought


def template(call: str, begin: str = "") -> str:
    return CHATML.replace("BEGIN", begin).replace("CALL", call)


BY_NAME = {form.name: form for form in FORMATS}
STOCK = {"hermes": OBJECTS, "coder": CODER}
KNOWN = {"hermes": "Hermes", "coder": "QwenCoder"}
WANTED = make_tool(
    "note",
    "Write a note.",
    text="string",
    count="integer",
    share="number?",
    on="boolean?",
    tags={"type": "array", "items": {"type": "string"}},
    more={"anyOf": [{"type": "object"}, {"type": "null"}]},
    maybe={"type": ["string", "null"]},
)
ARGUMENTS: list[dict[str, Any]] = [
    {"text": "3", "count": 3, "share": 0.5, "on": True, "tags": [], "more": None, "maybe": None},
    {"text": "true", "count": -1, "tags": ["a", '"b"'], "more": {"a": {"b": [1]}}, "maybe": "7"},
    {"text": " \n two lines\n", "count": 0, "on": False, "tags": ["é😀"], "maybe": "x"},
    {"text": "<think>not a thought</think>", "count": 1, "tags": []},
    {},
]


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_call_is_read_as_its_template_writes_it(name: str, arguments: dict[str, Any]) -> None:
    chat = Chat(byte_tokenizer(template(STOCK[name])), name)
    assert chat.calls.name == KNOWN[name]
    call = call_json("call_3_0", "note", arguments)
    before = [{"role": "user", "content": "Go."}]
    written = {"role": "assistant", "content": "", "tool_calls": [call]}
    reply = chat.parse(chat.turn(before, [WANTED], written), 3, [WANTED])
    assert reply.malformed is None and reply.message["content"] == ""
    (found,) = reply.message["tool_calls"]
    assert found["id"] == "call_3_0" and found["function"]["name"] == "note"
    assert json.loads(found["function"]["arguments"]) == arguments


@pytest.mark.parametrize("name", STOCK)
def test_results_follow_a_call_in_every_format(name: str) -> None:
    chat = Chat(byte_tokenizer(template(STOCK[name])), name)
    news = [
        {"role": "tool", "tool_call_id": f"call_0_{i}", "name": "note", "content": f"result {i}"}
        for i in range(2)
    ]
    for messages in (news[:1], news):
        text = chat.tokenizer.decode(chat.following(messages, finished=True))
        assert text.count("result") == len(messages) and "zqx" not in text
        assert text.endswith("<|im_start|>assistant\n")


def test_what_stands_before_a_call_is_said() -> None:
    text = "So:\n<tool_call>\n<function=a>\n</function>\n</tool_call>"
    reply = read_reply(text, 0, BY_NAME["QwenCoder"])
    assert reply.malformed is None and reply.message["content"] == "So:"
    assert [c["function"]["name"] for c in reply.message["tool_calls"]] == ["a"]


@pytest.mark.parametrize(
    ("how", "text", "reason"),
    [
        ("Hermes", "<tool_call>\n{oops}\n</tool_call>", "not JSON"),
        ("Hermes", '<tool_call>{"arguments": {}}</tool_call>', 'no string "name"'),
        ("Hermes", '<tool_call>{"name": "add", "arguments": "3"}</tool_call>', "not an object"),
        ("Hermes", '<tool_call>{"name": "add"', "unclosed"),
        ("QwenCoder", "<tool_call>a</tool_call>", "no <function=NAME>"),
        ("QwenCoder", "<tool_call><function=a><parameter=b>1</tool_call>", "no </parameter>"),
        ("QwenCoder", "<tool_call><function=a>1</tool_call>", "no </function>"),
    ],
)
def test_what_cannot_be_read_keeps_its_text(how: str, text: str, reason: str) -> None:
    reply = read_reply(text, 0, BY_NAME[how])
    assert reply.malformed and reason in reply.malformed
    assert reply.message == {"role": "assistant", "content": text}


QUOTING = CALL.replace("3", '"<think>"')


TYPED: dict[str, tuple[Any, dict[str, Any]]] = {
    # argument: its schema, and the value of each text
    "text": ({"$ref": "#/$defs/Text"}, {"3": "3"}),
    "size": ({"$ref": "#/$defs/Size"}, {"3": 3, "three": "three"}),
    "one": ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, {"True": True}),
    "all": ({"allOf": [{"$ref": "#/$defs/Size"}, {"minimum": 1}]}, {"0": 0}),
    "pick": ({"enum": [1, "2", "auto"]}, {"1": 1, "2": "2", "auto": "auto"}),
    "two": ({"anyOf": [{"enum": ["auto"]}, {"type": "integer"}]}, {"3": 3, "auto": "auto"}),
    "named": ({"enum": ["1", "2"]}, {"1": "1", "3": "3"}),
    "fixed": ({"const": 3}, {"3": 3}),
    "shape": ({"properties": {"a": {}}}, {'{"a": 1}': {"a": 1}}),
    "list": ({"items": {"type": "integer"}}, {"[1]": [1]}),
    "maybe": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"None": None, "3": "3"}),
    "loop": ({"$ref": "#/properties/loop"}, {"3": "3"}),
    "first": ({"$ref": "#/properties/one/oneOf/0"}, {"3": 3}),
    "behind": ({"$ref": "#/allOf/0/properties/free"}, {"3": 3}),
    "beyond": ({"$ref": "#/properties/one/oneOf/2"}, {"3": "3"}),
    "least": ({"minimum": 0}, {"3": 3}),
}
SIZES = {"Text": {"type": "string"}, "Size": {"type": "integer"}}
VALUES = [(name, *value) for name, (_, values) in TYPED.items() for value in values.items()]


@pytest.mark.parametrize(
    ("argument", "text", "value"), [*VALUES, ("free", "3", 3), ("other", "3", "3")]
)
def test_a_value_has_the_type_of_its_schema_anywhere(argument: str, text: str, value: Any) -> None:
    tool = make_tool("act", "It acts.")
    free = {"properties": {"free": {"$ref": "#/$defs/Size"}}}
    properties = {name: schema for name, (schema, _) in TYPED.items()}
    tool["function"]["parameters"] = {"properties": properties, "allOf": [free], "$defs": SIZES}
    called = f"<function=act><parameter={argument}>{text}</parameter></function>"
    reply = read_reply(f"<tool_call>{called}</tool_call>", 0, BY_NAME["QwenCoder"], [tool])
    [call] = reply.message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {argument: value}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(
    ("text", "thoughts", "content", "calls"),
    [
        (f"<think>\nI could {CALL}\n</think>\n\nNo.", f"I could {CALL}", "No.", 0),
        (f"<think>a <tool_call> is due</think>{CALL}", "a <tool_call> is due", "", 1),
        ("<think>and on and on", "and on and on", "", 0),
        (f"<think>a</think>Well.<think>b</think>{CALL}", "a\nb", "Well.", 1),
        ("<think>\n\n</think>\n\nNo thought.", "", "No thought.", 0),
        (f"<think>a</think>{QUOTING}", "a", "", 1),
    ],
)
def test_thoughts_are_neither_said_nor_executed(
    text: str, thoughts: str, content: str, calls: int, opened: bool
) -> None:
    text = text.removeprefix("<think>") if opened else text
    reply = read_reply(text, 0, FORMATS[0], opened=opened)
    assert reply.thoughts == thoughts and reply.malformed is None
    assert reply.message["content"] == content
    assert len(reply.message.get("tool_calls", ())) == calls


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>hm</think>Yes."},
        {"content": "hm</think>Yes."},  # the thought began in the prompt
        {"content": "Yes.", "reasoning_content": "hm"},
        {"content": "Yes.", "reasoning": " hm\n"},
    ],
)
def test_a_servers_thoughts_are_set_apart_and_given_back(message: dict[str, Any]) -> None:
    reply = read_message(message, 0)
    assert (reply.thoughts, reply.message) == ("hm", {"role": "assistant", "content": "Yes."})
    assert reply.remembered["reasoning_content"] == "hm"


def test_thinking_is_the_templates_own_switch() -> None:
    tokenizer = byte_tokenizer(template(OBJECTS, begin=SWITCH))
    asked = [{"role": "user", "content": "Go."}]
    chats = {value: Chat(tokenizer, "m", value) for value in (None, True, False)}
    prompts = {value: chat.first(asked, TOOLS) for value, chat in chats.items()}
    assert prompts[None] == prompts[True] != prompts[False]
    assert tokenizer.decode(prompts[False]).endswith("<think>\n\n</think>\n\n")
    silent = chats[False]
    assert silent.parse(silent.encode("Yes."), 0, ()).message["content"] == "Yes."
    with pytest.raises(UserError, match=r"no `enable_thinking`.*policy.thinking=False"):
        Chat(byte_tokenizer(), "m", False)


def test_servers_are_told_whether_to_think() -> None:
    own = {"chat_template_kwargs": {"depth": 2}}
    for given, wanted in ((None, {}), (True, {"enable_thinking": True})):
        settings = OpenAISettings(("http://127.0.0.1:9",), extra=own)
        policy = served(settings, RunContext(served_model="m", thinking=given))
        assert policy._extra["chat_template_kwargs"] == {"depth": 2, **wanted}
        policy.close()


def test_a_prompt_may_begin_with_a_thought(tmp_path: Path) -> None:
    """And the sampled turn has thoughts, which the next prompt still holds."""
    folder = save_model(tmp_path / "model")
    tokenizer = byte_tokenizer(template(OBJECTS, begin=OPENED))
    tokenizer.save_pretrained(folder)
    chat = Chat(tokenizer, "m")
    assert chat.partial(chat.encode("hm </think>")) == ""
    assert chat.partial(chat.encode("hm </think> Well <thi")) == "Well"
    policy = LocalPolicy(folder, batch=1, context=900)
    asked = ({"role": "user", "content": "Go."},)
    policy.submit([TurnRequest(0, asked, TOOLS, seed=0, max_tokens=20)])
    (first,) = policy.collect()
    assert first.turn is not None and first.turn.reply["content"] == ""
    assert first.turn.thoughts and len(first.turn.logprobs) == len(first.turn.token_ids)
    assert tokenizer.decode(first.turn.prompt_ids).endswith("<|im_start|>assistant\n<think>\n")


def test_a_template_of_no_known_format_is_refused_with_what_it_writes() -> None:
    with pytest.raises(UserError, match=r"writes tool calls as .*CALL probe.*Hermes, QwenCoder"):
        Chat(byte_tokenizer(template("CALL {{ call.function.name }}")), "odd")
