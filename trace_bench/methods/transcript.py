"""Trajectories as text for a reader who is a language model: whole, shortened to fit, or their
outcome."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from trace_bench.core.types import Trajectory

ERROR = re.compile(r"^result: \S*(?:Error|Exception)\b")
_KEPT = 6  # lines at the end that are shortened last
_CUT = "\n[cut here]\n"
_GAP = "[{} lines are left out here]"


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
    """At most `most` characters. Long lines are cut, ever shorter (calls, errors and the ends less
    than results), and lines are left out from the middle, calls and errors only if nothing else
    helps. The user's request and the end stay to the last, when what is left is cut in between."""
    whole = lines(trajectory)
    telling = {n for n, s in enumerate(whole) if s.startswith("call: ") or ERROR.match(s)}
    ends = {0, *range(len(whole) - _KEPT, len(whole))}
    from_middle = sorted(range(len(whole)), key=lambda n: abs(n - len(whole) // 2))
    loose = [n for n in from_middle if n not in telling | ends]
    for width in (400, 120, 60, 30, 15):
        limits = [4 * width if n in ends | telling else width for n in range(len(whole))]
        short = [s if len(s) <= w else f"{s[:w]}..." for s, w in zip(whole, limits, strict=True)]
        if len(text := _leave_out(short, loose, most)) <= most:
            return text
    rest = [n for n in from_middle if n in telling - ends]
    if len(text := _leave_out(short, [*loose, *rest], most)) <= most:
        return text
    head = most // 3
    tail = most - head - len(_CUT)
    return text[:head] + _CUT + text[-tail:] if tail > 0 else text[len(text) - most :]


def _leave_out(short: Sequence[str], order: Sequence[int], most: int) -> str:
    """Without as many lines as it takes, the first in `order` first."""
    for count in range(len(order) + 1):
        gone, out = set(order[:count]), list[str]()
        for left_out, run in groupby(range(len(short)), gone.__contains__):
            places = list(run)
            out += [_GAP.format(len(places))] if left_out else [short[n] for n in places]
        if len(text := "\n".join(out)) <= most:
            break
    return text
