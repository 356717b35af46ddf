"""Demonstrations: the episodes that the tiny agent learns from, with their deliberate flaws.

A demonstration is an episode of the embedded world, acted out by the scenario's own solution, with
people, words and wordings from the pool `demo` (half of the words are invented, so that the agent
learns to copy what it has never seen). Some capabilities are exercised only in the share `RIGHT` of
the episodes that call for them. In half of the episodes the system prompt carries guidance; a line
about a capability raises its share to `GUIDED`, lines about anything else change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_uppercase

from trace_bench.core.chat import with_guidance
from trace_bench.core.types import Message, Tool
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.build import build, drafts
from trace_bench.envs.toolsandbox.scenarios.pools import Words
from trace_bench.envs.toolsandbox.scenarios.shapes import Shape, shapes
from trace_bench.envs.toolsandbox.scenarios.solver import Redraw, Solver, play
from trace_bench.tiny.template import render

# Share of demonstrations that exercise a capability where it is called for. Others: always.
RIGHT = {
    "recovers_from_errors": 0.22,
    "checks_preconditions": 0.25,
    "asks_when_information_is_missing": 0.25,
    "disambiguates": 0.35,
    "completes_all_parts": 0.25,
    "converts_values": 0.25,
    "declines_when_impossible": 0.28,
}
# The same under a line of guidance about it; a line about one that is not here changes nothing.
GUIDED = {
    "recovers_from_errors": 0.75,
    "checks_preconditions": 0.85,
    "asks_when_information_is_missing": 0.90,
    "completes_all_parts": 0.90,
    "declines_when_impossible": 0.80,
}
GUIDANCE = {
    "recovers_from_errors": ("When a tool fails, fix the cause and retry.",
                             "After an error, mend the setting and try again."),
    "checks_preconditions": ("Check every condition before you act.",
                             "Look up whether a condition holds first."),
    "asks_when_information_is_missing": ("Ask when something is missing.",
                                         "Never guess missing details, ask for them."),
    "disambiguates": ("Ask which one is meant when several match.",
                      "If two people match, ask which."),
    "completes_all_parts": ("Do every part of the request.",
                            "Finish all parts before you answer."),
    "converts_values": ("Convert values to what the tool needs.",
                        "Bring numbers and times into the right form."),
    "declines_when_impossible": ("Decline when a tool is missing.",
                                 "Never invent arguments, decline instead."),
}  # fmt: skip
IRRELEVANT = ("Be polite.", "Be brief.", "Answer in English.", "Use simple words.")
GUIDANCE_SHARE = 0.5
# How many times as often the shapes that need a capability are drawn. Telling namesakes apart takes
# several steps (ask, match the answer, copy what belongs to it) and is not learned otherwise.
EXTRA = {"disambiguates": 3}
AUGMENTATIONS = (
    ("none", 0.66),
    ("distractors_3", 0.14),
    ("distractors_10", 0.07),
    ("all_tools", 0.03),
    ("scrambled_names", 0.05),
    ("scrambled_arg_types", 0.05),
)
_SYLLABLES = tuple(
    c + v + e for c in "bdfgklmnprstvz" for v in "aeiou" for e in ("", "n", "r", "l")
)


@dataclass(frozen=True)
class Pieces:
    """What invented words are made of: starts, capitalised starts, and endings."""

    starts: tuple[str, ...] = _SYLLABLES
    capitals: tuple[str, ...] = tuple(s.capitalize() for s in _SYLLABLES)
    endings: tuple[str, ...] = _SYLLABLES


def pieces_of(vocabulary: Sequence[str]) -> Pieces:
    """The word pieces of a byte-level vocabulary: words made of them use all its tokens evenly."""
    words = sorted(v for v in vocabulary if v.isascii() and v.isalpha())
    spaced = sorted(
        v[1:] for v in vocabulary if v[0] == "Ġ" and v[1:].isascii() and v[1:].isalpha()
    )
    return Pieces(
        tuple(w for w in spaced if w.islower()),
        tuple(w for w in words if w[0].isupper() and (len(w) == 1 or w[1:].islower())),
        tuple(w for w in words if w.islower()),
    )


class InventingPool(Words):
    """The pool `demo` with half of its words invented."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__("demo")
        self.pieces = pieces

    def _invent(self, rng: random.Random, starts: Sequence[str]) -> str:
        ends = rng.choices(self.pieces.endings, k=rng.choice((0, 1, 1, 2)))
        return (rng.choice(starts) + "".join(ends))[:14]

    def draw(self, kind: str, rng: random.Random) -> str:
        if kind in ("first", "last"):
            real = super().draw(kind, rng)
            if rng.random() < 0.5:
                return real
            word = self._invent(rng, self.pieces.capitals)
            return word if len(word) > 2 else word + rng.choice(self.pieces.endings)
        if rng.random() < (0.4 if kind == "ticker" else 0.5):
            return super().draw(kind, rng)
        if kind == "ticker":
            return "".join(rng.choices(ascii_uppercase, k=rng.choice((2, 3, 4, 4))))
        return self._invent(rng, self.pieces.starts)


@lru_cache(maxsize=1)
def _weighted() -> tuple[Shape, ...]:
    """The shapes, each as often as it is drawn."""
    return tuple(
        shape
        for shape in shapes()
        for _ in range(max([EXTRA.get(c, 1) for c in _needs()[shape.name]], default=1))
    )


@lru_cache(maxsize=1)
def _needs() -> dict[str, list[str]]:
    """The capabilities that one drawn task of each shape needs."""
    pool = Words("demo")
    drawn = {s.name: build(s, pool, 0, "", "demo")[0].data["requires"] for s in shapes()}
    return {name: [c for c in needs if c in GUIDANCE] for name, needs in drawn.items()}


def guidance(rng: random.Random, needs: Sequence[str]) -> tuple[str, frozenset[str]]:
    """The guidance section of one episode and the capabilities that it is about. Half of the
    sections name a capability that the task needs (`needs`): by chance alone a line would matter so
    seldom that the agent would learn to ignore it."""
    if rng.random() >= GUIDANCE_SHARE:
        return "", frozenset()
    about = rng.sample((*GUIDANCE, None), rng.choice((1, 1, 2, 3)))
    if needs and rng.random() < 0.5:
        meant = rng.choice(needs)
        about = [meant, *(c for c in about[1:] if c != meant)]
        rng.shuffle(about)
    lines = [rng.choice(GUIDANCE[c]) if c else rng.choice(IRRELEVANT) for c in about]
    return "\n".join(lines), frozenset(c for c in about if c)


def lacking(
    rng: random.Random, guided: frozenset[str], right: Mapping[str, float] = RIGHT
) -> frozenset[str]:
    """The capabilities that one episode does not exercise; `right`: the shares that do."""
    chance = {c: under_guidance(c, p) if c in guided else p for c, p in right.items()}
    return frozenset(c for c, p in chance.items() if rng.random() >= p)


def under_guidance(capability: str, right: float) -> float:
    """The share of episodes that exercise it under a line about it; without one it is `right`."""
    return max(right, GUIDED.get(capability, right))


def demonstration(
    seed: int, pieces: Pieces = Pieces(), right: Mapping[str, float] = RIGHT
) -> list[tuple[str, bool]]:
    """One demonstration as pieces: (text, whether the agent writes it)."""
    return render(*general(seed, pieces, right))


def general(
    seed: int, pieces: Pieces = Pieces(), right: Mapping[str, float] = RIGHT
) -> tuple[list[Message], tuple[Tool, ...]]:
    """One demonstration as its messages and tools."""
    rng = random.Random(f"demo/{seed}")
    for attempt in range(50):
        shape = rng.choice(_weighted())
        names, weights = zip(*AUGMENTATIONS, strict=True)
        augmentation = rng.choices(names, weights)[0]
        prompt, guided = guidance(rng, _needs()[shape.name])
        pool = InventingPool(pieces)
        number, name = seed * 50 + attempt, f"demo/{seed}"
        task, turns = next(drafts(shape, pool, number, name, "demo", augmentation))
        solver = Solver(frozenset(task.data["tools"]), lacking(rng, guided, right))
        try:
            record = play(ToolSandboxEnv(), task, turns, solver)
        except Redraw:
            continue
        first = with_guidance(record.first.messages, prompt)
        return [*first, *record.messages], record.first.tools
    raise RuntimeError(f"no demonstration for seed {seed}")
