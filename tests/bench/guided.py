"""Calls that are held to the tools at hand while they are sampled, beside calls that are not.

    python tests/bench/guided.py --model FOLDER --agent RUN env=bfcl policy.max_turns=40

Plays development tasks greedily twice: as the agent writes by itself, and with a guide (llguidance)
that leaves it free until it opens a call, and then only allows the tools of the episode and the
arguments that their schemas allow. Prints what `calls.py` counts. Settings of the world are a
run's.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calls import HEAD, row

from trace_bench.core.beginning import read_beginning
from trace_bench.core.types import AgentSpec, Trajectory
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites, tasks_of
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.answer import Guide, Guides
from trace_bench.settings.compose import compose
from trace_bench.tiny.tasks import world_of

if TYPE_CHECKING:
    from torch import Tensor


class Opened:
    """Allows everything until the turn opens a call, which is then one of these functions'."""

    def __init__(self, policy: Guided, functions: list[dict[str, Any]]) -> None:
        self.policy, self.functions = policy, functions
        self.begin = policy.chat.calls.begin
        self.ids: list[int] = []
        self.guide: Guide | None = None

    def allowed(self, logits: Tensor) -> Tensor:
        import torch

        if self.guide is None:
            return torch.ones_like(logits, dtype=torch.bool)
        return self.guide.allowed(logits)

    def take(self, token: int) -> None:
        if self.guide is not None:
            self.guide.take(token)
            return
        self.ids.append(token)
        text = self.policy.chat.tokenizer.decode(self.ids)
        if self.begin in text:
            guide = self.policy.guides.call(self.functions)
            tail = text[text.index(self.begin) :]
            for read in self.policy.chat.tokenizer.encode(tail, add_special_tokens=False):
                guide.take(read)
            self.guide = guide


class Guided(LocalPolicy):
    """Every turn is guided once it opens a call."""

    def submit(self, requests: Any, guides: Any = None) -> None:
        for request in requests:  # only an episode's first has its tools
            if request.tools:
                self.functions[request.episode] = [tool["function"] for tool in request.tools]
        held = {r.episode: Opened(self, self.functions[r.episode]) for r in requests}
        super().submit(requests, held)

    @cached_property
    def guides(self) -> Guides:
        return Guides(self.chat, self.vocab)

    @cached_property
    def functions(self) -> dict[int, list[dict[str, Any]]]:
        return {}


KINDS: dict[str, type[LocalPolicy]] = {"free": LocalPolicy, "guided": Guided}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--agent", type=Path)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    given, settings = parser.parse_known_args(arguments)
    agent = AgentSpec(model=given.model)
    if given.agent is not None:
        agent = read_beginning(given.agent).agent
    with world_of(compose(["method=base", *settings])) as world:
        tasks = tuple(tasks_of(world.suite, world.dev)[: given.tasks])
        print(HEAD)
        for kind in given.kinds:
            policy = KINDS[kind](given.model, batch=20, context=given.context)
            batch = EpisodeBatch(agent, tasks, tuple(range(len(tasks))), 0.0)
            began = time.monotonic()
            player = Player(policy, Suites(world.suite), world.max_turns, world.max_tokens)
            played: list[Trajectory] = player.play(batch)
            took = f"{time.monotonic() - began:.0f} s"
            print(row(kind, took, played), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
