"""From a shape and a seed to a task: draw the requests, lay out the world, solve it, and read the
milestones off the reference solution.

What the reference changes in a database is a milestone, and so is what it tells the user; the
milestones of one request come in order, the closing message comes last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from trace_bench.core.types import Task
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
    Turns,
    constraint_on,
    play,
)
from trace_bench.envs.toolsandbox.tools.search import data as search_data

SYSTEM = "You are a phone assistant. Use the tools."
FALLBACK = "I don't know."
_ATTEMPTS = 4000  # at a wording of the pool; one in three to one in ten fits


def build(
    shape: Shape, words: Words, seed: int, task_id: str, split: str, augmentation: str = "none"
) -> tuple[Task, Turns]:
    """One task of a shape and the requests that it was made of. Raises RuntimeError when no
    wording of the pool fits (does not happen with the shapes of this package)."""
    drafts = _drafts(shape, words, seed, augmentation)
    while True:
        data, turns = next(drafts)
        task = Task(task_id, "toolsandbox", split, seed, data)
        solver = Solver(frozenset(data["tools"]))
        try:
            record = play(ToolSandboxEnv(), task, turns, solver)
        except Redraw:
            continue
        data["reference"] = record.actions
        _read_milestones(data, record, shape, turns)
        data["requires"] = _requires(task, turns, solver.asked)
        return task, turns


def unsolved(
    shape: Shape, words: Words, seed: int, task_id: str, split: str, augmentation: str = "none"
) -> tuple[Task, Turns]:
    """The same without milestones and reference, for an episode that is not scored."""
    data, turns = next(_drafts(shape, words, seed, augmentation))
    return Task(task_id, "toolsandbox", split, seed, data), turns


def _drafts(
    shape: Shape, words: Words, seed: int, augmentation: str
) -> Iterator[tuple[dict[str, Any], Turns]]:
    """Data of tasks before they are solved, and their requests. Raises RuntimeError at the end."""
    for attempt in range(_ATTEMPTS):
        draft = _draw(shape, words, f"{seed}/{attempt}", augmentation)
        if draft is not None:
            yield draft
    raise RuntimeError(f"no wording of the pool {words.name} for {shape.name}")


def _draw(
    shape: Shape, pool: Words, seed: str, augmentation: str
) -> tuple[dict[str, Any], Turns] | None:
    """A task's data before it is solved, and its requests; None when the wording is another
    pool's."""
    rng = random.Random(seed)
    choices = Choices(rng, pool)
    turns = shape.draw(choices)
    messages = [sentence(rng, [request.clause for request in requests]) for requests in turns]
    wording = " ".join([*(frame for _, frame in messages), *choices.wording])
    if not belongs(pool.name, wording):
        return None
    requests = [request for turn in turns for request in turn]
    now = 1_790_000_000 + rng.randrange(0, 10_000_000) // 60 * 60
    texts = [text for text, _ in messages]
    data = {
        "shape": shape.name,
        "category": shape.category,
        "kinds": [request.main_tool for request in requests],
        "requires": [],
        "wording": wording,
        "now": float(now),
        "start": _start(shape, requests, now, choices),
        "tools": _tools(shape, requests),
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
        "augmentation": augmentation,
    }
    return data, turns


def _start(shape: Shape, requests: Sequence[Request], now: int, choices: Choices) -> dict[str, Any]:
    rng = choices.rng
    city = rng.choice(search_data("cities"))
    setting: dict[str, Any] = {
        "device_id": "device-1", "cellular": True, "wifi": True, "location_service": True,
        "low_battery_mode": False,
    }  # fmt: skip
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


def _tools(shape: Shape, requests: Sequence[Request]) -> list[str]:
    """The tools that the agent gets: those of each request, without the withheld ones."""
    tools = dict.fromkeys(tool for request in requests for tool in request.tools)
    return [tool for tool in tools if tool not in shape.withheld]


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


def _read_milestones(data: dict[str, Any], record: Playback, shape: Shape, turns: Turns) -> None:
    """Fills in milestones, their order, and minefields. A single request that cannot be carried
    out has no milestones, as in the official suite."""
    requests = [request for turn in turns for request in turn]
    if shape.category != INSUFFICIENT or len(requests) > 1:
        data["milestones"] = [
            {"constraints": [event.constraint], "guards": []} for event in record.events
        ]
        data["edges"] = _edges(record)
    for tool in _invented_calls(requests, record):
        constraint = constraint_on("SANDBOX", "tool_trace", {"name": tool, "arguments": {}})
        data["minefields"].append({"constraints": [constraint], "guards": []})
    # The graph needs all of them; in a chain any of them can be hit, whichever are called.
    data["minefield_edges"] = [[i, i + 1] for i in range(len(data["minefields"]) - 1)]


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
