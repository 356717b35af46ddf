"""τ² scoring, as in the benchmark's own evaluator: the product of the parts in the task's reward
basis. Tests compare it with hand-computed cases, and `tests/tau2_scores.py` with that evaluator.

What the benchmark asserts in natural language a model judges; the evaluator does the same with a
model and a wording of its own. Among the statements is a control that is true of no conversation. A
judge that affirms it says yes to everything, and the episode is lost to it; it is not asked again,
since a complaint would tell it which statement is the control."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.checklists.model_judge import LONGEST, cut, entries_in, verdicts_on
from trace_bench.checklists.talk import ToolCall
from trace_bench.core.chat import ask_until, opening_of
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.core.types import Boundary, Message, Milestone, Score
from trace_bench.envs import met
from trace_bench.envs.tau2.world import AGENT, USER, DomainTools, Tau2World, environment

SCORING = "2"  # of the rules below; recorded in every run. 1 scored episodes that were cut off
BASIS = ("DB", "COMMUNICATE")  # of tasks that name none
JUDGE_VERSION = "2"  # of the texts of the question; recorded in every run
TRIES = 3  # answers before the episode counts as lost
_WHY = 300  # characters of a reason, where the server holds the judge to them
_SYSTEM = (
    "You check the work of a customer service agent. You are shown a conversation with its tool "
    "calls, and numbered statements about it. Decide for each statement by itself whether it is "
    "true of the agent in this conversation. Answer with one JSON object and nothing else: "
    '{"verdicts": [{"statement": 1, "why": "one sentence", "true": false}]}, with one entry for '
    "each statement, in their order."
)


def basis(record: Mapping[str, Any]) -> Sequence[str]:
    """What a task's score depends on: DB, COMMUNICATE, ENV_ASSERTION, ACTION, NL_ASSERTION."""
    basis: Sequence[str] = criteria_of(record).get("reward_basis") or BASIS
    return basis


def criteria_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    criteria: Mapping[str, Any] = record.get("evaluation_criteria") or {}
    return criteria


def assertions(record: Mapping[str, Any]) -> list[str]:
    """The assertions in natural language that a task's score depends on."""
    if "NL_ASSERTION" not in basis(record):
        return []
    return list(criteria_of(record).get("nl_assertions") or ())


def score(
    record: Mapping[str, Any],
    gold: str,
    world: Tau2World,
    sent: Sequence[str],
    calls: Sequence[ToolCall],
    stopped: bool,
    judged: Mapping[str, bool] | None,
) -> Score:
    """The episode's score: 1 if all parts of the reward basis hold, else 0. `gold`: how the task's
    own actions change the database (see `gold_changes`). `sent`: every text of the agent, also
    beside tool calls. `calls`: the agent's and the user's. `stopped`: whether one of them ended the
    episode; what was cut off, by whatever limit, scores 0. `judged`: for each assertion in natural
    language, whether it holds; None if no model judges them."""
    criteria, rests_on = criteria_of(record), basis(record)
    missing = untold(criteria, sent)
    parts: dict[str, bool] = {}
    milestones: list[Milestone] = []
    if "ACTION" in rests_on:
        done = [met(_name(a), _done(a, calls)) for a in criteria.get("actions") or ()]
        parts["actions"] = all(m.hit for m in done)
        milestones += done
    if "ENV_ASSERTION" in rests_on:
        parts["environment"] = world.run(_assertions_hold, criteria)
        milestones.append(met("the environment is as wanted", parts["environment"]))
    if "DB" in rests_on:
        parts["database"] = world.changes() == gold
        milestones.append(met("the database is changed as wanted", parts["database"]))
    if "COMMUNICATE" in rests_on:
        parts["told"] = not missing
        milestones += [
            met(f"the user is told {info!r}", info not in missing, tells=info)
            for info in criteria.get("communicate_info") or ()
        ]
    if judged is not None:
        parts["judged"] = all(judged.values())
        milestones += [met(text, holds) for text, holds in judged.items()]
    success = stopped and all(parts.values())
    details: dict[str, Any] = {"parts": parts, "untold": missing}
    if not stopped:
        details["cut_off"] = "neither the agent nor the user ended it"
        milestones.append(met("the conversation is brought to its end", False))
    if judged is None and (left_out := assertions(record)):
        details["not_judged"] = len(left_out)
    return Score(float(success), success, details, tuple(milestones))


def untold(criteria: Mapping[str, Any], sent: Sequence[str]) -> list[str]:
    """Required information that occurs in none of the agent's texts (ignoring their commas)."""
    texts = [text.lower().replace(",", "") for text in sent]
    wanted = criteria.get("communicate_info") or ()
    return [info for info in wanted if not any(info.lower() in text for text in texts)]


def gold_changes(record: Mapping[str, Any], toolbox: DomainTools) -> str:
    """How the task's own actions change the database, including tool errors; "" for a task whose
    score does not depend on the database."""
    if "DB" not in basis(record):
        return ""
    world = toolbox.world(record)
    for action in criteria_of(record).get("actions") or ():
        world.call(action.get("requestor") or AGENT, action["name"], action["arguments"])
    return world.changes()


def _assertions_hold(criteria: Mapping[str, Any]) -> bool:
    env = environment()
    for assertion in criteria.get("env_assertions") or ():
        tools = env.tools if assertion["env_type"] == AGENT else env.user_tools
        result = getattr(tools, assertion["func_name"])(**assertion["arguments"])
        if result != assertion.get("assert_value", True):
            return False
    return True


def _name(action: Mapping[str, Any]) -> str:
    side = "the user's " if action.get("requestor") == USER else ""
    arguments = ", ".join(f"{key}={value!r}" for key, value in action["arguments"].items())
    return f"{side}call {action['name']}({arguments})"


def _done(action: Mapping[str, Any], calls: Sequence[ToolCall]) -> bool:
    """Whether the agent or the user made a call of this name with equal arguments: those that
    the action says to compare, or else those that the call has."""
    for call in calls:
        if call.name == action["name"]:
            compared = action.get("compare_args")
            keys = call.arguments.keys() if compared is None else set(compared)
            ours = {k: v for k, v in call.arguments.items() if k in keys}
            if ours == {k: v for k, v in action["arguments"].items() if k in keys}:
                return True
    return False


# -- assertions in natural language ---------------------------------------------------------------


def judge(ask: Ask, statements: Sequence[str], talk: Sequence[Message]) -> dict[str, bool]:
    """For each statement whether it holds, by the role `judge`. Raises EpisodeError if the model
    cannot be reached or gives no usable answer: such an episode has no score."""
    said = transcript(talk)
    control, place = _control(said, statements)
    stated = [*statements[:place], control, *statements[place:]]
    listed = "\n".join(f"{n}. {text}" for n, text in enumerate(stated, 1))
    question = f"Conversation:\n{said}\n\nStatements:\n{listed}"

    def read(answer: str) -> dict[str, bool]:
        verdicts = _verdicts(answer, len(stated))
        if verdicts.pop(place):
            raise EpisodeError(
                Boundary.JUDGE.value, "the judge affirms a statement that is never true"
            )
        return dict(zip(statements, verdicts, strict=True))

    why = {"why": {"type": "string", "maxLength": _WHY}, "true": {"type": "boolean"}}
    schema = verdicts_on("statement", len(stated), why)
    asked = opening_of(_SYSTEM, question)
    return ask_until(ask, "judge", asked, schema, read, tries=TRIES, longest=LONGEST)


def _control(said: str, statements: Sequence[str]) -> tuple[str, int]:
    """The control statement and its place; both follow from the question."""
    text = "\n".join([said, *statements])
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    place = int(digest[10:18], 16) % (len(statements) + 1)
    return f"The agent tells the user the reference number {digest[:10]}.", place


def _verdicts(answer: str, count: int) -> list[bool]:
    """The verdicts in their order. Raises ValueError for anything else."""
    verdicts = [entry.get("true") for entry in entries_in(answer, "statement", count)]
    if not all(isinstance(verdict, bool) for verdict in verdicts):
        raise ValueError("a verdict's `true` is neither true nor false")
    return [verdict is True for verdict in verdicts]


def transcript(talk: Sequence[Message]) -> str:
    """The conversation as lines of text, tool calls and their results included."""
    return "\n".join(line for message in talk for line in _lines(message))


def _lines(message: Mapping[str, Any]) -> list[str]:
    role = {"assistant": "agent", "tool": "tool result"}.get(message["role"], message["role"])
    content = message.get("content")
    lines = [f"{role}: {cut(content)}"] if isinstance(content, str) and content else []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            called = f"{function.get('name')}({function.get('arguments')})"
            lines.append(f"{role} calls {cut(called)}")
    return lines
