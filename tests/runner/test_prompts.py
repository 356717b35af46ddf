"""What the first prompts show before anything is played: tools that do not reach the model, and a
context that is too small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from toy import ToyEnv, ToySuite, toy_task

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.store import write_json
from trace_bench.core.types import Step, Task
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.scripted import ReferencePolicy
from trace_bench.runner.bench import LOOKED_AT, NO_TASK, check_prompts, try_turn
from trace_bench.runner.summary import selected_capabilities
from trace_bench.settings.schema import PolicySettings

TASKS = [toy_task(i) for i in range(40)]


class Broken(ToySuite):
    def make(self) -> Any:
        raise OSError("no desk")


def sizes(small_model: Path, tasks: Sequence[Task] = TASKS) -> list[int]:
    """Tokens of the first prompts of the tasks that are looked at."""
    policy = LocalPolicy(small_model, batch=1)
    steps = [ToyEnv().reset(task) for task in tasks[:: len(tasks) // LOOKED_AT][:LOOKED_AT]]
    return [policy.first_prompt(step.messages, step.tools) for step in steps]


def test_a_context_that_holds_no_first_prompt_is_refused(small_model: Path) -> None:
    policy = LocalPolicy(small_model, batch=1, context=min(sizes(small_model)))
    with pytest.raises(UserError, match=r"none of 8 first prompts .* `policy\.context`"):
        check_prompts(policy.context, policy.first_prompt, ToySuite(), TASKS)


def test_a_template_that_leaves_tools_out_is_refused(small_model: Path) -> None:
    policy = LocalPolicy(small_model, batch=1)
    bare = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    policy.chat.tokenizer.chat_template = bare
    with pytest.raises(UserError, match=r"leaves tools out of the prompt.*`model`"):
        check_prompts(policy.context, policy.first_prompt, ToySuite(), TASKS)
    assert policy.first_prompt(({"role": "user", "content": "Add 1."},), ()) > 0


def test_what_cannot_be_known_is_left_to_the_run(small_model: Path) -> None:
    class Odd(ToyEnv):
        def reset(self, task: Task) -> Step:
            return {"done": True}  # type: ignore[return-value]

    class Unfinished(ToySuite):
        def make(self) -> ToyEnv:
            return Odd()

    policy = LocalPolicy(small_model, batch=1, context=8)
    check_prompts(policy.context, policy.first_prompt, Broken(), TASKS)
    check_prompts(policy.context, policy.first_prompt, Unfinished(), TASKS)
    scripted = ReferencePolicy(ToySuite())
    check_prompts(scripted.context, scripted.first_prompt, ToySuite(), TASKS)


class Asked(ReferencePolicy):
    """Can be asked beforehand, and keeps what it was asked."""

    at_servers = True

    def try_turn(self, request: TurnRequest) -> str:
        self.request = request
        return "asked"


HOW = PolicySettings("asked", eval_temperature=0.5, max_tokens=7)


def test_the_first_turn_is_asked_for_with_the_shortest_prompt() -> None:
    def asked(suite: ToySuite) -> TurnRequest:
        policy = Asked(suite)
        assert try_turn(policy, suite, TASKS, HOW) == "asked"
        return policy.request

    found = asked(ToySuite())
    steps = [ToyEnv().reset(task) for task in TASKS[:: len(TASKS) // LOOKED_AT]]
    assert found.messages == min((s.messages for s in steps), key=lambda m: len(m[1]["content"]))
    assert (len(found.tools), found.temperature, found.max_tokens) == (1, 0.5, 7)

    class Asking(ToySuite):
        def asks_user(self) -> bool:
            return True

    for suite in (Asking(), Broken()):
        found = asked(suite)
        assert found.messages == (NO_TASK,) and found.tools == ()
    plain = ReferencePolicy(ToySuite())
    assert try_turn(plain, ToySuite(), TASKS, HOW) is None


def test_controls_that_nobody_trained_are_no_capabilities(tmp_path: Path) -> None:
    assert selected_capabilities(tmp_path) is None
    names = {"a": (True, False), "b": (True, True), "c": (False, False), "d": (True, True)}
    candidates = [
        {"name": name, "selected": selected, "control": control}
        for name, (selected, control) in names.items()
    ]
    report = {"candidates": candidates, "outcome": {"trained": ["d"]}}
    write_json(tmp_path / "capabilities.json", report)
    assert selected_capabilities(tmp_path) == ("a", "d")
