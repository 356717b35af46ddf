"""What a base agent did that earned nothing, in words: said after its evaluation, before rollouts
are spent on rewards that are all 0."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trace_bench.core.chat import read_call
from trace_bench.core.text import visible
from trace_bench.core.types import Tool, Trajectory

UNREAD = "calls that could not be read"
LONGEST = 160  # characters of the example's call, and of its answer
_ERROR = re.compile(r"\W*(error\b|\w*(Error|Exception)\b|traceback\b|invalid\b)", re.IGNORECASE)
REMEDY = (
    "Methods learn from differences between rewards and may find none. Change `model` to one that "
    "can act in this environment (model=made makes one from its references: docs/own_world.md), or "
    "begin with easier tasks; python -m trace_bench.show RUN --agent base shows its conversations"
)


def unable(episodes: Sequence[Trajectory]) -> str | None:
    """What the agent did in these episodes; None if it earned anything, or none has a score."""
    scores = [t.score for t in episodes if t.score is not None]
    if not scores or any(s.similarity > 0 or s.success for s in scores):
        return None
    counts: Counter[str] = Counter()
    examples: list[str] = []
    any_call: list[str] = []  # an example where no fault is known
    for episode in episodes:
        calls = list(_calls(episode))
        counts["calls"] += len(calls)
        counts["episodes without a call"] += not calls
        unread = [str(turn.reply.get("content")) for turn in episode.turns if turn.malformed]
        counts[UNREAD] += len(unread)
        examples += map(_shown, unread)
        for call, answer in calls:
            shown = f"{_shown(_written(call))}, answered by {_shown(answer)}"
            any_call.append(shown)
            if (fault := _fault(episode.tools, call, answer)) is not None:
                counts[fault] += 1
                examples.append(shown)
    did = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    example = "".join(f". For example: {one}" for one in [*examples, *any_call][:1])
    return (
        f"the base agent earned 0 in all {len(scores)} held-out episodes: {did}{example}. {REMEDY}"
    )


def _shown(text: str) -> str:
    return f'"{visible(" ".join(text.split())[:LONGEST])}"'


def _calls(episode: Trajectory) -> Iterator[tuple[Any, str]]:
    """Every call, of which a guest's policy may have made anything, and its answer."""
    after = [*(turn.messages for turn in episode.turns[1:]), episode.closing]
    for turn, messages in zip(episode.turns, after, strict=False):  # the end, where it has no turn
        answers = {m.get("tool_call_id"): str(m.get("content")) for m in messages}
        calls = turn.reply.get("tool_calls")
        for call in calls if isinstance(calls, list | tuple) else ():
            identity = call.get("id") if isinstance(call, Mapping) else None
            yield call, answers.get(str(identity), "")


def _written(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return str(call)
    return f"{function.get('name')}({function.get('arguments')})"


def _fault(tools: Sequence[Tool], call: Any, answer: str) -> str | None:
    """What is wrong with a call by the tools' own schemas, as far as names go, or by its answer."""
    try:
        name, given = read_call(call)
    except ValueError:
        return UNREAD
    offered: Mapping[str, Any] = {t["function"]["name"]: t["function"] for t in tools}
    if name not in offered:
        return "calls to tools that are not there"
    schema = offered[name].get("parameters")
    schema = schema if isinstance(schema, Mapping) else {}
    takes, needs = schema.get("properties"), schema.get("required")
    unknown = isinstance(takes, Mapping) and given.keys() - takes.keys()
    missing = isinstance(needs, list) and any(str(name) not in given for name in needs)
    if unknown or missing:
        return "calls with arguments that the tool does not take"
    return "calls answered by an error" if _ERROR.match(answer) else None
