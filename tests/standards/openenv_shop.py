"""Environments of the real OpenEnv SDK in one process: `python openenv_shop.py PORT`. At / a shop
with MCP tools and the Task API, one of whose splits has tasks that are wrong; at /guessing a number
to guess by an action of its own, without tasks; at /lying a shop whose splits have bad names. Some
things are bad to buy."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

WANTED = {
    "train": ["pen", "cup", "hat"],
    "test": ["key", "nut"],
    "odd": ["over", "nameless", "random"],
}


class Shop(MCPEnvironment):
    """Buying the wanted thing ends the episode with 1; another one costs 0.25."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp: Any = FastMCP("shop")
        self.wanted, self.earned, self.bought = "", None, False

        @mcp.tool
        def prices() -> str:
            """The price of each thing."""
            return str(random.random()) if self.wanted == "random" else "pen 1, cup 2"

        @mcp.tool
        def buy(thing: str) -> str:
            """Buy a thing."""
            if thing == "slow":
                time.sleep(60)
            if thing == "dead":
                os._exit(1)
            if thing == "huge":
                return "x" * (5 << 20)
            if thing == "none":
                raise ValueError("there is none")
            self.bought = thing == self.wanted
            self.earned = (
                1.0 if self.bought else {"high": 7.0, "nan": float("nan")}.get(thing, -0.25)
            )
            return f"You have a {thing}."

        self.misname = lambda: mcp.tool(name="x" * 80)(lambda: "")
        super().__init__(mcp)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **task: Any
    ) -> Observation:
        self.wanted = WANTED[task["split"]][task["index"]]
        self.earned, self.bought = None, False
        if self.wanted == "nameless":
            self.misname()
        text = f"Buy a {self.wanted}."
        return Observation(done=self.wanted == "over", reward=None, metadata={"message": text})

    async def step_async(self, action: Action, timeout_s: Any = None, **more: Any) -> Observation:
        self.earned = None
        seen = await super().step_async(action, timeout_s=timeout_s, **more)
        if isinstance(action, CallToolAction):
            assert isinstance(seen, CallToolObservation)
            return seen.model_copy(update={"reward": self.earned, "done": self.bought})
        return seen

    def _step_impl(self, action: Action, timeout_s: Any = None, **more: Any) -> Observation:
        return Observation(metadata={"error": "no such action"})

    @property
    def state(self) -> State:
        return State()

    def list_splits(self) -> list[Any]:
        return list(WANTED)

    def list_tasks(self, split: str) -> list[Any]:
        return list(WANTED[split])

    def num_tasks(self, split: str) -> int:
        return len(WANTED[split])

    def get_task(self, split: str, index: int) -> Any:
        return {"thing": WANTED[split][index]}

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[Any]:
        return [{"thing": thing} for thing in WANTED[split][start:stop]]


class Guess(Action):
    number: int


class Seen(Observation):
    text: str = ""


class Guessing(Environment[Guess, Seen, State]):
    """A number from 0 to 3, which the seed gives; each guess is rewarded by how near it is."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Seen:
        self.number = (seed or 0) % 4
        return Seen(text="Guess a number from 0 to 3.")

    def step(self, action: Guess, timeout_s: Any = None, **more: Any) -> Seen:
        right = action.number == self.number
        return Seen(text="Right." if right else "Wrong.", reward=float(right) / 2, done=right)

    @property
    def state(self) -> State:
        return State()


class Lying(Shop):
    def list_splits(self) -> list[Any]:
        return ["train", "../test"]


def app(environment: Any, action: Any, observation: Any, name: str) -> Any:
    return create_fastapi_app(
        environment, action, observation, max_concurrent_envs=8, env_name=name
    )


shop = app(Shop, Action, Observation, "shop")
shop.mount("/guessing", app(Guessing, Guess, Seen, "guessing"))
shop.mount("/lying", app(Lying, Action, Observation, "lying"))
uvicorn.run(shop, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
