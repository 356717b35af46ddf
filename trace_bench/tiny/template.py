"""The text that a tiny agent reads: its chat template, and a tokenizer trained on demonstrations.

The template is ChatML with tool calls as Qwen3 writes them, and tool schemas as one-line
signatures, because a schema in full would be longer than the whole episode. They stand in the first
system message, or in one of their own where the conversation does not begin with one. What a
signature leaves out (descriptions), the agent does not see, in training or in use.

To the tokenizer whole tool signatures, tool names and the punctuation of JSON between two values
are single tokens; numbers are read in pieces of two digits; a capitalised word has no leading
space, so that a name is the same tokens in a sentence and in a tool call (copying is what a tiny
model finds hard). Everything is built from sorted or counted lists: two builds give the same
vocabulary.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from trace_bench.core.types import Message, Tool
from trace_bench.tiny import MODEL_FOLDER

START, END = "<|im_start|>", "<|im_end|>"
PAD = "<|endoftext|>"

_REPLY = re.compile(rf"(?<={re.escape(START)}assistant\n)(.*?{re.escape(END)})", re.DOTALL)


@functools.cache
def chat_template() -> str:
    """That of the shipped agent, and of every tiny one."""
    return (MODEL_FOLDER / "chat_template.jinja").read_text(encoding="utf-8")


@functools.cache
def _compiled() -> Any:
    import jinja2

    compiler = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers has it
    compiler.filters["tojson"] = json.dumps
    return compiler.from_string(chat_template())


def signature(tool: Tool) -> str:
    """A tool's one line in the system prompt."""
    line: str = _compiled().module.signature(tool)
    return line


def render(messages: Sequence[Message], tools: Sequence[Tool]) -> list[tuple[str, bool]]:
    """The conversation as pieces: (text, whether the agent writes it). An agent's piece ends with
    the end-of-turn token; the piece before it ends with the generation prompt."""
    text = _compiled().render(messages=messages, tools=tools)
    pieces = [(piece, number % 2 == 1) for number, piece in enumerate(_REPLY.split(text))]
    return pieces if pieces[-1][0] else pieces[:-1]


WORDS = r"\d{1,2}| ?[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*|[^A-Za-z0-9]"
# A run of JSON punctuation around a key, as it stands between two values.
_SCAFFOLD = re.compile(r"[\[\]{}\", ]*\"[a-z_]+\": (?:\[\{|\{)?\"?|\"?\}\]|\"\}")

FRAMES = (
    f"{START}system\n",
    "\n<tools>\n",
    "</tools>",
    f"{START}user\n",
    f"\n{START}user\n",
    f"\n{START}assistant\n",
    f"\n{START}user\n<tool_response>\n",
    "\n<tool_response>\n",
    "\n</tool_response>",
    '<tool_call>\n{"name": "',
    '", "arguments": {',
    '", "arguments": {}}\n</tool_call>',
    "}}\n</tool_call>",
    '"}}\n</tool_call>',
    "+1",
    "[]",
    "null",
    "true",
    "false",
)


def _scaffolds(texts: Iterable[str]) -> list[str]:
    """The 200 most frequent runs of JSON punctuation around keys."""
    frames = re.compile("|".join(re.escape(t) for t in sorted(FRAMES, key=len, reverse=True)))
    counts: Counter[str] = Counter()
    for text in texts:
        for piece in frames.split(text):
            counts.update(_SCAFFOLD.findall(piece))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [text for text, count in ranked[:200] if count >= 20 and len(text) > 2]


def common_words(groups: Collection[Iterable[str]]) -> list[str]:
    """The words, sorted, that stand in the texts of a hundredth of the groups (one for each task),
    at least three. Others, such as names, are spelled, as those of unseen tasks must be."""
    counts: Counter[str] = Counter()
    for texts in groups:
        counts.update({word for text in texts for word in re.findall(WORDS, text)})
    return sorted(word for word, n in counts.items() if n >= max(3, 0.01 * len(groups)))


def build_tokenizer(
    texts: Sequence[str], tools: Sequence[Tool], words: Sequence[str] | None = None
) -> Any:
    """A `transformers` tokenizer trained on `texts`. `tools` are shown to the agent as single
    tokens, with and without argument types. `words`: those that become one token each, in place of
    the texts' frequent pieces."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    fixed = list(FRAMES)
    for tool in tools:
        bare = {**tool["function"], "parameters": _untyped(tool)}
        fixed += [signature(tool), signature({"function": bare}), tool["function"]["name"]]
    fixed += _scaffolds(texts)
    fixed = list(dict.fromkeys(fixed))
    tokenizer = Tokenizer(models.BPE())
    apart = pre_tokenizers.Split(Regex(WORDS), "isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    digits = [f"{n:02d}" for n in range(100)] * 3
    trainer = trainers.BpeTrainer(
        vocab_size=max(1600 - len(fixed) - 3, 300) if words is None else 2**16,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    splitter = re.compile("|".join(re.escape(t) for t in sorted(fixed, key=len, reverse=True)))
    pieces = [piece for text in texts for piece in splitter.split(text) if piece]
    learned = pieces if words is None else [*words, *words]  # each as often as `min_frequency`
    tokenizer.train_from_iterator([*learned, *digits], trainer)
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in fixed])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    fast.chat_template = chat_template()
    return fast


def _untyped(tool: Tool) -> dict:
    parameters = tool["function"].get("parameters") or {}
    properties: dict[str, dict] = {name: {} for name in parameters.get("properties") or {}}
    return {"properties": properties, "required": parameters.get("required") or []}
