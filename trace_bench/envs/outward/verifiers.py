"""A suite as a taskset of verifiers 0.4 (v1). A module of yours that can be imported by its bare
name gives it the id that verifiers wants, here `phone_world`:

    # phone_world.py
    from trace_bench.envs.outward.verifiers import SuiteTaskset

    __all__ = ["SuiteTaskset"]

Every rollout has a tool server of its own, which runs its episode. The score is found by playing
the agent's recorded messages again: episodes are deterministic, so it is that of the first time.
"""

import json
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf  # not this module: imports are absolute

from trace_bench.core.decode import convert
from trace_bench.core.errors import unknown
from trace_bench.core.factory import load
from trace_bench.core.protocols import Suite, Synthesizes
from trace_bench.core.types import Score, Task, to_json
from trace_bench.envs.outward import USER, OutwardEpisode, function

PHONE_WORLD = "trace_bench.envs.toolsandbox.scenarios.suite:EmbeddedSuite"


class SuiteData(vf.TaskData):
    suite: str
    task: dict[str, Any]


class SuiteTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    """The tools at hand in one episode, by their own names, and the user."""

    TOOL_PREFIX = None

    async def setup_task(self, task: SuiteData) -> None:
        self.episode = OutwardEpisode(_suite(task.suite))
        _, self.tools = self.episode.begin(convert(task.task, Task))

    def register(self, mcp: Any) -> None:
        for tool in self.tools:
            mcp.add_tool(self._with_state(function(tool, self.episode.call)))
        mcp.add_tool(self._with_state(self.talk_to_user), name=USER)

    def talk_to_user(self, message: str) -> str:
        """Say something to the user and wait for the answer."""
        return self.episode.say(message)


class SuiteTask(vf.Task[SuiteData, vf.State, vf.TaskConfig]):
    @property
    def key(self) -> str:
        return str(self.data.id)

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [SuiteTools(vf.ToolsetConfig())]

    @vf.reward
    async def similarity(self, trace: vf.Trace) -> float:
        return self.score_of(trace).similarity

    @vf.metric
    async def success(self, trace: vf.Trace) -> float:
        return float(self.score_of(trace).success)

    def score_of(self, trace: vf.Trace) -> Score:
        """The suite's own score of what the agent did."""
        episode = OutwardEpisode(_suite(self.data.suite))
        episode.begin(convert(self.data.task, Task))
        for message in (n.message for n in trace.nodes if n.sampled):
            for call in message.tool_calls or ():
                if call.name == USER:
                    episode.say(_said(call.arguments))
                else:
                    episode.call(call.name, call.arguments)
            if not message.tool_calls:
                episode.say(message.content or "")
        score = episode.finish()
        episode.close()
        return score


class SuiteConfig(vf.TasksetConfig):
    suite: str = PHONE_WORLD
    """module:attribute of a suite, or of a class or function that makes one."""
    split: str = "train"
    capability: str | None = None
    """Generated tasks for this capability, instead of a split."""
    count: int = 256
    """How many of them."""


class SuiteTaskset(vf.Taskset[SuiteTask, SuiteConfig]):
    def load(self) -> Iterator[SuiteTask]:
        config, suite = self.config, _suite(self.config.suite)
        episode = OutwardEpisode(suite)
        for task in _tasks(suite, config):
            opening, _ = episode.begin(task)
            data = SuiteData(
                id=task.id, prompt=list(opening), suite=config.suite, task=to_json(task)
            )
            yield SuiteTask(data, config.task)
        episode.close()


def _suite(text: str) -> Suite:
    found = load(text, "suite")
    made: Suite = found.adopted(found.target if found.finished else found.target(), Suite)
    return made


def _tasks(suite: Suite, config: SuiteConfig) -> list[Task]:
    if config.capability is None:
        if config.split not in suite.splits():
            raise unknown("split", config.split, suite.splits(), "split")
        return list(suite.tasks(config.split))
    known = suite.capabilities() if isinstance(suite, Synthesizes) else ()
    if config.capability not in known:
        raise unknown("capability", config.capability, known, "capability")
    assert isinstance(suite, Synthesizes)
    return [suite.synthetic(config.capability, seed) for seed in range(config.count)]


def _said(arguments: str) -> str:
    """What a call of the user's tool says; nothing if it could not be read."""
    try:
        return str(json.loads(arguments)["message"])
    except (ValueError, LookupError, TypeError):
        return ""


if __name__ == "__main__":  # how verifiers starts a tool server
    SuiteTools.run()
