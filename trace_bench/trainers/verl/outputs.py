"""Episodes in verl's format: what of them is trained on, and what their advantages depend on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import numpy as np
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from trace_bench.core.types import Trajectory
from trace_bench.trainers.grpo import packed, seen
from trace_bench.trainers.record import exact, paid
from trace_bench.trainers.tree import Tokens, stretches, with_prompt
from trace_bench.trainers.verl.spec import CREDIT, NOTHING, JobSpec

Group = tuple[str, int]  # a group's call, and the index of its first episode


def outputs(trajectory: Trajectory, spec: JobSpec, iteration: int) -> list[Any]:
    """The episode in verl's format, a row for each of its training sequences. Empty for an episode
    that cannot be trained on."""
    score = trajectory.score
    if score is None or trajectory.failure is not None or not trajectory.turns:
        return []
    if not exact(trajectory):
        return []
    scores = (float(score.similarity), float(score.success))
    reward, credit = paid(trajectory, spec.reward), credit_of(trajectory, spec)
    turns = len(trajectory.turns)
    return [_row(t, iteration, credit, reward, turns, scores) for t in stretches(trajectory)]


def nothing(tokenizer: Any) -> Any:
    """A placeholder row without learning signal, recognized by its version, which no adapter has.
    If only such rows are left, their rewards are equal, so the advantages are zero."""
    end = tokenizer.eos_token_id
    return _row(Tokens(np.array([end, end]), np.array([1]), np.zeros(1)), NOTHING)


def _row(
    tokens: Tokens,
    version: int,
    credit: str = "",
    reward: float = 0.0,
    turns: int = 0,
    scores: tuple[float, float] = (0.0, 0.0),
) -> Any:
    """The first prompt, then everything after it with a mask. `scores`: (similarity, success)."""
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
            "reward_extra_info": {"similarity": scores[0], "success": scores[1]},
            "min_global_steps": version,
            "max_global_steps": version,
            CREDIT: credit,
        },
    )


def credit_of(trajectory: Trajectory, spec: JobSpec) -> str:
    """What an episode's advantages depend on besides its reward, as a text."""
    if spec.assignment is not None:
        return packed(trajectory)
    if not spec.trainer.algorithm.observations:
        return ""
    lengths = [len(turn.token_ids) for turn in trajectory.turns]
    return json.dumps({"lengths": lengths, "seen": seen(trajectory)})


class Prompts:
    """The first prompts of rollouts without a hint, after which those with one are trained on, as
    in `trainers.course`. verl runs all rollouts of a group in one process."""

    def __init__(self, hinted: int, size: int) -> None:
        self.hinted, self.size = hinted, size
        self._there: dict[Group, dict[int, tuple[int, ...]]] = {}
        self._found: dict[Group, asyncio.Future[tuple[int, ...]]] = {}

    async def without_hint(
        self, group: Group, member: int, answer: Awaitable[Trajectory]
    ) -> Trajectory | None:
        """The episode that `answer` brings as it is trained on: of the first members of a group
        after the prompt of the others, None if none of these has one. Raises as `answer` does."""
        if not self.hinted:
            return await answer
        if member >= self.hinted:
            prompt: tuple[int, ...] = ()
            try:
                trajectory = await answer
                prompt = trajectory.turns[0].prompt_ids if trajectory.turns else ()
            finally:  # others wait for it
                self._ended(group, member, prompt)
            return trajectory
        trajectory = await answer
        prompt = await self._of(group)
        return with_prompt(trajectory, prompt) if prompt and trajectory.turns else None

    def _ended(self, group: Group, member: int, prompt: tuple[int, ...]) -> None:
        there = self._there.setdefault(group, {})
        there[member] = prompt
        if len(there) == self.size - self.hinted:
            first = next((found for _, found in sorted(there.items()) if found), ())
            self._of(group).set_result(first)

    def _of(self, group: Group) -> asyncio.Future[tuple[int, ...]]:
        if group not in self._found:
            for old in [g for g in self._found if g[0] != group[0]]:  # earlier calls have ended
                self._found.pop(old)
                self._there.pop(old, None)
            self._found[group] = asyncio.get_running_loop().create_future()
        return self._found[group]
