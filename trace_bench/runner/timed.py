"""`dry_run=timed`: how long a run takes whose model acts in this process, from a few episodes and
one update of that very model on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from trace_bench.core.protocols import Phase, RunContext, Suite, Trainer
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.runner.build import Parts, make_policy
from trace_bench.settings.schema import Settings

EPISODES = 16


def measured(
    settings: Settings,
    parts: Parts,
    run: RunContext,
    suite: Suite,
    trainer: Trainer | None,
    tasks: Sequence[Task],
    phases: Sequence[Phase],
) -> list[str]:
    how, trained = settings.policy, sum(p.rollouts for p in phases if p.trains)
    total = sum(p.rollouts for p in phases)
    chosen = tuple(tasks[n % len(tasks)] for n in range(min(EPISODES, how.batch)))
    seeds = tuple(stable_seed(settings.seed, "timed", n) for n in range(len(chosen)))
    with closing(make_policy(parts, run)) as policy:
        player = Player(policy, Suites(suite), how.max_turns, how.max_tokens)
        agent = AgentSpec(run.model)
        player.play(EpisodeBatch(agent, chosen[:2], seeds[:2]))  # what is made once is not timed
        began = time.perf_counter()
        played = player.play(EpisodeBatch(agent, chosen, seeds))
        each = (time.perf_counter() - began) / len(chosen)
    update = None if trainer is None else trainer.timed(run.model, played)
    hours = (total * each + trained * (update or 0.0)) / 3600
    said = "" if update is None else f" and an update {update:.3g} s a rollout, of {trained}"
    return [
        f"about {hours:.2g} hours here: an episode took {each:.3g} s, of {total}{said} (measured "
        f"now on {len(chosen)} episodes; those of a trained agent may be longer or shorter)"
    ]
