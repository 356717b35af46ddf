"""Runs our episodes in verl's workers: verl creates an `EpisodeLoop` for each episode; all loops of
a process share one `EpisodePlayer`, which runs this project's own rollout code in its own thread.
Every episode is on disk before verl sees it, so that none runs twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import queue
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from trace_bench.core.decode import decode
from trace_bench.core.run_files import packed
from trace_bench.core.store import Lines, each_line
from trace_bench.core.types import Stored, Task, Trajectory
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.policies.chat import Chat
from trace_bench.trainers.job import paid, usable
from trace_bench.trainers.tree import Tokens, stretches
from trace_bench.trainers.verl.spec import CALL, FIRST, JOB_VARIABLE, NOTHING, JobSpec, StepFiles
from trace_bench.trainers.verl.tokens import TokenPolicy, TokenServers, resolve

DEADLINE = 600.0  # seconds for one turn of the agent
MOST = 2**16  # episodes at once: all that verl asks for


@dataclass(frozen=True)
class Wanted:
    """An episode that verl requests. `iteration`: its adapter's version."""

    call: str
    index: int
    iteration: int
    task: Task
    temperature: float
    answer: asyncio.Future[Trajectory]


class EpisodeLoop(AgentLoopBase):
    """Implements verl's interface. verl creates one for every episode, so it has no state; the base
    class's constructor is skipped, since it would build an unused tokenizer helper each time."""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **_: Any) -> None:
        self.rollout = trainer_config.config.actor_rollout_ref.rollout
        self.servers, self.tokenizer = server_manager, tokenizer

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """The episode as verl's outputs. An episode that cannot be trained on (failed, or without
        exact tokens) is returned as `nothing`, which `sampler.Sampler` removes, so that it does not
        count in its group's baseline.

        Raises only if verl's servers are lost: then no episode was run and verl marks the group as
        failed, and `sampler.Sampler` stops the iteration."""
        player = player_of(os.environ[JOB_VARIABLE])
        player.connect(self.servers, self.tokenizer, self.rollout.name, sampling_params)
        info, spec = row["extra_info"], player.spec
        answer: asyncio.Future[Trajectory] = asyncio.get_running_loop().create_future()
        wanted = Wanted(
            call=str(info[CALL]),
            index=int(info[FIRST]) + int(row["session_id"]),
            iteration=int(row["global_steps"]) - 1,
            task=decode(info["task"].encode(), Task),
            temperature=float(sampling_params["temperature"]),
            answer=answer,
        )
        player.ask(wanted)
        return outputs(await answer, spec, wanted.iteration) or [nothing(self.tokenizer)]


@functools.lru_cache(maxsize=1)
def player_of(folder: str) -> EpisodePlayer:
    """The process's only player, which keeps environments and sandboxes between episodes."""
    return EpisodePlayer(Path(folder))


class EpisodePlayer:
    """Runs the requested episodes: those of a call together, in the order in which they came, also
    those that come while others run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spec = folder, JobSpec.read(folder)
        mine = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}.jsonl"
        module, _, name = self.spec.suites.partition(":")
        make = getattr(importlib.import_module(module), name)
        self._suites = make(
            self.spec.settings, self.spec.run, folder / f"llm-{mine}", self.spec.sources
        )
        self._known = known_episodes(folder / "episodes", self.spec, StepFiles(folder).saved())
        self._played = Lines(folder / "episodes" / mine, Stored)
        self._asked: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        self._others: list[Wanted] = []  # of other calls than the one that runs
        self._policy: TokenPolicy | None = None  # of the call that runs
        self._chat: Chat | None = None
        self._servers: TokenServers | None = None
        self._thread: threading.Thread | None = None

    def connect(self, servers: Any, tokenizer: Any, name: str, sampling: Mapping[str, Any]) -> None:
        """Sets the servers that generate the turns; called with the first episode."""
        if self._thread is not None:
            return
        self._chat = Chat(tokenizer, self.spec.agent.model, self.spec.thinking)
        self._servers = TokenServers(
            generate=servers.generate,
            loop=asyncio.get_running_loop(),
            version=self.spec.version,
            context=self.spec.context,
            deadline=DEADLINE,
            seeded=name != "vllm",
            sampling={k: sampling[k] for k in ("top_p", "top_k") if k in sampling},
        )
        self._thread = threading.Thread(target=self._work, name="episodes", daemon=True)
        self._thread.start()

    def ask(self, ask: Wanted) -> None:
        self._asked.put(ask)
        if (policy := self._policy) is not None:
            policy.wake()

    def _work(self) -> None:
        while True:
            waiting = [*self._others, *self._now()] or [self._asked.get()]
            call = waiting[0].call
            self._others = [ask for ask in waiting if ask.call != call]
            self._play(call, [ask for ask in waiting if ask.call == call])

    def _now(self) -> list[Wanted]:
        """What has been asked for."""
        asks: list[Wanted] = []
        with contextlib.suppress(queue.Empty):
            while True:
                asks.append(self._asked.get_nowait())
        return asks

    def _play(self, call: str, asks: list[Wanted]) -> None:
        """Runs a call's episodes, and those that are asked for meanwhile."""
        assert self._chat is not None and self._servers is not None
        spec, iteration = self.spec, asks[0].iteration
        running: list[Wanted] = []

        def batch(these: Sequence[Wanted]) -> EpisodeBatch:
            """Those of which none is on disk; verl's servers would not give the same again."""
            missing = [ask for ask in these if not self._answered(ask)]
            running.extend(missing)
            return EpisodeBatch(
                spec.acting(iteration, self.folder.parent),
                tuple(ask.task for ask in missing),
                tuple(spec.episode_seed(call, ask.index) for ask in missing),
                asks[0].temperature,
                (spec.version(iteration),) * len(missing),
            )

        def more() -> EpisodeBatch | None:
            arrived = self._now()
            self._others += [ask for ask in arrived if ask.call != call]
            mine = [ask for ask in arrived if ask.call == call]
            return batch(mine) if mine else None

        def ended(place: int, trajectory: Trajectory) -> None:
            line = packed(Stored(call, running[place].index, trajectory))
            self._played.append(line, sync=True)  # verl trains on it next and may save the result
            resolve(running[place].answer, trajectory)

        self._policy = TokenPolicy(self._chat, self._servers, MOST, spec.thoughts)
        player = Player(self._policy, self._suites, spec.max_turns, spec.max_tokens)
        try:
            player.play(batch(asks), ended, more)
        except Exception as error:
            for ask in (*asks, *running):
                resolve(ask.answer, error)  # no effect on one that is answered
        finally:
            self._policy = None

    def _answered(self, ask: Wanted) -> bool:
        """Answers it from disk, if it ended before a kill."""
        stored = self._known.get(ask.call, {}).pop(ask.index, None)
        if stored is not None:
            resolve(ask.answer, stored)
        return stored is not None


def known_episodes(folder: Path, spec: JobSpec, first: int) -> dict[str, dict[int, Trajectory]]:
    """Stored episodes of the iterations from `first` on, by call and index. If an episode occurs
    twice, the first one counts, as in `Arrivals`."""
    stored: dict[str, dict[int, Trajectory]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in each_line(path, Stored):
            if spec.when(line.call) >= (first, 0):
                stored.setdefault(line.call, {}).setdefault(line.index, line.trajectory)
    return stored


def outputs(trajectory: Trajectory, spec: JobSpec, iteration: int) -> list[Any]:
    """The episode as verl's rows, one a training sequence. Empty if it cannot be trained on."""
    if not usable(trajectory) or not trajectory.turns:
        return []
    reward, turns = paid(trajectory, spec.reward), len(trajectory.turns)
    return [_row(t, iteration, reward, turns) for t in stretches(trajectory)]


def nothing(tokenizer: Any) -> Any:
    """A placeholder row without learning signal, recognized by its version, which no adapter has.
    If only such rows are left, their rewards are equal, so the advantages are zero."""
    end = tokenizer.eos_token_id
    return _row(Tokens(np.array([end, end]), np.array([1]), np.zeros(1)), NOTHING)


def _row(tokens: Tokens, version: int, reward: float = 0.0, turns: int = 0) -> Any:
    """The first prompt, then everything after it with a mask."""
    start = int(tokens.sampled[0])
    mask, logprobs = np.zeros(len(tokens.ids), np.int64), np.zeros(len(tokens.ids))
    mask[tokens.sampled], logprobs[tokens.sampled] = 1, tokens.logprobs
    return AgentLoopOutput(
        prompt_ids=tokens.ids[:start].tolist(),
        response_ids=tokens.ids[start:].tolist(),
        response_mask=mask[start:].tolist(),
        response_logprobs=logprobs[start:].tolist(),
        reward_score=reward,
        num_turns=turns,
        metrics=AgentLoopMetrics(),
        extra_fields={
            "reward_extra_info": {},
            "min_global_steps": version,
            "max_global_steps": version,
        },
    )
