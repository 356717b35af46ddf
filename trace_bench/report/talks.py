"""Packs the stored conversations of a run for the report: without token ids, tools once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.core.lines import Stored
from trace_bench.core.store import each_line
from trace_bench.core.types import Message, Score, Trajectory, to_json

CHUNK = 64
"""Conversations in one compressed part: the browser unpacks one part to show one of them."""


@dataclass
class Talks:
    """Conversations in parts. `places`: {call: {task: [[part, index in the part]]}}; `tools`: each
    tool once, conversations refer to it by its index."""

    parts: list[list[dict[str, Any]]] = field(default_factory=list)
    places: dict[str, dict[str, list[list[int]]]] = field(default_factory=dict)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Talks:
        """Talks that grow apart from these."""
        return Talks([*self.parts], {**self.places}, [*self.tools], {**self._known})

    def add(self, path: Path) -> None:
        """Adds the episodes of a file of trajectories, if there is such a file. UserError for a
        damaged one; what was read before the damage is kept."""
        if not path.exists():
            return
        self.parts.append([])
        for line in each_line(path, Stored):
            trajectory = line.trajectory
            if len(self.parts[-1]) == CHUNK:
                self.parts.append([])
            of_task = self.places.setdefault(line.call, {}).setdefault(trajectory.task, [])
            of_task.append([len(self.parts) - 1, len(self.parts[-1])])
            self.parts[-1].append(self._packed(trajectory))

    def _packed(self, played: Trajectory) -> dict[str, Any]:
        return {
            "seed": str(played.seed),
            "agent": played.agent,
            "adapter": played.adapter,
            "tools": [self._tool(t["function"]) for t in played.tools],
            "messages": list(_messages(played)),
            "stop": played.stop.value,
            "failure": None if played.failure is None else to_json(played.failure),
            "score": _score(played.score),
            "tokens": played.tokens,
        }

    def _tool(self, function: Mapping[str, Any]) -> int:
        text = json.dumps(function, sort_keys=True)
        if text not in self._known:
            self._known[text] = len(self.tools)
            self.tools.append(function)
        return self._known[text]


def _messages(played: Trajectory) -> Iterator[dict[str, Any]]:
    """The messages in order; the agent's with what is known of the turn."""
    for turn in played.turns:
        yield from _plain(turn.messages)
        yield {
            **_message(turn.reply),
            "adapter": turn.adapter,
            "tokens": [len(turn.prompt_ids), len(turn.token_ids)],
            "malformed": turn.malformed,
            "truncated": turn.truncated,
        }
    yield from _plain(played.closing)


def _plain(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    return map(_message, messages)


def _message(message: Message) -> dict[str, Any]:
    calls = [c["function"] for c in message.get("tool_calls") or ()]
    return {
        "role": message["role"],
        "content": message.get("content") or "",
        "calls": [[c["name"], c["arguments"]] for c in calls],
    }


def _score(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {
        "success": score.success,
        "similarity": score.similarity,
        "milestones": to_json(score.milestones),
        "minefields": to_json(score.minefields),
    }
