"""What a base agent did that earned nothing, in words: said after its evaluation, before rollouts
are spent on rewards that are all 0."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trace_bench.core.text import visible
from trace_bench.core.types import Tool, Trajectory

LONGEST = 160  # characters of the example's call, and of its answer
REMEDY = (
    "Methods learn from differences between rewards and may find none. Change `model` to one that "
    "can act in this environment (docs/environments.md), or begin with easier tasks; "
    "python -m trace_bench.show RUN --agent base shows its conversations"
)


def unable(episodes: Sequence[Trajectory]) -> str | None:
    """What the agent did in these episodes; None if it earned anything in one of them, or none has
    a score."""
    scores = [t.score for t in episodes if t.score is not None]
    if not scores or any(s.similarity > 0 or s.success for s in scores):
        return None
    counts: Counter[str] = Counter()
    examples: list[str] = []
    for episode in episodes:
        calls = list(_calls(episode))
        counts["calls"] += len(calls)
        counts["episodes without a call"] += not calls
        unread = [str(turn.reply.get("content")) for turn in episode.turns if turn.malformed]
        counts["calls that could not be read"] += len(unread)
        examples += map(_shown, unread)
        for name, arguments, answer in calls:
            if (fault := _fault(episode.tools, name, arguments)) is not None:
                counts[fault] += 1
                examples.append(f"{_shown(f'{name}({arguments})')}, answered by {_shown(answer)}")
    did = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    example = f". For example: {examples[0]}" if examples else ""
    return (
        f"the base agent earned 0 in all {len(scores)} held-out episodes: {did}{example}. {REMEDY}"
    )


def _shown(text: str) -> str:
    return f'"{visible(" ".join(text.split())[:LONGEST])}"'


def _calls(episode: Trajectory) -> Iterator[tuple[str, str, str]]:
    """The name, arguments (JSON) and answer of every call."""
    after = [*(turn.messages for turn in episode.turns[1:]), episode.closing]
    for turn, messages in zip(episode.turns, after, strict=True):
        answers = {m.get("tool_call_id"): str(m["content"]) for m in messages}
        for call in turn.reply.get("tool_calls", ()):
            function = call["function"]
            yield function["name"], function["arguments"], answers.get(call["id"], "")


def _fault(tools: Sequence[Tool], name: str, arguments: str) -> str | None:
    """What is wrong with a call by the tools' own schemas, as far as names go."""
    offered: Mapping[str, Any] = {t["function"]["name"]: t["function"] for t in tools}
    if name not in offered:
        return "calls to tools that are not there"
    schema, given = offered[name].get("parameters") or {}, set(json.loads(arguments))
    takes, needs = set(schema.get("properties", given)), set(schema.get("required", ()))
    return None if needs <= given <= takes else "calls with arguments that the tool does not take"
