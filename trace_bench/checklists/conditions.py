"""Conditions that a program can check in a step of the agent: an item's `extra["check"]`.

{"call": NAME, "arguments": {...}}  it calls the tool with these arguments and gets no error;
                                    only the arguments that are listed are compared
{"tell": TEXT, "likeness": 1.0}     it answers the user in these words: the longest common
                                    subsequence of words, as F measure, is at least `likeness`
{"tell_all": [TEXT, ...]}           its answer contains each of the texts (case ignored)
{"ask": true}                       it asks the user something
{"answer": true}                    it answers the user without a call
{"silent": true}                    the same, and no step of the turn has a call
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.checklists.talk import Step, is_error, plain
from trace_bench.core.errors import UserError

KINDS = ("call", "tell", "tell_all", "ask", "answer", "silent")
_WORD = re.compile(r"[a-z0-9]+")
_LONGEST = 400  # words that are compared


def fault_of(check: Any) -> str | None:
    """What is wrong with a condition; None if it can be checked."""
    if not isinstance(check, Mapping):
        return f"it is {check!r:.60}, no object"
    kinds = [kind for kind in KINDS if kind in check]
    if len(kinds) != 1:
        return f"it must have exactly one of {', '.join(KINDS)}"
    kind, value = kinds[0], check[kinds[0]]
    if kind in ("call", "tell") and not isinstance(value, str):
        return f"{kind} must be a text"
    if kind == "call" and not isinstance(check.get("arguments", {}), Mapping):
        return "arguments must be an object"
    if kind == "tell_all" and not (
        isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    ):
        return "tell_all must be a list of texts"
    if kind == "tell" and not _is_share(check.get("likeness", 1.0)):
        return "likeness must be a number from 0 to 1"
    return None


def check_of(extra: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """An item's condition. Raises UserError if it has none that can be checked."""
    check = extra.get("check")
    if (fault := fault_of(check)) is not None or not isinstance(check, Mapping):
        raise UserError(
            f"{where} has no condition that a program can check ({fault}). Set "
            "`llm.judge.by=endpoint` for a model as the judge, or take other recordings."
        )
    return check


def holds(check: Mapping[str, Any], steps: Sequence[Step]) -> bool:
    """Whether the last of a turn's steps so far satisfies the condition."""
    now = steps[-1]
    if "call" in check:
        return _called(check, now)
    reply = now.reply
    if not reply:
        return False
    if "tell" in check:
        return likeness(check["tell"], reply) >= float(check.get("likeness", 1.0)) - 1e-9
    if "tell_all" in check:
        said = reply.lower().replace(",", "")
        return all(text.lower().replace(",", "") in said for text in check["tell_all"])
    if "ask" in check:
        return "?" in reply
    return "answer" in check or not any(step.calls for step in steps)


def _called(check: Mapping[str, Any], step: Step) -> bool:
    wanted = plain(check.get("arguments", {}))
    for place, call in enumerate(step.calls):
        if call is None or call.name != check["call"]:
            continue
        given = plain(call.arguments)
        if any(key not in given or given[key] != value for key, value in wanted.items()):
            continue
        if place < len(step.results) and not is_error(step.results[place]):
            return True
    return False


def likeness(target: str, text: str) -> float:
    """F measure of the longest common subsequence of words, 0 to 1 (Rouge-L without stemming);
    texts without words are alike if they are equal."""
    ours, theirs = (_WORD.findall(t.lower())[:_LONGEST] for t in (target, text))
    if not ours or not theirs:
        return float(target.strip() == text.strip())
    if ours == theirs:
        return 1.0
    row = [0] * (len(theirs) + 1)
    for word in ours:
        diagonal = 0
        for n, other in enumerate(theirs, start=1):
            kept = row[n]
            row[n] = diagonal + 1 if word == other else max(row[n], row[n - 1])
            diagonal = kept
    return 2 * row[-1] / (len(ours) + len(theirs))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
