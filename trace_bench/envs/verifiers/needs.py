"""What a taskset needs that is not here: a box, a harness, another model, a loop of its own."""

from __future__ import annotations

import inspect
from typing import Any

_BOX = ("image", "agent_user", "skills", "artifacts")  # of a task's data


def of_package(taskset: str) -> str | None:
    """What the package of that id brings to play it with. Raises as verifiers does for an unknown
    one."""
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils import loaders

    if (env := loaders.environment_class(taskset)) is not SingleAgentEnv:
        return f"a loop of its own ({env.__name__}.run)"
    if loaders.default_harness_id(taskset) == taskset:
        return "a harness of its own"
    return None


def of_tools(toolset: Any) -> str | None:
    """What a toolset needs beyond this process."""
    config = toolset.config
    if getattr(config, "url", None):
        return f"a tool server elsewhere ({config.url})"
    if getattr(config, "colocated", False) or config.runtime.type != "subprocess":
        return f"a box for the tools of {type(toolset).__name__}"
    return None


def of_class(task: Any) -> str | None:
    """What the tasks of that one's class and settings need."""
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.trace import Trace
    from verifiers.v1.utils.decorators import discover_decorated

    if task.NEEDS_CONTAINER:
        return "a container"
    steps = [getattr(task, name) for name in ("setup", "finalize") if _own(task, name)]
    for found in (*steps, *task.hooks("reward")):
        if _takes_runtime(found):
            return f"a box, in which {found.__name__} acts"
    if task.plugged_judges():
        return "a model that judges"
    stops = [f for f in task.hooks("stop") if hook_boundary(f, allow_trace=True) is not Trace]
    if stops or discover_decorated(task, "intercept"):
        return "the model's endpoint, whose requests it reads"
    return next(filter(None, map(of_tools, task.toolsets(task.config))), None)


def of_data(task: Any) -> str | None:
    """What one task needs besides."""
    data = task.data
    if boxes := [name for name in _BOX if getattr(data, name)]:
        return f"a box with its {boxes[0]}"
    if data.prompt is None:
        return "a user who opens the conversation"
    return None


def _own(task: Any, name: str) -> bool:
    from verifiers.v1.task import Task

    return getattr(type(task), name) is not getattr(Task, name)


def _takes_runtime(function: Any) -> bool:
    """Whether it cannot be called without a runtime."""
    found = inspect.signature(function).parameters.get("runtime")
    return found is not None and found.default is inspect.Parameter.empty
