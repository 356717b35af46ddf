"""τ²-bench's tasks in splits. Variant: the domain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.types import Message, Task
from trace_bench.envs.registry import Ask
from trace_bench.envs.tau2.data import DOMAINS, DomainData, load
from trace_bench.envs.tau2.env import Tau2Env
from trace_bench.envs.tau2.score import gold_changes
from trace_bench.envs.tau2.user import PROMPT_VERSION
from trace_bench.envs.tau2.world import Toolbox

USERS = ("scripted", "llm")


class _Gold(dict[str, str]):
    """How tasks should change their databases, each found out when it is asked for."""

    def __init__(self, data: DomainData, toolbox: Toolbox) -> None:
        self._data, self._toolbox = data, toolbox

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = gold_changes(self._data.records[key], self._toolbox)
        return self[key]


class Tau2Suite:
    """`protocols.Suite`. `asks`: whether episodes wait for somebody's answers."""

    name = "tau2"

    def __init__(self, domain: str, user: str, solo: bool, ask: Ask | None) -> None:
        if user not in USERS:
            raise unknown("user", user, USERS, "llm.user.by")
        if user == "llm" and ask is None:
            raise UserError("a user played by a model needs somebody who answers; see `llm.user`.")
        if solo and domain != "telecom":
            raise UserError(f"env.solo=true exists for telecom only, not for {domain}.")
        self.variant, self.asks = domain, user == "llm"
        self._user, self._solo, self._ask = user, solo, ask or _nobody
        self._data = load(domain)

    @cached_property
    def _toolbox(self) -> Toolbox:
        return Toolbox(self._data)

    @cached_property
    def _gold(self) -> _Gold:
        return _Gold(self._data, self._toolbox)

    def about(self) -> dict[str, Any]:
        """What every run is marked with."""
        return {
            "data": self._data.revision,
            "user": self._user,
            "user_prompt": PROMPT_VERSION,
            "solo": self._solo,
        }

    def splits(self) -> Sequence[str]:
        """The benchmark's own, and its train split in two: `fit` to train on, `dev` to tune on."""
        return [*self._data.splits, "fit", "dev"]

    def tasks(self, split: str) -> Sequence[Task]:
        if split in self._data.splits:
            ids = list(self._data.splits[split])
        elif split in ("fit", "dev"):
            train = list(self._data.splits["train"])
            ids = [t for n, t in enumerate(train) if (n % 3 == 2) == (split == "dev")]
        else:
            raise unknown(
                "split", split, self.splits(), "env.train_split, env.dev_split or evaluation.split"
            )
        return [self._task(split, n, name) for n, name in enumerate(ids)]

    def task(self, task_id: str) -> Task:
        for split in self.splits():
            if task_id.startswith(f"tau2/{self.variant}/{split}/"):
                for task in self.tasks(split):
                    if task.id == task_id:
                        return task
        raise UserError(f"no task {task_id!r} in tau2/{self.variant}.")

    def make(self) -> Tau2Env:
        return Tau2Env(self._toolbox, self._gold, self._user, self._solo, self._ask)

    def reference(self, task: Task) -> Sequence[Message]:
        """The task's own actions in order: the agent's as tool calls, a message to the user where
        they must act; at the end all that has to be told."""
        criteria = task.data["record"].get("evaluation_criteria") or {}
        out: list[Message] = []
        before = None
        for n, action in enumerate(criteria.get("actions") or ()):
            side = action.get("requestor", "assistant")
            if side == "assistant" or self._solo:
                out.append(_call(f"gold_{n}", action["name"], action["arguments"]))
            elif before != "user":
                out.append(
                    {"role": "assistant", "content": "Please do what is needed on your side."}
                )
            before = side
        if self._solo:
            return [*out, _call("gold_done", "done", {})]
        told = " ".join(criteria.get("communicate_info") or ())
        return [*out, {"role": "assistant", "content": f"That is done. {told}".strip()}]

    def _task(self, split: str, number: int, name: str) -> Task:
        data = {"record": self._data.records[name]}
        return Task(f"tau2/{self.variant}/{split}/{number:04d}", "tau2", split, number, data)


def domain_suite(
    domain: str, augmentation: str, options: Mapping[str, str], ask: Ask | None
) -> Tau2Suite:
    """For the registry. Options: `user` (scripted or llm), `solo` (true or false)."""
    if augmentation != "none":
        raise UserError(f"env.augmentation={augmentation} exists for toolsandbox only; use none.")
    if domain not in DOMAINS:
        raise unknown("domain", domain, DOMAINS, "env.domain")
    solo = options.get("solo", "false") == "true"
    return Tau2Suite(domain, options.get("user", "scripted"), solo, ask)


def airline(augmentation: str, options: Mapping[str, str], ask: Ask | None) -> Tau2Suite:
    return domain_suite("airline", augmentation, options, ask)


def retail(augmentation: str, options: Mapping[str, str], ask: Ask | None) -> Tau2Suite:
    return domain_suite("retail", augmentation, options, ask)


def telecom(augmentation: str, options: Mapping[str, str], ask: Ask | None) -> Tau2Suite:
    return domain_suite("telecom", augmentation, options, ask)


def _call(call_id: str, name: str, arguments: Mapping[str, Any]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _nobody(role: str, messages: Sequence[Mapping[str, Any]]) -> str:
    raise RuntimeError(f"nobody answers for {role}")
