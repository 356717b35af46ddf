"""τ² scoring, as the port's scorers define it: database hash x information told (airline, retail);
environment assertions x actions where the basis has them (telecom). Assertions in natural language
are not scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.types import Score
from trace_bench.envs.tau2.world import AGENT, USER, Toolbox, World, environment

NOT_ON_THE_DATABASE = ("calculate", "transfer_to_human_agents")


@dataclass(frozen=True)
class Call:
    """A tool call that was made, by the agent or the user."""

    side: str
    name: str
    arguments: Mapping[str, Any]


def score(
    record: Mapping[str, Any], world: World, said: Sequence[str], calls: Sequence[Call], gold: str
) -> Score:
    """`said` is what the agent told the user, `gold` how the task's own actions change the database
    ("" for telecom)."""
    criteria = record.get("evaluation_criteria") or {}
    if world.toolbox.data.domain == "telecom":
        parts = {
            "actions": _actions_done(criteria, calls),
            "environment": world.run(_assertions_hold, criteria),
        }
    else:
        parts = {"database": world.changes() == gold, "told": not untold(criteria, said)}
    success = all(parts.values())
    return Score(float(success), success, {"parts": parts, "untold": untold(criteria, said)})


def untold(criteria: Mapping[str, Any], said: Sequence[str]) -> list[str]:
    """Required information that stands nowhere in the agent's messages (commas left out)."""
    text = "\n".join(said).lower().replace(",", "")
    return [info for info in criteria.get("communicate_info") or () if info.lower() not in text]


def gold_changes(record: Mapping[str, Any], toolbox: Toolbox) -> str:
    """How the task's own actions change the database; errors of tools are part of it."""
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


def _actions_done(criteria: Mapping[str, Any], calls: Sequence[Call]) -> bool:
    if "ACTION" not in (criteria.get("reward_basis") or ()):
        return True
    return all(_done(action, calls) for action in criteria.get("actions") or ())


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
