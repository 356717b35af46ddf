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
    """At most `most` characters. First long results and texts are cut, ever shorter; then lines
    that are neither calls nor errors are left out, from the middle; then calls and errors are cut
    shorter, and left out last. The user's request and the end stay to the last, when what is left
    is cut in between. The same trajectory and length always give the same text."""
    whole = lines(trajectory)
    text = "\n".join(whole)
    if len(text) <= most:
        return text
    for width in (400, 160, 60):
        text = "\n".join(_cut(whole, width))
        if len(text) <= most:
            return text
    for width in (60, 30, 15):
        short = _cut(whole, width)
        text = _leave_out(short, _telling(short), most)
        if len(text) <= most:
            return text
    text = _leave_out(short, frozenset(), most)
    if len(text) <= most:
        return text
    head = most // 3
    tail = most - head - len(_CUT)
    return text[:head] + _CUT + text[-tail:] if tail > 0 else text[len(text) - most :]


def _cut(whole: Sequence[str], width: int) -> list[str]:
    """Lines cut to `width` characters; the request, calls, errors and the end to four times it."""
    ends = {0, *range(len(whole) - _KEPT, len(whole))} | _telling(whole)
    limits = [4 * width if n in ends else width for n in range(len(whole))]
    return [
        line if len(line) <= limit else f"{line[:limit]}..."
        for line, limit in zip(whole, limits, strict=True)
    ]


def _telling(lines: Sequence[str]) -> frozenset[int]:
    """The places of calls and errors."""
    return frozenset(n for n, s in enumerate(lines) if s.startswith("call: ") or ERROR.match(s))


def _leave_out(short: Sequence[str], keep: frozenset[int], most: int) -> str:
    """Without as many lines from the middle as it takes; those in `keep` stay."""
    middle = len(short) // 2
    fixed = keep | {0} | set(range(len(short) - _KEPT, len(short)))
    telling = _telling(short)
    loose = sorted(
        (n for n in range(len(short)) if n not in fixed),
        key=lambda n: (n in telling, abs(n - middle)),
    )
    for count in range(len(loose) + 1):
        text = _with_gaps(short, set(loose[:count]))
        if len(text) <= most:
            break
    return text


def _with_gaps(short: Sequence[str], gone: set[int]) -> str:
    out: list[str] = []
    for left_out, run in groupby(range(len(short)), gone.__contains__):
        places = list(run)
        out += [_GAP.format(len(places))] if left_out else [short[n] for n in places]
    return "\n".join(out)
