"""The tiny agent's template and tokenizer: the text as transformers has it, and nothing lost in
tokens."""

import json
from typing import Any

import pytest

from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.tiny.demos import demonstration
from trace_bench.tiny.phone import tokenizer_of
from trace_bench.tiny.template import render


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer_of(samples=300).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def conversation(task):
    suite = EmbeddedSuite()
    env = suite.make()
    step = env.reset(task)
    messages, tools = list(step.messages), step.tools
    for message in suite.reference(task):
        step = env.step(message)
        messages += [message, *step.messages]
    return messages, tools


def test_what_is_learned_is_what_transformers_renders(tokenizer) -> None:
    for task in EmbeddedSuite().tasks("dev")[:40]:
        messages, tools = conversation(task)
        text = "".join(piece for piece, _ in render(messages, tools))
        assert text == tokenizer.apply_chat_template(messages, tools=list(tools), tokenize=False)


def test_tokens_lose_nothing_and_pieces_join(tokenizer) -> None:
    for seed in range(200):
        pieces = [text for text, _ in demonstration(seed)]
        ids = [tokenizer(text, add_special_tokens=False).input_ids for text in pieces]
        assert tokenizer.decode([i for part in ids for i in part]) == "".join(pieces)
    odd = 'naïve "quote" \\ 東京 🙂\n\t{}'
    assert tokenizer.decode(tokenizer(odd).input_ids) == odd


def test_several_calls_and_text_in_one_reply(tokenizer) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    other = {"id": "b", "type": "function", "function": {"name": "g", "arguments": {"y": "z"}}}
    answers = [{"role": "tool", "tool_call_id": i, "content": i} for i in "ab"]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "now", "tool_calls": [call, other]},
        *answers,
        {"role": "assistant", "content": "done"},
    ]
    text = "".join(piece for piece, _ in render(messages, []))
    assert text == tokenizer.apply_chat_template(messages, tokenize=False)
    parts = text.split("<tool_call>\n")[1:]
    calls = [json.loads(part.split("\n</tool_call>")[0]) for part in parts]
    assert calls == [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"y": "z"}}]
