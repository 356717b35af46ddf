"""A program in the place of GEPA's reflecting LLM.

It reads what an LLM would be shown, conversations with their feedback, and nothing else: it knows
neither a task's reference nor what the task was made to test. It differs from an LLM in that it
finds symptoms by simple patterns and can only write lines from a fixed pool (`advice.POOL`), which
holds lines that help, lines that do nothing and lines that harm.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.store import stable_seed
from trace_bench.methods.gepa.advice import (
    ANY,
    CONDITION,
    ERROR,
    GAVE_UP,
    NO_CALL,
    NO_QUESTION,
    PARTS,
    POOL,
    SEVERAL,
    UNTOLD,
    VALUES,
)

Record = Mapping[str, Any]  # {"Conversation": str, "Feedback": str, "Score": float}


def symptoms(conversation: str) -> frozenset[str]:
    """What a reader would notice in one conversation, as `methods.transcript` writes it."""
    lines = conversation.splitlines()
    heard = [text for kind, text in map(_split, lines) if kind == "user"]
    said = [text for kind, text in map(_split, lines) if kind == "agent"]
    called = any(kind == "call" for kind, _ in map(_split, lines))
    results = [text for kind, text in map(_split, lines) if kind == "result"]
    request = " ".join(heard).lower()
    failed = [i for i, r in enumerate(results) if re.match(r"\w*Error: ", r)]
    found = {
        ERROR: bool(failed),
        GAVE_UP: bool(failed) and failed[-1] == len(results) - 1,
        NO_CALL: not called,
        NO_QUESTION: not any("?" in text for text in said),
        SEVERAL: any(r.count("}, {") for r in results),
        PARTS: len(heard) > 1 or bool(re.search(r"\b(and|then|also)\b", request)),
        CONDITION: bool(re.search(r"\b(if|unless|in case|only when)\b", request)),
        VALUES: bool(re.search(r"\d", request)),
        UNTOLD: bool(said) and len(said[-1].split()) < 4,
        ANY: True,
    }
    return frozenset(name for name, there in found.items() if there)


def _split(line: str) -> tuple[str, str]:
    kind, _, text = line.partition(": ")
    return kind, text


class ProgramReflector:
    """Proposes the next prompt: one line more, one line less, or one line exchanged.

    Deterministic: the draw follows from the seed, the prompt and the conversations shown."""

    def __init__(self, lines: int, seed: int) -> None:
        self.lines, self.seed = lines, seed

    def __call__(self, prompt: str, records: Sequence[Record]) -> str:
        """A prompt other than `prompt`. `records` are the minibatch's conversations."""
        shown = [str(r["Conversation"]) for r in records]
        rng = random.Random(stable_seed(self.seed, "reflect", prompt, *shown))
        now = prompt.splitlines()
        failed = [r for r in records if float(r["Score"]) < 1.0] or list(records)
        noticed = [symptoms(str(r["Conversation"])) for r in failed]
        weights = {
            a.line: 1 + 3 * sum(len(a.symptoms & seen - {ANY}) for seen in noticed)
            for a in POOL
            if a.line not in now
        }
        new = rng.choices(list(weights), list(weights.values()))[0]
        move = rng.random()
        if now and (len(now) >= self.lines or move < 0.2):
            now[rng.randrange(len(now))] = new
        elif now and move < 0.3:
            del now[rng.randrange(len(now))]
        else:
            now.append(new)
        return "\n".join(now)
