"""Judges: which items of a turn a step of the agent satisfies, and one episode's checklists as they
are worked off.

A program can check an item that has a condition, its `extra_info["check"]`:

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
from dataclasses import dataclass
from typing import Any, Protocol

from trace_bench.checklists.items import CALLS, RESULTS, Checklist, Item
from trace_bench.checklists.talk import AgentStep, UserTurn, is_error, plain
from trace_bench.core.errors import UserError
from trace_bench.core.store import canonical, stable_seed
from trace_bench.core.types import Check, Message, Share

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
    texts = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    if kind == "tell_all" and not texts:
        return "tell_all must be a list of texts"
    share = check.get("likeness", 1.0)
    if kind == "tell" and not (type(share) in (int, float) and 0 <= share <= 1):
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


def holds(check: Mapping[str, Any], steps: Sequence[AgentStep]) -> bool:
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


def _called(check: Mapping[str, Any], step: AgentStep) -> bool:
    wanted = plain(check.get("arguments", {}))
    for call, result in zip(step.calls, step.results, strict=False):
        if call is None or call.name != check["call"] or is_error(result):
            continue
        arguments = plain(call.arguments)
        if all(key in arguments and arguments[key] == value for key, value in wanted.items()):
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


@dataclass(frozen=True)
class Scene:
    """What a judge may look at. `task`: the dialogue's name; `before`: all messages before this
    turn of the user; `turn`: the turn so far; its last step is the one to judge."""

    task: str
    before: tuple[Message, ...]
    turn: UserTurn

    @property
    def step(self) -> AgentStep:
        return self.turn.steps[-1]


class Judge(Protocol):
    """The ids of those items that the scene's last step satisfies. Raises EpisodeError at the
    boundary JUDGE if there is no verdict: the episode is void."""

    def satisfied(self, items: Sequence[Item], scene: Scene) -> frozenset[str]: ...


class ProgramJudge:
    """The items' own conditions, exactly."""

    def satisfied(self, items: Sequence[Item], scene: Scene) -> frozenset[str]:
        checks = {i.id: check_of(i.extra_info, f"{scene.task}: item {i.id}") for i in items}
        return frozenset(name for name, c in checks.items() if holds(c, scene.turn.steps))


@dataclass(frozen=True)
class Errors:
    """Set error rates of a judge, for experiments."""

    misses: Share = 0.0
    """Set error rate of the judge, for each verdict: satisfied items denied."""
    alarms: Share = 0.0
    """Set error rate of the judge, for each verdict: unsatisfied items affirmed."""
    correlated: bool = False
    """One draw decides for all verdicts of an episode (of those that begin alike)."""

    @property
    def any(self) -> bool:
        return self.misses > 0 or self.alarms > 0


class ErringJudge:
    """Another judge's verdicts with errors. Its draws follow from `seed`, the task, and the
    conversation: the same conversation gets the same verdicts."""

    def __init__(self, inner: Judge, errors: Errors, seed: int) -> None:
        self._inner, self._errors, self._seed = inner, errors, seed

    def satisfied(self, items: Sequence[Item], scene: Scene) -> frozenset[str]:
        right = self._inner.satisfied(items, scene)
        said = self._said(scene)
        affirmed = set()
        for item in items:
            parts = () if self._errors.correlated else (item.id,)
            draw = stable_seed(self._seed, "judge", scene.task, said, *parts) / 2**63
            met = item.id in right
            if met != (draw < (self._errors.misses if met else self._errors.alarms)):
                affirmed.add(item.id)
        return frozenset(affirmed)

    def _said(self, scene: Scene) -> str:
        """What the draw depends on: everything so far, or only the agent's first message."""
        spoken = [m for m in scene.before if m.get("role") == "assistant"]
        spoken += [step.message for step in scene.turn.steps]
        out = []  # without what differs between equal messages, such as the ids of calls
        for message in spoken[:1] if self._errors.correlated else spoken:
            calls = message.get("tool_calls")
            listed = calls if isinstance(calls, list | tuple) else ()
            functions = [call.get("function") for call in listed if isinstance(call, Mapping)]
            out.append([str(message.get("content") or ""), *map(canonical, functions)])
        return canonical(out)


class ChecklistProgress:
    """`checklists`: the variants of one dialogue, each with a verdict of its own. An item stays
    satisfied. Every step is judged when it is made, so an episode that is cut off in the middle of
    a turn has been judged on all that happened in it."""

    def __init__(self, checklists: Sequence[Checklist], judge: Judge) -> None:
        self._variants, self._judge = list(checklists), judge
        self._met: dict[tuple[int, int, str], int] = {}  # (variant, turn, item) -> step

    def judge(self, turn: int, step: int, scene: Scene) -> None:
        """Judges the episode's `step`-th step (from 0), made in the user's `turn`. Raises
        EpisodeError if there is no verdict."""
        # After a malformed call, the items about calls and their results fail without a judge.
        failed = (CALLS, RESULTS) if scene.step.malformed else ()
        for variant, checklist in enumerate(self._variants):
            asked = [
                item
                for item in checklist.turns[turn]
                if (variant, turn, item.id) not in self._met and item.focus_on not in failed
            ]
            for name in self._judge.satisfied(asked, scene) if asked else ():
                self._met[variant, turn, name] = step

    def goes_on(self, turn: int) -> bool:
        """Whether the user goes on: most of the variants have all required items satisfied."""
        agreed = [
            all((v, turn, i.id) in self._met for i in c.turns[turn] if i.required_for_next_turn)
            for v, c in enumerate(self._variants)
        ]
        return 2 * sum(agreed) > len(agreed)

    def checks(self) -> tuple[Check, ...]:
        """All items as the score carries them, each variant with its share of the weight."""
        made, count = [], len(self._variants)
        for variant, checklist in enumerate(self._variants):
            prefix = "" if count == 1 else f"{variant}:"
            for turn, items in enumerate(checklist.turns):
                for item in items:
                    after = tuple(prefix + name for name in item.dependence)
                    step = self._met.get((variant, turn, item.id))
                    made.append(Check(turn, prefix + item.id, item.weight / count, after, step))
        return tuple(made)
