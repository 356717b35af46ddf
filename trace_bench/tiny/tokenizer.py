"""The tiny agent's tokenizer, trained on demonstrations.

Whole tool signatures, tool names and the punctuation of JSON between two values are single tokens;
numbers are read in pieces of two digits; a capitalised word has no leading space, so that a name
is the same tokens in a sentence and in a tool call (copying is what a tiny model finds hard).
Everything is built from sorted or counted lists: two builds give the same vocabulary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from trace_bench.core.types import Tool
from trace_bench.tiny.template import CHAT_TEMPLATE, END, PAD, START, signature

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


def scaffolds(texts: Iterable[str], most: int) -> list[str]:
    """The most frequent runs of JSON punctuation around keys."""
    frames = re.compile("|".join(re.escape(t) for t in sorted(FRAMES, key=len, reverse=True)))
    counts: Counter[str] = Counter()
    for text in texts:
        for piece in frames.split(text):
            counts.update(_SCAFFOLD.findall(piece))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [text for text, count in ranked[:most] if count >= 20 and len(text) > 2]


def common_words(groups: Iterable[Iterable[str]], share: float = 0.01, least: int = 3) -> list[str]:
    """The words, sorted, that stand in the texts of so many of the groups (one for each task), at
    least `least`. Others, such as names, are spelled, as those of unseen tasks must be."""
    counts: Counter[str] = Counter()
    number = 0
    for texts in groups:
        number += 1
        counts.update({word for text in texts for word in re.findall(WORDS, text)})
    return sorted(word for word, n in counts.items() if n >= max(least, share * number))


def build(
    texts: Sequence[str],
    tools: Sequence[Tool],
    vocabulary: int = 1600,
    words: Sequence[str] | None = None,
) -> Any:
    """A `transformers` tokenizer trained on `texts`. `tools` are shown to the agent as single
    tokens, with and without argument types. `words`: those that become one token each, in place of
    a `vocabulary` of the texts' frequent pieces."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    fixed = list(FRAMES)
    for tool in tools:
        bare = {**tool["function"], "parameters": _untyped(tool)}
        fixed += [signature(tool), signature({"function": bare}), tool["function"]["name"]]
    fixed += scaffolds(texts, 200)
    fixed = list(dict.fromkeys(fixed))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    digits = [f"{n:02d}" for n in range(100)] * 3
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary - len(fixed) - 3, 300) if words is None else 2**16,
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
    fast.chat_template = CHAT_TEMPLATE.strip()
    return fast


def _untyped(tool: Tool) -> dict:
    parameters = tool["function"].get("parameters") or {}
    properties: dict[str, dict] = {name: {} for name in parameters.get("properties") or {}}
    return {"properties": properties, "required": parameters.get("required") or []}
