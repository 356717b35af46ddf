"""From a shape and a seed to a task: draw the requests, lay out the world, solve it, and read the
milestones off the reference solution.

What the reference changes in a database is a milestone, and so is what it tells the user; the
milestones of one request come in order, the closing message comes last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.databases import COLUMNS
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.pools import Choices, Words, belongs, sentence
from trace_bench.envs.toolsandbox.scenarios.shapes import INSUFFICIENT, Shape
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CAPABILITIES,
    EXACT,
    TELL,
    Playback,
    Redraw,
    Request,
    Solver,
    ToolUse,
    Turns,
    milestone_of,
    play,
)
from trace_bench.envs.toolsandbox.tools.search import data as search_data

SYSTEM = "You are a phone assistant. Use the tools."
FALLBACK = "I don't know."
_ATTEMPTS = 4000  # at a wording of the pool; one in three to one in ten fits


def build(
    shape: Shape, words: Words, seed: int, task_id: str, split: str, augmentation: str = "none"
) -> tuple[Task, Turns]:
    """One task of a shape and the requests that it was made of."""
    for task, turns in drafts(shape, words, seed, task_id, split, augmentation):
        solver = Solver(frozenset(task.data["tools"]))
        try:
            record = play(ToolSandboxEnv(), task, turns, solver)
        except Redraw:
            continue
        rewarded = {**task.data, **_rewarded(record, shape, turns), "reference": record.actions}
        requires = _requires(replace(task, data=rewarded), turns, solver.asked)
        return replace(task, data={**rewarded, "requires": requires}), turns
    raise RuntimeError(f"no wording of the pool {words.name} for {shape.name}")


def drafts(
    shape: Shape, words: Words, seed: int, task_id: str, split: str, augmentation: str = "none"
) -> Iterator[tuple[Task, Turns]]:
    """Tasks without milestones and reference, as for an episode that is not scored, and the
    requests that each was made of."""
    for attempt in range(_ATTEMPTS):
        choices = Choices(random.Random(f"{seed}/{attempt}"), words)
        turns = shape.draw(choices)
        said = [sentence(choices.rng, [request.clause for request in turn]) for turn in turns]
        wording = " ".join([*(frame for _, frame in said), *choices.wording])
        if belongs(words.name, wording):
            data = _data(shape, turns, [text for text, _ in said], wording, choices)
            data["augmentation"] = augmentation
            yield Task(task_id, "toolsandbox", split, seed, data), turns


def _data(
    shape: Shape, turns: Turns, texts: Sequence[str], wording: str, choices: Choices
) -> dict[str, Any]:
    """A task's data before it is solved. `texts`: the user's messages."""
    requests = [request for turn in turns for request in turn]
    now = 1_790_000_000 + choices.rng.randrange(0, 10_000_000) // 60 * 60
    tools = dict.fromkeys(tool for request in requests for tool in request.tools)
    return {
        "shape": shape.name,
        "category": shape.category,
        "kinds": [request.main_tool for request in requests],
        "requires": [],
        "wording": wording,
        "now": float(now),
        "start": _start(shape, requests, now, choices),
        "tools": [tool for tool in tools if tool not in shape.withheld],
        "withheld": list(shape.withheld),
        "system": SYSTEM,
        "user": {
            "opening": texts[0],
            "answers": [answer for request in requests for answer in request.answers],
            "followups": texts[1:],
            "fallback": FALLBACK,
        },
        "max_messages": 30,
        "milestones": [],
        "edges": [],
        "minefields": [],
        "minefield_edges": [],
        "reference": [],
    }


def _start(shape: Shape, requests: Sequence[Request], now: int, choices: Choices) -> dict[str, Any]:
    rng = choices.rng
    city = rng.choice(search_data("cities"))
    setting = {**COLUMNS["SETTING"], "device_id": "device-1"}
    for request in requests:
        setting.update(request.settings)
    setting.update(shape.settings)
    setting["latitude"] = round(city["latitude"] + rng.uniform(-0.05, 0.05), 2)
    setting["longitude"] = round(city["longitude"] + rng.uniform(-0.05, 0.05), 2)
    contacts = [row for request in requests for row in request.contacts]
    relations = {row["relationship"] for row in contacts}
    contacts.append(choices.contact(is_self=True, relationship=None))
    for _ in range(rng.randrange(1, 3)):
        extra = choices.contact()
        if extra["relationship"] in relations:
            extra["relationship"] = None
        contacts.append(extra)
    created = {"creation_timestamp": now - 600}
    return {
        "SETTING": setting,
        "CONTACT": contacts,
        "MESSAGING": [{**row, **created} for r in requests for row in r.messages],
        "REMINDER": [{**row, **created} for r in requests for row in r.reminders],
    }


def _requires(task: Task, turns: Turns, asked: set[str]) -> list[str]:
    """The capabilities without which the task is not solved, found by trying each that made, or
    could have made, a difference to the reference (`asked`)."""
    tools = frozenset(task.data["tools"])
    needed = []
    for capability in CAPABILITIES:
        # EXACT and TELL: every task with a result to pass on or to tell.
        if capability in (EXACT, TELL) or capability not in asked:
            continue
        solver = Solver(tools, frozenset({capability}))
        score = play(ToolSandboxEnv(), task, turns, solver).last.score
        if score is None or not score.success:
            needed.append(capability)
    return needed


def _invented_calls(requests: Sequence[Request], record: Playback) -> list[str]:
    """The tools whose call would be an invention: those of requests that were not carried out."""
    called = {action["call"] for action in record.actions if "call" in action}
    undone = [request for request in requests if request.main_tool not in called]
    tools = [tool for r in undone for tool in r.invented_tools or (r.main_tool,)]
    return [tool for tool in dict.fromkeys(tools) if tool not in called]


def _rewarded(record: Playback, shape: Shape, turns: Turns) -> dict[str, Any]:
    """Milestones, their order, and minefields. A single request that cannot be carried out has no
    milestones, as in the official suite."""
    requests = [request for turn in turns for request in turn]
    solvable = shape.category != INSUFFICIENT or len(requests) > 1
    mines = [ToolUse(tool, {}).constraint() for tool in _invented_calls(requests, record)]
    return {
        "milestones": [milestone_of(event.constraint) for event in record.events if solvable],
        "edges": _edges(record) if solvable else [],
        "minefields": [milestone_of(mine) for mine in mines],
        # The graph needs all of them; in a chain any of them can be hit, whichever are called.
        "minefield_edges": [[i, i + 1] for i in range(len(mines) - 1)],
    }


def _edges(record: Playback) -> list[list[int]]:
    """Which event comes before which: those of one request in order, all of a turn before its
    closing message, and that before the next turn."""
    edges: list[list[int]] = []
    closing: int | None = None
    for index, event in enumerate(record.events):
        if index and event.chained:
            edges.append([index - 1, index])
        if event.closes_turn:
            first = 0 if closing is None else closing + 1
            before = range(first, index) or ([] if closing is None else [closing])
            edges += [[i, index] for i in before if [i, index] not in edges]
            closing = index
        elif not event.chained and closing is not None:
            edges.append([closing, index])
    return edges
