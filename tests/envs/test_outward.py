"""The project's suites in the trainers and hubs of others: the suite's own score there, too. What
needs their packages is skipped, in words, where they are not installed."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trace_bench.core.chat import make_tool
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import perform
from trace_bench.core.types import Message, Task
from trace_bench.envs.outward import OVER, USER, OutwardEpisode, function
from trace_bench.envs.outward.trl import environments, reward
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite

SUITE = EmbeddedSuite()
TASKS: list[Task] = [
    *SUITE.tasks("train")[:24],
    *(SUITE.synthetic(name, seed) for name in SUITE.capabilities() for seed in range(3)),
]


def own_score(task: Task, actions: Sequence[Message]) -> float:
    env = SUITE.make()
    score = perform(env, task, actions)[-1].score or env.score()
    return score.similarity


def idle(task: Task) -> list[Message]:
    return [{"role": "assistant", "content": "I do nothing."}]


@pytest.mark.parametrize("agent", [SUITE.reference, idle], ids=["reference", "idle"])
def test_trls_environments_give_the_suites_own_score(agent: Any) -> None:
    """A call is a method of the environment, and so is a message before the end."""
    rows, factories = environments(SUITE, TASKS)
    scores = []
    for task, row in zip(TASKS, rows, strict=True):
        env = factories[row["environment"]]()
        env.reset(**row)
        *before, last = agent(task)
        for message in before:
            for call in message.get("tool_calls", ()):
                method = getattr(env, call["function"]["name"])
                assert isinstance(method(**json.loads(call["function"]["arguments"])), str)
            if not message.get("tool_calls"):
                assert env.talk_to_user(message["content"]) != ""
        completion = [*before, last]
        assert not last.get("tool_calls"), "a solution ends with a message"
        scores += reward([completion], [env], **row)
    assert scores == [own_score(task, agent(task)) for task in TASKS]
    assert sum(scores) / len(scores) == 1.0 if agent == SUITE.reference else sum(scores) < 20


def test_every_set_of_tools_has_a_class_whose_methods_are_the_tools() -> None:
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    rows, factories = environments(SUITE, TASKS)
    assert 5 < len(factories) < len(TASKS) and {r["environment"] for r in rows} == set(factories)
    for task, row in zip(TASKS, rows, strict=True):
        kind = factories[row["environment"]]
        offered = SUITE.make().reset(task).tools
        public = {n for n, _ in inspect.getmembers(kind, inspect.isfunction) if n[0] != "_"}
        assert public == {USER, "reset", *(t["function"]["name"] for t in offered)}
    env = factories[rows[0]["environment"]]()
    for tool in SUITE.make().reset(TASKS[0]).tools:
        own = tool["function"]
        schema = transformers.get_json_schema(getattr(env, own["name"]))["function"]
        assert schema["description"] == own["description"]
        given, wanted = schema["parameters"], own["parameters"]
        assert sorted(given.get("required", ())) == sorted(wanted["required"])
        for name, one in wanted["properties"].items():
            assert given["properties"][name]["type"] == one["type"]


def test_an_episode_that_is_over_says_so_and_one_that_was_not_begun_is_an_error() -> None:
    episode = OutwardEpisode(SUITE)
    with pytest.raises(UserError, match="before it was begun"):
        episode.say("Hello")
    episode.begin(TASKS[0])
    assert "rror" in episode.call("no_such_tool", {}) and "rror" in episode.call("x", "{")
    for message in SUITE.reference(TASKS[0]):
        episode.say(message["content"]) if message["content"] else None
    while episode.say("Good bye") != OVER:
        pass
    assert episode.call("no_such_tool", {}) == OVER


def test_a_name_that_python_does_not_allow_is_refused() -> None:
    tool = {"function": {"name": "look up", "parameters": {"properties": {}}}}
    with pytest.raises(UserError, match="'look up' is no Python name"):
        function(tool, lambda name, arguments: "")
    optional = make_tool("f", "F.", a="integer?", b="string")
    made = function(optional, lambda name, arguments: json.dumps([name, arguments]))
    assert made("x") == '["f", {"b": "x"}]' and made(b="x", a=2) == '["f", {"b": "x", "a": 2}]'
    with pytest.raises(TypeError):
        made(a=1)


def test_trl_trains_a_step_in_it(tmp_path: Path) -> None:
    """The real package, with the tiny agent: one step, rewarded by the suite."""
    trl = pytest.importorskip("trl", reason="trains with TRL, which is not installed")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import chat_template_utils

    from trace_bench.tiny import MODEL_FOLDER

    tasks = [SUITE.synthetic("tells_the_user", seed) for seed in range(4)]
    rows, factories = environments(SUITE, tasks)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    tokenizer.chat_template = chat_template_utils.qwen3_chat_template  # one that TRL can parse
    trainer = trl.GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(MODEL_FOLDER),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        environment_factory=factories,
        processing_class=tokenizer,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=4,
            num_generations=2, max_completion_length=32, report_to=[], use_cpu=True,
            save_strategy="no", logging_steps=1, max_tool_calling_iterations=2,
        ),
    )  # fmt: skip
    trainer.train()
    [logged] = [entry for entry in trainer.state.log_history if "rewards/reward/mean" in entry]
    assert 0.0 <= logged["rewards/reward/mean"] <= 1.0


def test_verifiers_scores_a_taskset_as_the_suite_does() -> None:
    """The real package: its taskset, its tool server's tools, its trace and its scoring."""
    vf = pytest.importorskip("verifiers.v1", reason="needs verifiers, which is not installed")
    from mcp.server.mcpserver import MCPServer

    from trace_bench.envs.outward.verifiers import SuiteConfig, SuiteTaskset, SuiteTools

    config = SuiteConfig(capability="completes_all_parts", count=6)
    tasks = list(SuiteTaskset(config))
    assert len({t.key for t in tasks}) == 6

    async def scored(task: Any, actions: Sequence[Message]) -> Any:
        tools = SuiteTools(vf.ToolsetConfig())
        await tools.setup_task(task.data)
        server = MCPServer("tools")
        tools.register(server)
        messages: list[Any] = [vf.UserMessage(content="?")]
        for n, action in enumerate(actions):
            calls = action.get("tool_calls", ())
            if not calls and n + 1 < len(actions):
                said = json.dumps({"message": action["content"]})
                calls = [{"id": "u", "function": {"name": USER, "arguments": said}}]
            made = [vf.ToolCall(id=c["id"], name=c["function"]["name"],
                                arguments=c["function"]["arguments"]) for c in calls]  # fmt: skip
            text = None if made else action["content"]
            messages.append(vf.AssistantMessage(content=text, tool_calls=made or None))
            for call in made:
                result = await server.call_tool(call.name, json.loads(call.arguments))
                messages.append(vf.ToolMessage(tool_call_id=call.id, content=str(result)))
        nodes = [vf.MessageNode(parent=i - 1 if i else None, message=m,
                                sampled=m.role == "assistant")
                 for i, m in enumerate(messages)]  # fmt: skip
        trace = vf.Trace(
            task=vf.TraceTask(type="SuiteTask", data=task.data, key=task.key),
            agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=nodes,
        )  # fmt: skip
        await task.score(trace, None)
        return trace

    for number, task in enumerate(tasks):
        same = SUITE.synthetic("completes_all_parts", number)
        for actions in (SUITE.reference(same), idle(same)):
            trace = asyncio.run(scored(task, actions))
            assert trace.rewards["similarity"].score == own_score(same, actions)
        assert trace.metrics["success"] == 0.0
