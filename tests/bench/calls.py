"""How well formed an agent's calls are: of all its turns in held-out evaluation, by run and agent.

    python tests/bench/calls.py RUN [RUN ...]

`calls`: turns that make or try to make a call. Of these, `readable` ones have a call that can be
read, `at hand` ones call only tools of the episode, and `well formed` ones also give them arguments
that their schemas allow. Reads what runs have stored (`evaluation_trajectories.jsonl`).
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from trace_bench.core.chat import read_call
from trace_bench.core.store import each_line
from trace_bench.core.types import Message, Stored, Tool, Trajectory

SHARES = ("readable", "at hand", "well formed")
HEAD = f"""| run | agent | episodes | success | similarity | turns | calls | {" | ".join(SHARES)} |
|---|---|---|---|---|---|---|---|---|---|"""


def sort_of(message: Message, malformed: bool, tools: dict[str, dict[str, Any]]) -> list[str]:
    """What a turn counts as."""
    calls = message.get("tool_calls") or ()
    if malformed or not calls:
        return ["calls"] if malformed else []
    found = ["calls"]
    try:
        read = [read_call(call) for call in calls]
    except ValueError:
        return found
    found.append("readable")
    if all(name in tools for name, _ in read):
        found.append("at hand")
        checked = (Draft202012Validator(_closed(tools[name])).is_valid(a) for name, a in read)
        if all(checked):
            found.append("well formed")
    return found


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": False, **schema}


def counted(trajectory: Trajectory) -> Counter[str]:
    """Turns of an episode by what they count as."""
    tools = {_function(t)["name"]: _function(t).get("parameters") or {} for t in trajectory.tools}
    counts: Counter[str] = Counter(turns=len(trajectory.turns))
    spoken = [m for m in trajectory.messages if m["role"] == "assistant"]
    for message, turn in zip(spoken, trajectory.turns, strict=True):
        counts.update(sort_of(message, turn.malformed is not None, tools))
    return counts


def _function(tool: Tool) -> dict[str, Any]:
    return tool["function"]


def row(run: str, agent: str, episodes: list[Trajectory]) -> str:
    """A line of the table. Shares are of the turns that try to make a call."""
    total = sum(map(counted, episodes), Counter[str]())
    scores = [t.score for t in episodes if t.score is not None]
    means = (sum(s.success for s in scores), sum(s.similarity for s in scores))
    shares = (total[kind] / max(1, total["calls"]) for kind in SHARES)
    cells = [run, agent, str(len(episodes)), *(f"{mean / len(episodes):.3f}" for mean in means)]
    cells += [str(total["turns"]), str(total["calls"]), *(f"{share:.3f}" for share in shares)]
    return f"| {' | '.join(cells)} |"


def main(folders: list[str]) -> int:
    if not folders:
        print(__doc__)
        return 2
    print(HEAD)
    for folder in map(Path, folders):
        kept: dict[str, list[Trajectory]] = defaultdict(list)
        for line in each_line(folder / "evaluation_trajectories.jsonl", Stored):
            kept[line.call.removeprefix("evaluation/")].append(line.trajectory)
        for agent, episodes in kept.items():
            print(row(folder.name, agent, episodes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
