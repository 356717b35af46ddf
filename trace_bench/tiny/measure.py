"""The figures of the phone world's tiny agent and its card, and what other worlds' share with it.

    python -m trace_bench.tiny measure [folder]

The tasks are those of the development split, and synthetic ones for the figures of a single
capability. No run's rollout budget is involved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_bench.core.protocols import Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task, Trajectory, to_json
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.envs.toolsandbox.tools.augment import AUGMENTATIONS
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.policies.local import LocalPolicy
from trace_bench.results.statistics import wilson_interval
from trace_bench.tiny.demos import GUIDANCE, GUIDED, IRRELEVANT, RIGHT
from trace_bench.tiny.train import SHIPPED, SIZES

SAMPLES = 128  # synthetic tasks for each capability and each kind of guidance


@dataclass(frozen=True)
class ModelBench:
    """A model and the suite that it is measured on."""

    policy: LocalPolicy
    suite: Suite
    model: str
    max_turns: int = 20
    max_tokens: int = 96

    def play(
        self, tasks: Sequence[Task], label: str, *, temperature: float, guidance: str = ""
    ) -> list[Trajectory]:
        """One episode of each task; `label` names the stream of seeds."""
        agent = AgentSpec(model=self.model, prompt=guidance)
        seeds = tuple(stable_seed("measure", label, task.id, n) for n, task in enumerate(tasks))
        batch = EpisodeBatch(agent, tuple(tasks), seeds, temperature)
        suites = Suites(self.suite)
        return Player(self.policy, suites, self.max_turns, self.max_tokens).play(batch)


def measure(folder: Path, threads: int | None = None) -> dict[str, Any]:
    """All figures of the model in `folder`, JSON-safe. About a minute."""
    policy = LocalPolicy(folder, threads=threads)
    try:
        bench = ModelBench(policy, EmbeddedSuite(), str(folder))
        return {
            "dev": _dev(bench),
            "augmentations": _augmentations(bench),
            "capabilities": _capabilities(bench),
        }
    finally:
        policy.close()


def _dev(bench: ModelBench) -> dict[str, Any]:
    """Success on the development split, greedy and sampled, whole and without rare capabilities."""
    tasks = bench.suite.tasks("dev")
    found: dict[str, Any] = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        episodes = bench.play(tasks, "dev", temperature=temperature)
        plain = [t for task, t in zip(tasks, episodes, strict=True) if not task.data["requires"]]
        found[name] = rate(episodes)
        found[f"{name}_plain"] = rate(plain)
        found[f"{name}_tokens"] = round(sum(t.tokens for t in episodes) / len(episodes), 1)
    return found


def _augmentations(bench: ModelBench) -> dict[str, Any]:
    """Greedy success on the development split under each augmentation of the tools."""
    found: dict[str, Any] = {}
    for name in AUGMENTATIONS:
        suite = EmbeddedSuite(name)
        episodes = replace(bench, suite=suite).play(suite.tasks("dev"), "dev", temperature=0.0)
        found[name] = rate(episodes)
    return found


def _capabilities(bench: ModelBench) -> dict[str, Any]:
    """Success on tasks that need one capability alone, at temperature 1: without guidance, under a
    line about the capability, and under a line about something else; the last greedy."""
    return {
        name: {
            "taught": RIGHT[name],
            "none": rate(bench.play(tasks, "alone", temperature=1.0)),
            "helpful": rate(
                bench.play(tasks, "alone", temperature=1.0, guidance=GUIDANCE[name][0])
            ),
            "irrelevant": rate(bench.play(tasks, "alone", temperature=1.0, guidance=IRRELEVANT[0])),
            "greedy": rate(bench.play(tasks, "alone", temperature=0.0)),
        }
        for name in RIGHT
        for tasks in [_alone(EmbeddedSuite(), name)]
    }


def _alone(suite: EmbeddedSuite, capability: str) -> list[Task]:
    """Synthetic tasks that need this capability and no other rare one."""
    drawn = (suite.synthetic(capability, 90_000 + n) for n in range(4 * SAMPLES))
    return [task for task in drawn if not task.data["contrast"]][:SAMPLES]


def rate(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Share of successes with its 95 % interval (Wilson)."""
    wins = sum(t.score is not None and t.score.success for t in episodes)
    interval = wilson_interval(wins, len(episodes))
    return {
        "success": round(wins / len(episodes), 4),
        "interval": [round(interval.low, 4), round(interval.high, 4)],
        "n": len(episodes),
    }


def card(training: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The card as Markdown: `training` is training.json, `figures` what `measure` gives."""
    recipe, report, dev = training["recipe"], training["report"], figures["dev"]
    sizes = [size for size, known in SIZES.items() if to_json(known) == recipe]
    own = "".join(f" FOLDER --size {size}" for size in sizes if size != SHIPPED)
    build = f"python -m trace_bench.tiny build{own}"
    return f"""# The tiny agent

A phone assistant in miniature: a Qwen3-architecture language model of {report["parameters"]:,}
parameters ({recipe["layers"]} layers, width {recipe["hidden"]}, {recipe["heads"]} query and
{recipe["kv_heads"]} key-value heads, vocabulary {report["vocabulary"]:,}, context
{recipe["context"]:,}), made from nothing by `{build}`. It speaks Qwen3's
format of tool calls and nothing else: it is there so that methods can be compared on any laptop,
and knows only the project's embedded phone world. License: Apache-2.0, as the project.

## Training

{report["demonstrations"]:,} demonstrations, {report["tokens"]:,} tokens,
{report["seconds_in_all"] / 60:.0f} minutes on two CPU cores; last loss {report["loss"]:.4f} on the
agent's own tokens. A demonstration is an episode of the embedded world, acted by a program, with
people, words and wordings that no split shares, half of the words invented. Seven capabilities are
exercised only in a share of the demonstrations that call for them (tasks with namesakes are drawn
three times as often as others, as telling them apart takes several steps); half of the
demonstrations carry guidance lines in the system prompt, and a line about a capability raises its
share:

| capability | share | under guidance |
|---|---|---|
{_mixture()}

## What it can and cannot do

Made by `python -m trace_bench.tiny measure`, with 95 % intervals (Wilson).

| development split | success | interval | tasks |
|---|---|---|---|
{rows({k: v for k, v in dev.items() if isinstance(v, Mapping)})}

"plain" are the tasks that need none of the seven capabilities. A greedy episode has
{dev["greedy_tokens"]:.0f} tokens on average, the prompt's and the tools' included.

| development split, greedy, tools changed | success | interval | tasks |
|---|---|---|---|
{rows(figures["augmentations"])}

One capability at a time, on synthetic tasks that need it and no other ({_count(figures)} tasks
each, temperature 1; last column greedy). The guidance columns give the success under a line about
this capability and under a line about something else:

| capability | no guidance | helpful line | irrelevant line | greedy |
|---|---|---|---|---|
{_capability_rows(figures["capabilities"])}

## Limits

It copies unseen names and numbers, with now and then a wrong digit or word, and it understands only
requests worded like those of its demonstrations. It must not be used for anything but this harness.
"""


def _mixture() -> str:
    lines = (
        f"| {name} | {share:.2f} | {GUIDED.get(name, share):.2f} |" for name, share in RIGHT.items()
    )
    return "\n".join(lines)


def rows(rates: Mapping[str, Any]) -> str:
    lines = []
    for name, one in rates.items():
        low, high = one["interval"]
        lines.append(f"| {name} | {one['success']:.3f} | {low:.3f} to {high:.3f} | {one['n']} |")
    return "\n".join(lines)


def _capability_rows(rows: Mapping[str, Any]) -> str:
    kinds = ("none", "helpful", "irrelevant", "greedy")
    lines = []
    for name, row in rows.items():
        values = " | ".join(f"{row[kind]['success']:.3f}" for kind in kinds)
        lines.append(f"| {name} | {values} |")
    return "\n".join(lines)


def _count(figures: Mapping[str, Any]) -> int:
    return min(row["none"]["n"] for row in figures["capabilities"].values())
