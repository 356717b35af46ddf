"""A suite as environments of TRL (`GRPOTrainer(environment_factory=...)`):

    suite = EmbeddedSuite()
    tasks = [suite.synthetic("recovers_from_errors", seed) for seed in range(256)]
    rows, factories = environments(suite, tasks)
    GRPOTrainer(model, reward_funcs=reward, train_dataset=Dataset.from_list(rows),
                environment_factory=factories, args=...)

A tool that is missing is part of a task, so there is a class for each set of tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trace_bench.core.protocols import Suite
from trace_bench.core.types import Message, Task
from trace_bench.envs.outward import OutwardEpisode, function


class Environment:
    """TRL's environment of one set of tools: `reset(**row)`, and every public method is a tool."""

    _suite: ClassVar[Suite]

    def __init__(self) -> None:
        self._episode = OutwardEpisode(self._suite)

    def reset(self, task: str, **row: Any) -> None:
        """Begins the episode of a row of `environments`."""
        self._episode.begin(self._suite.task(task))

    def talk_to_user(self, message: str) -> str:
        """Say something to the user and wait for the answer.

        Args:
            message: What to say.

        Returns:
            The answer.
        """
        return self._episode.say(message)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self._episode.call(name, arguments)


def environments(
    suite: Suite, tasks: Sequence[Task]
) -> tuple[list[dict[str, Any]], dict[str, type[Environment]]]:
    """For TRL: the rows of a training set (`prompt`, `task`, `environment`) and the environment
    classes by the name in the rows, one for each set of tools."""
    rows: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    made: dict[str, type[Environment]] = {}
    episode = OutwardEpisode(suite)
    for task in tasks:
        opening, tools = episode.begin(task)
        name = names.setdefault(json.dumps(tools, sort_keys=True), f"tools_{len(names)}")
        rows.append({"prompt": list(opening), "task": task.id, "environment": name})
        if name not in made:
            methods = {t["function"]["name"]: function(t, Environment._call, True) for t in tools}
            made[name] = type("SuiteEnvironment", (Environment,), {"_suite": suite, **methods})
    episode.close()
    return rows, made


def reward(
    completions: Sequence[Sequence[Message]], environments: Sequence[Environment], **row: Any
) -> list[float]:
    """For TRL's `reward_funcs`: the suite's similarity of every rollout. The agent's last text, if
    it comes without a call, goes to the user."""
    return [_score(c, e._episode) for c, e in zip(completions, environments, strict=True)]


def _score(completion: Sequence[Message], episode: OutwardEpisode) -> float:
    last = completion[-1] if completion else {"role": "none"}
    if last["role"] == "assistant" and not last.get("tool_calls"):
        episode.say(str(last.get("content") or ""))
    return episode.finish().similarity
