"""A score as the benchmark's own evaluator gives it: the product of the parts in the task's reward
basis. Tests compare it with hand-computed cases, and `tests/tau2_scores.py` with that evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.checklists.talk import ToolCall
from trace_bench.core.types import Milestone, Score
from trace_bench.envs import met
from trace_bench.envs.tau2.domains import AGENT, USER, environment
from trace_bench.envs.tau2.world import DomainTools, Tau2World

SCORING = "2"  # of these rules; recorded in every run. 1 scored episodes that were cut off
BASIS = ("DB", "COMMUNICATE")  # of tasks that name none


def basis(record: Mapping[str, Any]) -> Sequence[str]:
    """What a task's score depends on: DB, COMMUNICATE, ENV_ASSERTION, ACTION."""
    basis: Sequence[str] = criteria_of(record).get("reward_basis") or BASIS
    return basis


def criteria_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    criteria: Mapping[str, Any] = record.get("evaluation_criteria") or {}
    return criteria


def score(
    record: Mapping[str, Any],
    gold: str,
    world: Tau2World,
    sent: Sequence[str],
    calls: Sequence[ToolCall],
    stopped: bool,
) -> Score:
    """The episode's score: 1 if all parts of the reward basis hold, else 0. `gold`: how the task's
    own actions change the database (see `gold_changes`). `sent`: every text of the agent, also
    beside tool calls. `calls`: the agent's and the user's. `stopped`: whether one of them ended the
    episode; what was cut off, by whatever limit, scores 0."""
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
    success = stopped and all(parts.values())
    details: dict[str, Any] = {"parts": parts, "untold": missing}
    if not stopped:
        details["cut_off"] = "neither the agent nor the user ended it"
        milestones.append(met("the conversation is brought to its end", False))
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
