"""GRPO on synthetic environments that no analysis chose: one adapter for all of them.

The idea of training on a broad set of made-up environments (the paper's baseline from Agent World
Model): no analysis, no calibration, no routing; every environment that the suite's generator can
make has the same share of the tasks. Against TRACE it tells what targeting brings, against GRPO
what the target's own tasks bring.

`pool=broad` adds environments of other tools and domains to the suite's own, of which several are
the very deficits that TRACE looks for; `breadth` says how many kinds are drawn from in all.

With `environments`, a folder in the AgentWorldModel format, the tasks are those of `scenarios`
environments drawn from it. Their programs are not this project's and run in a sandbox; tasks that
cannot be started, or that are solved by doing nothing, are left out and counted in the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from trace_bench.core.checked import number
from trace_bench.core.errors import EpisodeError, SourceError, UserError
from trace_bench.core.protocols import (
    Lab,
    Method,
    MethodPlan,
    Need,
    PlannedRun,
    Synthesizes,
    SynthesizesDomains,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods import awm
from trace_bench.methods.grpo import one_training, train_once
from trace_bench.methods.making import (
    FULL,
    IDLE,
    Mix,
    TaskSettings,
    draw,
    generator,
    interleave,
    play,
    seeded,
)

SUITE, IMAGE = "awm", "awm"
SOURCE = """
from trace_bench.envs.awm import world
make_task, reference, Env = world(SCENARIOS)
"""
GENERATOR = Need(
    "env",
    Synthesizes,
    "docs/environments.md",
    "With method.environments, a folder in the AgentWorldModel format, its environments are "
    "trained on instead.",
)

DOMAINS = Need(
    "env",
    SynthesizesDomains,
    "docs/environments.md",
    "With method.pool=suite the suite's own environments are trained on alone.",
)


@dataclass(frozen=True)
class UntargetedSettings(TaskSettings):
    """`method.*` of `method=untargeted`."""

    environments: str | None = None
    """A folder in the AgentWorldModel format; None: the suite's own environments."""
    scenarios: int = field(default=16, metadata=number(1))
    """How many environments of that folder."""
    pool: Literal["suite", "broad"] = "suite"
    """Which kinds of environments the tasks are drawn from: one for each capability that the suite
    can generate tasks for, or also those of other domains."""
    breadth: int | None = field(default=None, metadata=number(1))
    """How many kinds of the pool; which, the run's seed says, and of a smaller breadth all are
    among those of a larger one. None: all."""

    def __post_init__(self) -> None:
        if self.environments is not None and (self.pool != "suite" or self.breadth is not None):
            raise UserError(
                f"method.environments={self.environments} is a pool of its own. Leave out "
                "`method.pool` and `method.breadth`; `method.scenarios` is how many are drawn."
            )


class Untargeted(Method):
    """GRPO on synthetic environments that were not chosen by the agent's failures: one adapter on
    all.

    The target's training tasks are not looked at."""

    def __init__(self, settings: UntargetedSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        settings = self.settings
        if settings.environments:
            made = _from_files(lab, settings.environments, settings.scenarios)
        else:
            count = settings.synthetic_tasks
            kinds = _kinds(lab, settings).items()
            made = interleave(
                [draw(lab.suite, n, count, Mix(), lab.seed, "train", make) for n, make in kinds]
            )
        return train_once("untargeted", base, made, lab, reward=settings.reward)

    def plan(self, run: PlannedRun) -> MethodPlan:
        broad = (DOMAINS,) if self.settings.pool == "broad" else ()
        needs = () if self.settings.environments else (GENERATOR, *broad)
        return replace(one_training(run, "untargeted"), needs=needs)


def _kinds(lab: Lab, settings: UntargetedSettings) -> dict[str, Callable[[int], Task]]:
    """What makes the tasks of each kind of the pool (or of `breadth` of them), by its name."""
    suite = generator(lab.suite)
    kinds: dict[str, Callable[[int], Task]] = {
        name: partial(suite.synthetic, name) for name in suite.capabilities()
    }
    if settings.pool == "broad":
        others = lab.suite
        if not isinstance(others, SynthesizesDomains):
            raise UserError(
                f"{others.name}/{others.variant} has no environments of other domains. Set "
                "`method.pool` to suite, or change `env`."
            )
        kinds |= {name: partial(others.synthetic_in, name) for name in others.domains()}
    if settings.breadth is None:
        return kinds
    if settings.breadth > len(kinds):
        raise UserError(
            f"method.breadth={settings.breadth}, and method.pool={settings.pool} has {len(kinds)} "
            f"kinds of environments: {', '.join(kinds)}. Lower `method.breadth`."
        )
    names = list(kinds)
    random.Random(stable_seed(lab.seed, "untargeted", "kinds")).shuffle(names)
    chosen = names[: settings.breadth]
    lab.log(f"{len(chosen)} of {len(kinds)} kinds of environments: {', '.join(chosen)}")
    return {name: kinds[name] for name in chosen}


def _from_files(lab: Lab, folder: str, count: int) -> tuple[Task, ...]:
    """The tasks of the drawn scenarios that can be run and are not solved by doing nothing."""
    scenarios = awm.read(folder, count, stable_seed(lab.seed, "untargeted", "scenarios"))
    suite = lab.generated_suite(SUITE, SOURCE, {"SCENARIOS": scenarios}, image=IMAGE)
    total = int(seeded(suite, 0).data["of"])
    kept: list[Task] = []
    faults: list[str] = []
    for seed in range(total):
        name = f"task {seed}"
        try:
            task = seeded(suite, seed)
            name = f"{task.data['scenario']}/{task.data['task']}"
            idle = play(suite, task, (), IDLE)
        except (EpisodeError, SourceError) as error:
            faults.append(f"{name}: {error}")
            continue
        if idle is not None and idle.similarity < FULL:
            kept.append(task)
    lab.log(
        f"{len(kept)} of {total} tasks of {len(scenarios)} scenarios can be trained on; "
        f"{len(faults)} cannot be run" + (f", such as {faults[0]}" if faults else "")
    )
    if not kept:
        raise UserError(
            f"no task of method.environments={folder} can be trained on. Raise `method.scenarios`."
        )
    random.Random(stable_seed(lab.seed, "untargeted", "order")).shuffle(kept)
    return tuple(kept)
