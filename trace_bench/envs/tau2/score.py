"""τ² scoring, as in the port's scorers: database hash x communicated information (airline, retail);
environment assertions x actions if the reward basis includes them (telecom). Assertions in natural
language are not scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.types import Milestone, Score
from trace_bench.envs.tau2.world import AGENT, USER, Toolbox, World, environment

NOT_ON_THE_DATABASE = ("calculate", "transfer_to_human_agents")


@dataclass(frozen=True)
class Call:
    """A tool call made by the agent or the user."""

    side: str
    name: str
    arguments: Mapping[str, Any]


def score(
    record: Mapping[str, Any], world: World, sent: Sequence[str], calls: Sequence[Call], gold: str
) -> Score:
    """The episode's score: all milestones must be met. `sent`: the agent's messages to the user;
    `gold`: how the task's own actions change the database ("" for telecom)."""
    criteria = record.get("evaluation_criteria") or {}
    missing = untold(criteria, sent)
    if world.toolbox.data.domain == "telecom":
        holds = world.run(_assertions_hold, criteria)
        milestones = [*_actions(criteria, calls), _milestone("the environment is as wanted", holds)]
        parts = {"actions": all(m.hit for m in milestones[:-1]), "environment": holds}
    else:
        changed = world.changes() == gold
        parts = {"database": changed, "told": not missing}
        milestones = [_milestone("the database is changed as wanted", changed)]
        milestones += [
            _milestone(f"the user is told {info!r}", info not in missing, tells=info)
            for info in criteria.get("communicate_info") or ()
        ]
    success = all(parts.values())
    details = {"parts": parts, "untold": missing}
    return Score(float(success), success, details, tuple(milestones))


def _milestone(name: str, hit: bool, tells: str | None = None) -> Milestone:
    return Milestone(name, float(hit), hit, tells=tells)


def untold(criteria: Mapping[str, Any], sent: Sequence[str]) -> list[str]:
    """Required information that occurs in none of the agent's messages (ignoring commas)."""
    text = "\n".join(sent).lower().replace(",", "")
    return [info for info in criteria.get("communicate_info") or () if info.lower() not in text]


def gold_changes(record: Mapping[str, Any], toolbox: Toolbox) -> str:
    """How the task's own actions change the database, including tool errors."""
    if toolbox.data.domain == "telecom":
        return ""
    world = toolbox.world(record)
    for action in (record.get("evaluation_criteria") or {}).get("actions") or ():
        if action["name"] not in NOT_ON_THE_DATABASE:
            world.run(_plain_call, toolbox.data.domain, action)
    return world.changes()


def _plain_call(domain: str, action: Mapping[str, Any]) -> None:
    """The toolkit's method itself, as the port's scorer calls it."""
    from inspect_ai.tool import ToolError

    from trace_bench.envs.tau2.world import kit

    try:
        getattr(kit(domain), action["name"])(**action["arguments"])
    except ToolError:
        return


def _assertions_hold(criteria: Mapping[str, Any]) -> bool:
    env = environment()
    for assertion in criteria.get("env_assertions") or ():
        tools = env.tools if assertion["env_type"] == AGENT else env.user_tools
        found = getattr(tools, assertion["func_name"])(**assertion["arguments"])
        if found != assertion.get("assert_value", True):
            return False
    return True


def _actions(criteria: Mapping[str, Any], calls: Sequence[Call]) -> list[Milestone]:
    """Milestones for the task's own actions, if the score depends on them."""
    if "ACTION" not in (criteria.get("reward_basis") or ()):
        return []
    return [_milestone(_name(a), _done(a, calls)) for a in criteria.get("actions") or ()]


def _name(action: Mapping[str, Any]) -> str:
    side = "the user's " if action.get("requestor") == USER else ""
    arguments = ", ".join(f"{key}={value!r}" for key, value in action["arguments"].items())
    return f"{side}call {action['name']}({arguments})"


def _done(action: Mapping[str, Any], calls: Sequence[Call]) -> bool:
    from inspect_evals.tau2.utils import deep_equal_unordered

    side = USER if action.get("requestor") == USER else AGENT
    compared = action.get("compare_args")
    for call in calls:
        if call.side != side or call.name != action["name"]:
            continue
        if action["name"] == "transfer_to_human_agents":
            return True
        keys = compared if compared is not None else {*call.arguments, *action["arguments"]}
        ours = {key: call.arguments.get(key) for key in keys}
        if deep_equal_unordered(ours, {key: action["arguments"].get(key) for key in keys}):
            return True
    return False
