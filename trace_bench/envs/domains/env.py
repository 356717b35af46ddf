"""One episode of a domain: the user's messages are fixed, and each is over when the agent answers
without a call.

The reward is that of the synthetic tasks of the phone world: 0.6 for the rows that should change or
be found, 0.4 for what the user is to be told; all of it for one of them where there is no other. A
table that has changed in another way earns nothing for its rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.chat import answer_call, opening_of, read_call
from trace_bench.core.types import Message, Milestone, Score, Step, StopReason, Task, Tool
from trace_bench.envs import LiveEnv, met
from trace_bench.envs.domains.tasks import Row, apply, tables

ACT, TELL = 0.6, 0.4  # shares of the reward
_MESSAGES = 30  # of the agent
_CALLS = 16  # of one message


class DomainEnv(LiveEnv):
    """One schematic task."""

    def reset(self, task: Task) -> Step:
        data = task.data
        self._table, self._data = tables()[data["domain"]], data
        self._tools = {tool["function"]["name"]: tool for tool in self._table.tools()}
        self._rows = [dict(row) for row in data["rows"]]
        self._found: set[str] = set()
        self._said: list[list[str]] = [[]]
        self._sent = 0
        self._live = True
        opening = opening_of(data["system"], data["user"][0])
        return Step(tuple(opening), tuple(self._tools.values()))

    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        self._sent += 1
        if calls:
            answers = tuple(answer_call(call, self._run(call)) for call in calls[:_CALLS])
            too_long = self._sent >= _MESSAGES
            return self.end(StopReason.TURN_LIMIT, answers) if too_long else Step(answers)
        self._said[-1].append(text)
        if len(self._said) == len(self._data["user"]):
            return self.end(StopReason.DONE)
        self._said.append([])
        return Step(({"role": "user", "content": self._data["user"][len(self._said) - 1]},))

    def score(self) -> Score:
        acts, tells = self._acts(), self._tells()
        both = (*acts, *tells)
        if all(m.hit for m in both):
            return Score(1.0, True, milestones=both)
        reward = ACT * _mean(acts) + TELL * _mean(tells) if acts and tells else _mean(both)
        return Score(reward, False, milestones=both)

    def _run(self, call: Any) -> str:
        try:
            name, arguments = read_call(call)
            if (tool := self._tools.get(name)) is None:
                raise ValueError("Unknown tool")
            _check(tool, arguments)
            result = apply(self._table, self._rows, name, arguments)
        except ValueError as error:
            return f"ValueError: {error}"
        if isinstance(result, Mapping):
            self._found.add(result["name"])
        return json.dumps(result)

    def _acts(self) -> list[Milestone]:
        """Rows to change, and those that the reference looks up to tell of them."""
        before, wanted, now = (
            {row["name"]: _values(row) for row in rows}
            for rows in (self._data["rows"], self._data["wanted"], self._rows)
        )
        names = list(dict.fromkeys([*before, *wanted]))
        changed = [name for name in names if before.get(name) != wanted.get(name)]
        others = {name for name in [*names, *now] if name not in changed}
        spoiled = any(now.get(name) != before.get(name) for name in others)
        hits = {f"row {n}": not spoiled and now.get(n) == wanted.get(n) for n in changed}
        looked = {
            call["arguments"]["name"]
            for turn in self._data["turns"]
            for call in turn["calls"]
            if call["name"].startswith("find_")
        }
        hits |= {f"find {n}": n in self._found for n in sorted(looked - set(changed))}
        return [met(name, hit) for name, hit in hits.items()]

    def _tells(self) -> list[Milestone]:
        """What each message of the user asks to be told."""
        found = []
        for number, turn in enumerate(self._data["turns"]):
            said = " ".join(self._said[number]) if number < len(self._said) else ""
            for text in turn["tells"]:
                hit = re.search(rf"\b{re.escape(text)}\b", said, re.IGNORECASE) is not None
                found.append(met(f"tell {text}", hit, tells=text))
        return found


def _mean(milestones: Sequence[Milestone]) -> float:
    return sum(m.similarity for m in milestones) / len(milestones)


def _values(row: Row) -> Row:
    """A row without its id, which a new one is given."""
    return {name: value for name, value in row.items() if name != "id"}


def _check(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError unless the arguments are those of the tool, each of its type."""
    wanted = tool["function"]["parameters"]["properties"]
    if set(arguments) != set(wanted):
        raise ValueError(f"The arguments are {', '.join(wanted)}")
    for name, schema in wanted.items():
        value = arguments[name]
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole if schema["type"] == "integer" else isinstance(value, str)):
            raise ValueError(f"{name} must be of type {schema['type']}")
