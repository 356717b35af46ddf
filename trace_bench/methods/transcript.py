"""Trajectories as text for a reader who is a language model: whole, shortened to fit, or their
outcome."""

from __future__ import annotations

import re

from trace_bench.core.types import Trajectory

ERROR = re.compile(r"^result: \S*(?:Error|Exception)\b")
_KEPT = 6  # lines at the end that are shortened less
_GAP = "\n[cut here]\n"


def lines(trajectory: Trajectory) -> list[str]:
    """A conversation as lines `user:`, `agent:`, `call:`, `result:`, without the system prompt."""
    out: list[str] = []
    for message in trajectory.messages:
        role, content = message["role"], " ".join(str(message.get("content") or "").split())
        if role == "tool":
            out.append(f"result: {content}")
        elif role == "assistant":
            out += [f"agent: {content}"] if content else []
            for call in message.get("tool_calls") or ():
                function = call["function"]
                out.append(f"call: {function['name']} {function['arguments']}")
        elif role == "user":
            out.append(f"user: {content}")
    return out


def conversation(trajectory: Trajectory) -> str:
    """The same as one text."""
    return "\n".join(lines(trajectory))


def feedback(trajectory: Trajectory) -> str:
    """The outcome of an episode, in words, from its score alone."""
    if trajectory.failure is not None:
        return f"lost: {trajectory.failure.error}"
    if trajectory.score is None:
        return "lost: no score"
    score = trajectory.score
    text = f"score {score.similarity:.2f} of 1"
    if score.milestones:
        reached = sum(m.hit for m in score.milestones)
        text += f", {reached} of {len(score.milestones)} milestones reached"
    hit = any(m.hit for m in score.minefields)
    return text + (", something was done that must not be done" if hit else "")


def compact(trajectory: Trajectory, most: int) -> str:
    """At most `most` characters: long lines are cut, ever shorter (calls, errors and the ends less
    than results); where that is not enough, what is in the middle goes."""
    whole = lines(trajectory)
    for width in (None, 400, 120, 60, 30, 15):
        text = "\n".join(_cut(s, n, len(whole), width) for n, s in enumerate(whole))
        if len(text) <= most:
            return text
    head = most // 3
    tail = most - head - len(_GAP)
    return text[:head] + _GAP + text[-tail:] if tail > 0 else text[len(text) - most :]


def _cut(line: str, place: int, count: int, width: int | None) -> str:
    if width is None:
        return line
    telling = line.startswith("call: ") or ERROR.match(line)
    if telling or place == 0 or place >= count - _KEPT:
        width *= 4
    return line if len(line) <= width else f"{line[:width]}..."
