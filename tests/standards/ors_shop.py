"""Environments of the real ORS SDK in one server: `python ors_shop.py PORT`. At `shop`, buying the
wanted thing ends the episode with 1, another one costs 0.25; one of its splits has tasks that are
wrong. The splits of `lying` have bad names. Some things are bad to buy."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

from ors import Environment, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel

WANTED = {"train": ["pen", "cup", "hat"], "test": ["key", "nut"],
          "odd": ["changing", "broken", "random"]}  # fmt: skip
asked = 0


class Thing(BaseModel):
    thing: str


def shown(text: str, reward: float | None = None, finished: bool = False) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class Shop(Environment):
    def get_prompt(self) -> Any:
        if self.task_spec["thing"] == "broken":
            raise RuntimeError("no prompt")
        return [TextBlock(text=f"Buy a {self.task_spec['thing']}.")]

    @classmethod
    def list_splits(cls) -> Any:
        return list(WANTED)

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        global asked
        asked += 1
        return [
            {"thing": thing, "asked": asked if thing == "changing" else 0}
            for thing in WANTED[split]
        ]

    @tool
    def prices(self) -> ToolOutput:
        """The price of each thing."""
        chance = self.task_spec["thing"] == "random"
        return shown(str(random.random()) if chance else "pen 1, cup 2")

    @tool
    def buy(self, given: Thing) -> ToolOutput:
        """Buy a thing."""
        thing = given.thing
        if thing == "slow":
            time.sleep(60)
        if thing == "dead":
            os._exit(1)
        if thing == "huge":
            return shown("x" * (5 << 20))
        if thing == "none":
            raise ValueError("there is none")
        right = thing == self.task_spec["thing"]
        odd = {"high": 7.0}
        return shown(f"You have a {thing}.", 1.0 if right else odd.get(thing, -0.25), right)


class Lying(Shop):
    @classmethod
    def list_splits(cls) -> Any:
        return ["train", "../test"]


Server([Shop, Lying]).run(host="127.0.0.1", port=int(sys.argv[1]))
