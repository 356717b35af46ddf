"""A taskset of the real verifiers (id `vf_shop`): the wanted thing alone is worth 1, among others a
half. The shop's toolset belongs to the episode, the price list to the taskset. Some things are bad
to buy; `kind` makes a taskset that cannot be played in process, or lies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["ShopTaskset"]
WANTED = {"train": ("pen", "cup", "hat"), "test": ("key", "nut"), "leak": ("nut", "pen")}


class ShopState(vf.State):
    bought: tuple[str, ...] = ()


class ShopData(vf.TaskData):
    thing: str
    kind: str


class ShopTools(vf.Toolset[vf.ToolsetConfig, ShopState]):
    TOOL_PREFIX = None

    async def setup_task(self, task: ShopData) -> None:
        self.kind = task.kind

    @vf.tool
    async def buy(self, thing: str) -> str:
        """Buy a thing."""
        if thing == "slow":
            await asyncio.sleep(60)
        if thing == "none":
            raise ValueError("there is none")
        self.state.bought = (*self.state.bought, thing)
        return "x" * (3 << 20) if thing == "huge" else f"You have {len(self.state.bought)} things."


class Prices(vf.Toolset[vf.SharedToolsetConfig, ShopState]):
    async def setup(self) -> None:
        self.looks = 0

    @vf.tool(name="list")
    def all(self, kind: str = "any") -> str:
        """What things cost."""
        self.looks += 1
        chance = f" {random.random()}" if kind == "odd" else ""
        return f"pen 1, cup 2, bought {len(self.state.bought)}{chance}"


class ShopTask(vf.Task[ShopData, ShopState, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [ShopTools(vf.ToolsetConfig())]

    @vf.reward(weight=0.5)
    async def bought(self, trace: vf.Trace) -> float:
        odd = {"nan": float("nan"), "high": 7.0}
        if "broken" in trace.state.bought:
            raise ZeroDivisionError("no things")
        return odd.get(trace.state.bought[-1] if trace.state.bought else "", 0.0) or float(
            self.data.thing in trace.state.bought
        )

    @vf.reward(weight=0.5)
    async def alone(self, task: ShopData, trace: vf.Trace) -> float:
        calls = [c.name for m in trace.assistant_messages for c in m.tool_calls or ()]
        assert len(trace.tool_messages) == len(calls)
        return float(trace.state.bought == (task.thing,))

    @vf.metric
    async def boxed(self, runtime: vf.Runtime) -> float:
        return 1.0

    @vf.stop
    def full(self, trace: vf.Trace) -> bool:
        return len(trace.state.bought) >= 3


class BoxTask(ShopTask):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.run(["true"], {})


class ContainerTask(ShopTask):
    NEEDS_CONTAINER = True


class ReadingTask(ShopTask):
    @vf.stop
    def read(self, request: vf.Request) -> bool:
        return False


class FarTask(ShopTask):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [ShopTools(vf.ToolsetConfig(url="http://127.0.0.1:9/mcp"))]


class JudgedTask(ShopTask):
    @vf.reward
    async def judged(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return 1.0


KINDS: dict[str, Any] = {"box": BoxTask, "container": ContainerTask, "reading": ReadingTask,
                         "far": FarTask, "judged": JudgedTask}  # fmt: skip


class ShopConfig(vf.TasksetConfig):
    split: str = "train"
    kind: str = ""


class ShopTaskset(vf.Taskset[ShopTask, ShopConfig]):
    INFINITE = True

    @classmethod
    def toolsets(cls, config: ShopConfig) -> list[vf.Toolset]:
        return [Prices(vf.SharedToolsetConfig())]

    def load(self) -> Iterator[ShopTask]:
        kind, split = self.config.kind, self.config.split
        things = WANTED.get(split) or (f"thing_{n}" for n in range(10**9))
        for thing in things:
            prompt: Any = None if kind == "user" else f"Buy a {thing}."
            if kind == "spoken":
                prompt = [vf.UserMessage(content="Buy."), vf.AssistantMessage(content="Yes?")]
            data = ShopData(
                prompt=prompt, system_prompt="You are in a shop.", thing=thing, kind=kind,
                image="shop:1" if kind == "image" else None,
            )  # fmt: skip
            yield KINDS.get(kind, ShopTask)(data, self.config.task)
