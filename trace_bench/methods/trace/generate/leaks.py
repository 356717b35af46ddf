"""Whether a made-up task repeats held-out ones: their wording, or names and numbers that only they
have. What training tasks have too is no leak: the model was shown it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.protocols import Suite
from trace_bench.core.types import Task
from trace_bench.methods.making import opening

SHINGLE = 6  # words in a row that count as the same wording
_WORD = re.compile(r"[a-z0-9']+")
# Identifiers, addresses, numbers of five digits and more, names of two words: what a person would
# not make up twice.
_ENTITY = re.compile(
    r"(?<!\S)\S[^\s@]*@\S+\.\w+"
    r"|\+?\d[\d\- ]{5,}\d|#?\b(?=\w*\d)\w{5,}\b|\b[A-Z][a-z]+ [A-Z][a-z]+\b"
)


@dataclass(frozen=True)
class Leaks:
    """What only the held-out tasks have."""

    shingles: frozenset[str]
    entities: frozenset[str]

    @classmethod
    def of(cls, held_out: Iterable[Sequence[str]], training: Iterable[Sequence[str]]) -> Leaks:
        """From the texts of held-out and of training tasks."""
        hidden, shown = _collect(held_out), _collect(training)
        return cls(hidden[0] - shown[0], hidden[1] - shown[1])

    def found(self, texts: Sequence[str]) -> list[str]:
        """What the texts share with held-out tasks alone, in words."""
        shingles, entities = _collect([texts])
        out = [f"the wording {s!r}" for s in sorted(shingles & self.shingles)]
        return out + [f"{e!r}" for e in sorted(entities & self.entities)]


def held_out(suite: Suite, training: Sequence[Task]) -> Leaks:
    """What an environment may not repeat: what only tasks outside the training splits have."""
    splits = [s for s in suite.splits() if not s.startswith(("train", "fit"))]
    known = {task.id for task in training}
    hidden = [task for split in splits for task in suite.tasks(split) if task.id not in known]
    asks = suite.asks_user()  # then an opening costs an answer

    def texts(task: Task) -> list[str]:
        return texts_of(task) + ([] if asks else [opening(suite, task)[0]])

    return Leaks.of(map(texts, hidden), map(texts, training))


def quoted(code: str) -> list[str]:
    """All texts that stand in a program. Its syntax must be right."""
    return [
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def texts_of(task: Task) -> list[str]:
    """All texts in a task's data."""
    return list(_texts(json.loads(json.dumps(task.data, default=str))))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _collect(tasks: Iterable[Sequence[str]]) -> tuple[frozenset[str], frozenset[str]]:
    shingles: set[str] = set()
    entities: set[str] = set()
    for texts in tasks:
        for text in texts:
            words = _WORD.findall(text.lower())
            shingles |= {" ".join(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)}
            entities |= {e.strip().lower() for e in _ENTITY.findall(text)}
    return frozenset(shingles), frozenset(entities)
