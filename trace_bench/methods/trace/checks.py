"""What a written environment must pass before any rollout is spent on it, first by reading it, then
by running it; and whether a made-up task repeats held-out ones.

The sandbox is what protects from a module; the restrictions are about what an environment is: its
own code, the same at every hour and in every process, and no wrapper around the benchmark. Floors
are what agents earn that cannot have earned it: one that does nothing, one that only talks, one
that calls tools at random. Replayed in another process and another order, a module that keeps
anything from one episode to the next rewards them otherwise. None of this is charged.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.errors import EngineError, EpisodeError, UserError
from trace_bench.core.protocols import Suite, make_env, perform, performed
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Message, Score, Task, Tool, to_json
from trace_bench.methods.making import IDLE, opening, script, seeded
from trace_bench.play.contract import first_fault
from trace_bench.policies.scripted import plausible

MODULES = frozenset((
    "__future__", "collections", "copy", "dataclasses", "datetime", "enum", "functools",
    "itertools", "json", "math", "random", "re", "string", "typing", "trace_bench.core.types",
))  # fmt: skip
NAMES = (
    "open", "exec", "eval", "compile", "__import__", "globals", "locals", "vars", "input",
    "breakpoint", "memoryview",
)  # fmt: skip
CLOCKS = ("now", "today", "utcnow", "SystemRandom")
DEFINED = ("make_task", "reference", "Env")
LONGEST = 60_000  # characters


def violations(code: str) -> list[str]:
    """What is wrong, each in words for the author; [] when all is well. Never raises."""
    if len(code) > LONGEST:
        return [f"the module has {len(code)} characters; allowed: {LONGEST}."]
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"the module is not Python: {error}."]
    out = list(dict.fromkeys(_faults(tree)))
    there = {getattr(node, "name", "") for node in tree.body}
    assigned = [target for n in tree.body if isinstance(n, ast.Assign) for target in n.targets]
    there |= {target.id for target in assigned if isinstance(target, ast.Name)}
    out += [f"`{name}` is not defined at the top of the module." for name in DEFINED
            if name not in there]  # fmt: skip
    return out


def _faults(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for module in _imported(node):
            if module not in MODULES and module.partition(".")[0] not in MODULES:
                allowed = ", ".join(sorted(MODULES))
                yield f"line {node.lineno}: import of {module}; allowed: {allowed}."  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and node.id in NAMES:
            yield f"line {node.lineno}: {node.id} may not be used."
        if isinstance(node, ast.Attribute):
            if node.attr.startswith("__") and node.attr != "__init__":
                yield f"line {node.lineno}: .{node.attr} may not be used."
            if node.attr in CLOCKS:
                yield f"line {node.lineno}: .{node.attr} is not the same at every hour."


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "."] if not node.level else ["." * node.level]
    return []


# -- by running it ----------------------------------------------------------------------------

CONFORMING = 6  # of the tasks, those that go through all of play/contract.py
# It must not say which words: the author would learn what is held out.
TOO_CLOSE = (
    "a wording, name or number is too close to tasks that you must not know. Make up your own."
)


def examine(
    suite: Suite, twin: Suite, seeds: Sequence[int], tools: Mapping[str, Tool], leaks: Leaks
) -> list[str]:
    """What the first check that fails finds wrong, in words for the author; [] when all is well.
    `twin`: the same module in another process, which must give the same."""
    try:
        tasks = [seeded(suite, seed) for seed in seeds]
        fault = (
            _variety(suite, tasks)
            or _tools(suite, tasks, tools)
            or (TOO_CLOSE if any(leaks.in_task(suite, task) for task in tasks) else None)
            or first_fault(suite, tasks[:CONFORMING])
            or _twin(suite, twin, tasks[:CONFORMING])
        )
        return [fault] if fault else floors(suite, twin, tasks)
    except EngineError:
        raise
    except (UserError, EpisodeError) as error:
        return [f"the module failed: {error}"]


def _variety(suite: Suite, tasks: Sequence[Task]) -> str | None:
    openings = {opening(suite, task) for task in tasks}
    if len(openings) < len(tasks) // 2:
        return f"{len(tasks)} seeds give only {len(openings)} different first messages."
    return None


def _tools(suite: Suite, tasks: Sequence[Task], tools: Mapping[str, Tool]) -> str | None:
    """The target's own schemas, and nothing else."""
    for task in tasks:
        for tool in performed(suite, task)[0].tools:
            name = tool["function"]["name"]
            if name not in tools:
                return f"there is no tool {name!r}; allowed: {', '.join(sorted(tools))}."
            if to_json(tool) != to_json(tools[name]):
                return f"the schema of {name!r} is not the target's; use TOOLS[{name!r}]."
    return None


def _twin(suite: Suite, twin: Suite, tasks: Sequence[Task]) -> str | None:
    for task in tasks:
        other = seeded(twin, task.seed)
        if to_json(other.data) != to_json(task.data):
            return f"make_task({task.seed}) gives other data in another process."
    return None


# -- what episodes earn -----------------------------------------------------------------------


@dataclass(frozen=True)
class Episode:
    """What an agent did in a task (its messages, in order), and what it earned."""

    task: Task
    actions: tuple[Message, ...]
    score: Score


def difference(suite: Suite, episodes: Sequence[Episode]) -> str | None:
    """The first episode, from the last one back, that earns something else in `suite`, in words;
    None when all earn the same. EpisodeError when the environment fails."""
    for episode in reversed(episodes):
        with closing(make_env(suite)) as env:
            again = perform(env, episode.task, episode.actions)[-1].score or env.score()
        first = episode.score
        if (again.similarity, again.success) != (first.similarity, first.success):
            return (
                f"{episode.task.id} is rewarded otherwise in another process: the same messages of "
                f"the agent earned {first.similarity:g}, and now {again.similarity:g}. Nothing may "
                "be kept from one episode to the next."
            )
    return None


IDLE_LIMIT = 0.2  # most that an agent which does nothing may earn in an environment on average
RANDOM_LIMIT = 0.3  # most that random calls of tools may
CALLS = 4  # random tool calls of the random agent, as in policies/scripted.py
WORDS = 8  # of the request, that the talking agent says
Script = Callable[[Suite, Task], tuple[Sequence[Message], Message]]
"""The first messages of an agent, and the one that it sends from then on."""


def floors(suite: Suite, twin: Suite, tasks: Sequence[Task]) -> list[str]:
    """Which agents earn too much on these tasks; else the episode that ends otherwise in another
    process. EpisodeError when the environment fails."""
    agents: tuple[tuple[str, float, Script], ...] = (
        ("does nothing", IDLE_LIMIT, lambda suite, task: ((), IDLE)),
        ("only talks", IDLE_LIMIT, _talk),
        ("calls tools at random", RANDOM_LIMIT, partial(_random_calls, calls=CALLS)),
        ("calls one tool at random", RANDOM_LIMIT, partial(_random_calls, calls=1)),
    )
    faults: list[str] = []
    episodes: list[Episode] = []
    for agent, limit, turns in agents:
        played = [e for task in tasks if (e := _episode(suite, task, *turns(suite, task)))]
        earned = sum(e.score.similarity for e in played) / len(tasks)
        if earned > limit:
            faults.append(
                f"an agent that {agent} earns {earned:.2f} on average; allowed: {limit:g}."
            )
        episodes += played
    return faults or list(filter(None, [difference(twin, episodes)]))


def _episode(suite: Suite, task: Task, replies: Sequence[Message], then: Message) -> Episode | None:
    """None for an episode that never ends."""
    actions = tuple(script(replies, then))
    steps = performed(suite, task, actions)
    score = steps[-1].score
    return None if score is None else Episode(task, actions[: len(steps) - 1], score)


def _talk(suite: Suite, task: Task) -> tuple[Sequence[Message], Message]:
    """That it is done, or words of the request: a module may know one sentence, not all."""
    rng = random.Random(stable_seed("talking agent", task.id))
    words = opening(suite, task).split()
    if not words or rng.random() < 0.5:
        return (), text_message("That is done.")
    return (), text_message(" ".join(rng.sample(words, min(WORDS, len(words)))))


def _random_calls(suite: Suite, task: Task, calls: int) -> tuple[Sequence[Message], Message]:
    tools = performed(suite, task)[0].tools
    rng = random.Random(stable_seed("random agent", task.id))
    out: list[Message] = []
    for n in range(calls if tools else 0):
        function = rng.choice(tools)["function"]
        arguments = plausible(function.get("parameters") or {}, rng)
        out.append(call_message(function["name"], arguments, f"call_{n}"))
    return out, IDLE


# -- what is held out -------------------------------------------------------------------------

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
        hidden, public = _collect(held_out), _collect(training)
        return cls(hidden[0] - public[0], hidden[1] - public[1])

    def overlap(self, texts: Sequence[str]) -> list[str]:
        """What the texts share with held-out tasks alone, in words."""
        shingles, entities = _collect([texts])
        out = [f"the wording {s!r}" for s in sorted(shingles & self.shingles)]
        return out + [f"{e!r}" for e in sorted(entities & self.entities)]

    def in_task(self, suite: Suite, task: Task) -> bool:
        return bool(self.overlap([*texts_of(task), opening(suite, task)]))


def held_out(suite: Suite, training: Sequence[Task]) -> Leaks:
    """What an environment may not repeat: what only tasks outside the training splits have."""
    splits = [s for s in suite.splits() if not s.startswith(("train", "fit"))]
    ids = {task.id for task in training}
    hidden = [task for split in splits for task in suite.tasks(split) if task.id not in ids]
    asks = suite.asks_user()  # then an opening costs an answer

    def texts(task: Task) -> list[str]:
        return texts_of(task) + ([] if asks else [opening(suite, task)])

    return Leaks.of(map(texts, hidden), map(texts, training))


def quoted(code: str) -> list[str]:
    """All texts that stand in a program. Its syntax must be right."""
    return [
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def texts_of(task: Task) -> list[str]:
    return list(_texts(json.loads(json.dumps(task.data, default=str))))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
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
