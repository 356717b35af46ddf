"""From a shape and a seed to a task: draw the requests, lay out the world, solve it, and read the
milestones off the reference solution.

What the reference changes in a database is a milestone, and so is what it tells the user; the
milestones of one request come in order, the closing message comes last.
"""

from __future__ import annotations

import random
from typing import Any

from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.kinds import Draw
from trace_bench.envs.toolsandbox.scenarios.play import Record, play
from trace_bench.envs.toolsandbox.scenarios.pools import Pool
from trace_bench.envs.toolsandbox.scenarios.program import (
    CAPABILITIES,
    EXACT,
    TELL,
    Mind,
    Part,
    Redraw,
)
from trace_bench.envs.toolsandbox.scenarios.shapes import INSUFFICIENT, Shape, Turns
from trace_bench.envs.toolsandbox.scenarios.wording import belongs, sentence
from trace_bench.envs.toolsandbox.tools.search import data as search_data

SYSTEM = "You are a phone assistant. Use the tools."
FALLBACK = "I don't know."


def build(
    shape: Shape,
    pool: Pool,
    seed: int,
    task_id: str,
    split: str,
    augmentation: str = "none",
    reference: bool = True,
) -> tuple[Task, Turns]:
    """One task of a shape and the parts that it was made of. Raises RuntimeError when no wording
    of the pool fits (does not happen with the shapes of this package)."""
    for attempt in range(4000):
        rng = random.Random(f"{seed}/{attempt}")
        draw = Draw(rng, pool)
        turns = shape.draw(draw)
        said = [sentence(rng, [part.request for part in parts]) for parts in turns]
        wording = " ".join([*(frame for _, frame in said), *draw.wording])
        if not belongs(pool.name, wording):
            continue
        data = _layout(shape, turns, [text for text, _ in said], wording, rng, draw)
        data["augmentation"] = augmentation
        task = Task(task_id, "toolsandbox", split, seed, data)
        if not reference:
            return task, turns
        try:
            record = play(ToolSandboxEnv(), task, turns, Mind(frozenset(data["tools"])))
        except Redraw:
            continue
        data["reference"] = record.actions
        _read_milestones(data, record, shape, turns)
        data["requires"] = _requires(task, turns)
        return task, turns
    raise RuntimeError(f"no wording of the pool {pool.name} for {shape.name}")


def _layout(
    shape: Shape,
    turns: Turns,
    texts: list[str],
    wording: str,
    rng: random.Random,
    draw: Draw,
) -> dict[str, Any]:
    parts = [part for requests in turns for part in requests]
    now = 1_790_000_000 + rng.randrange(0, 10_000_000) // 60 * 60
    city = rng.choice(search_data("cities"))
    setting: dict[str, Any] = {
        "device_id": "device-1", "cellular": True, "wifi": True, "location_service": True,
        "low_battery_mode": False,
    }  # fmt: skip
    for part in parts:
        setting.update(part.settings)
    setting.update(shape.settings)
    setting["latitude"] = round(city["latitude"] + rng.uniform(-0.05, 0.05), 2)
    setting["longitude"] = round(city["longitude"] + rng.uniform(-0.05, 0.05), 2)
    contacts = [row for part in parts for row in part.contacts]
    relations = {row["relationship"] for row in contacts}
    contacts.append(draw.contact(is_self=True, relationship=None))
    for _ in range(rng.randrange(1, 3)):
        extra = draw.contact()
        if extra["relationship"] in relations:
            extra["relationship"] = None
        contacts.append(extra)
    messages = [{**row, "creation_timestamp": now - 600} for p in parts for row in p.messages]
    reminders = [{**row, "creation_timestamp": now - 600} for p in parts for row in p.reminders]
    tools: list[str] = []
    for part in parts:
        tools += [t for t in part.tools if t not in tools and t not in shape.withheld]
    return {
        "shape": shape.name,
        "category": shape.category,
        "kinds": [part.main for part in parts],
        "requires": [],
        "wording": wording,
        "now": float(now),
        "start": {"SETTING": setting, "CONTACT": contacts, "MESSAGING": messages,
                  "REMINDER": reminders},
        "tools": tools,
        "withheld": list(shape.withheld),
        "system": SYSTEM,
        "user": {"opening": texts[0], "answers": [a for p in parts for a in p.answers],
                 "followups": texts[1:], "fallback": FALLBACK},
        "max_messages": 30,
        "milestones": [], "edges": [], "minefields": [], "minefield_edges": [],
        "reference": [],
    }  # fmt: skip


def _requires(task: Task, turns: Turns) -> list[str]:
    """The capabilities without which the task is not solved, found by trying each."""
    tools = frozenset(task.data["tools"])
    needed = []
    for capability in CAPABILITIES:
        if capability in (EXACT, TELL):  # every task with a result to tell or to pass on
            continue
        mind = Mind(tools, frozenset({capability}))
        score = play(ToolSandboxEnv(), task, turns, mind).last.score
        if score is None or not score.success:
            needed.append(capability)
    return needed


def _targets(parts: list[Part], record: Record) -> list[str]:
    """The tools whose call would be a made-up act: those of requests that were not carried out."""
    called = {action["call"] for action in record.actions if "call" in action}
    wrong = [t for p in parts if p.main not in called for t in p.wrong or (p.main,)]
    return [tool for tool in dict.fromkeys(wrong) if tool not in called]


def _read_milestones(data: dict[str, Any], record: Record, shape: Shape, turns: Turns) -> None:
    parts = [part for requests in turns for part in requests]
    withheld = shape.category == INSUFFICIENT
    keep_all = not withheld or len(parts) > 1
    last_text: int | None = None
    previous: int | None = None
    for event in record.events:
        if withheld and not keep_all:
            continue
        data["milestones"].append({"constraints": [event.constraint], "guards": []})
        index = len(data["milestones"]) - 1
        if previous is not None and event.chained:
            data["edges"].append([previous, index])
        if event.text:
            first = 0 if last_text is None else last_text + 1
            before = range(first, index) or ([] if last_text is None else [last_text])
            data["edges"] += [[i, index] for i in before if [i, index] not in data["edges"]]
            last_text = index
        elif not event.chained and last_text is not None:
            data["edges"].append([last_text, index])
        previous = index
    for tool in _targets(parts, record):
        constraint = {
            "database": "SANDBOX", "kind": "tool_trace",
            "rows": [{"name": tool, "arguments": {}}], "since": None,
        }  # fmt: skip
        data["minefields"].append({"constraints": [constraint], "guards": []})
