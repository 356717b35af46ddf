"""A small random model that thinks, and a world in which it is spoken to several times.

Its template leaves out the thoughts of turns before the user's last message, as Qwen3's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models import TEMPLATE, byte_tokenizer, save_model

from trace_bench.core.protocols import Env, Suite
from trace_bench.core.types import Message, Score, Step, StopReason, Task

TURN = "{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
BEGIN = "{%- if add_generation_prompt %}<|im_start|>assistant\n"
LAST = """\
{%- set ns = namespace(asked=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}\
{% endfor %}"""
THOUGHT = """\
{% if m.reasoning_content and loop.index0 > ns.asked %}<think>
{{ m.reasoning_content | trim }}
</think>

{% endif %}"""
SWITCH = (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
MARKS = ("<think>", "</think>", "<tool_call>", "<|im_end|>")

assert TURN in TEMPLATE and BEGIN in TEMPLATE
DROPS = LAST + TEMPLATE.replace(TURN, TURN + THOUGHT).replace(BEGIN, BEGIN + SWITCH)
"""Turns of the agent begin freely."""
OPENED = LAST + TEMPLATE.replace(TURN, TURN + THOUGHT).replace(BEGIN, BEGIN + "<think>\n")
"""Turns of the agent begin in a thought."""
KEEPS = DROPS.replace(" and loop.index0 > ns.asked", "")
"""All thoughts stay."""


def tokenizer(template: str = DROPS) -> Any:
    """Of bytes and marks."""
    made = byte_tokenizer(template)
    made.add_tokens(["<think>", "</think>"])
    return made


def save_thinker(folder: Path, template: str = DROPS, seed: int = 0) -> Path:
    """A random model that writes the marks of thoughts, calls and turns often."""
    from safetensors.torch import load_file, save_file

    save_model(folder, seed=seed)
    made = tokenizer(template)
    made.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    rows = made.convert_tokens_to_ids(list(MARKS))
    weights["model.embed_tokens.weight"][rows] *= 2.5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


class Asking(Env):
    """Speaks `turns` times, then scores what it was told by its letters."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def reset(self, task: Task) -> Step:
        self.left, self.told = self.turns, 0
        user = {"role": "user", "content": f"Question {task.seed}."}
        return Step(({"role": "system", "content": "Think."}, user))

    def step(self, action: Message) -> Step:
        self.left, self.told = self.left - 1, self.told + sum(map(ord, action["content"]))
        if self.left > 0:
            return Step(({"role": "user", "content": f"And {self.left}?"},))
        score = Score((self.told % 7) / 6, False)
        return Step(done=True, score=score, stop=StopReason.DONE)


class AskingSuite(Suite):
    name, variant = "asking", "tests"

    def __init__(self, turns: int = 3) -> None:
        self.turns = turns

    def splits(self) -> Sequence[str]:
        return ("train", "dev", "test")

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"asking/tests/{split}/{n}", "asking", split, n) for n in range(8)]

    def task(self, task_id: str) -> Task:
        _, _, split, number = task_id.split("/")
        return self.tasks(split)[int(number)]

    def make(self) -> Asking:
        return Asking(self.turns)
