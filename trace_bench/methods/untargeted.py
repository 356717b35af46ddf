"""GRPO on synthetic environments that nobody chose: one adapter for all of them.

The idea of training on a broad set of made-up environments (the paper's baseline from Agent World
Model): no analysis, no calibration, no routing; every environment that the suite's generator can
make has the same share of the tasks. Against TRACE it tells what targeting brings, against GRPO
what the target's own tasks bring.

With `environments`, a folder in the AgentWorldModel format, the tasks are those of `scenarios`
environments drawn from it. Their programs are foreign code and run in a box; tasks that cannot be
started, or that are solved by doing nothing, are left out and said.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import Lab, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods import awm
from trace_bench.methods.trace.synthesis.draw import FULL, IDLE, Mix, draw, generator, play
from trace_bench.methods.trace.training import interleave

BOX, IMAGE = "awm", "awm"
SOURCE = """
from trace_bench.envs.awm import world
make_task, reference, Env = world(SCENARIOS)
"""


class Untargeted:
    """`protocols.Method`. Settings: `synthetic_tasks` per environment, `contrast_share`, `reward`,
    `environments`, `scenarios`. The target's training tasks are not looked at."""

    name = "untargeted"

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with the adapter `untargeted`, used for every task."""
        settings = lab.settings
        return lab.trainer.train(
            TrainingJob(
                name="untargeted",
                agent=base,
                tasks=_from_files(lab) if settings["environments"] else _from_suite(lab),
                rollouts=lab.budget_left(),
                seed=stable_seed(lab.seed, "untargeted", "train"),
                reward=str(settings["reward"]),
            ),
            lab,
        )


def _from_suite(lab: Lab) -> tuple[Task, ...]:
    """All environments that the suite's generator can make, in equal parts."""
    settings = lab.settings
    mix = Mix(float(settings["contrast_share"]))
    count = int(settings["synthetic_tasks"])
    drawn = [
        draw(lab.suite, name, count, mix, lab.seed, "train").tasks
        for name in generator(lab.suite).capabilities()
    ]
    return interleave(drawn)


def _from_files(lab: Lab) -> tuple[Task, ...]:
    """The tasks of the drawn scenarios that can be played and are not solved by doing nothing."""
    folder, count = str(lab.settings["environments"]), int(lab.settings["scenarios"])
    scenarios = awm.read(folder, count, stable_seed(lab.seed, "untargeted", "scenarios"))
    suite = lab.foreign(BOX, SOURCE, {"SCENARIOS": scenarios}, image=IMAGE)
    total = int(suite.synthetic("", 0).data["of"])  # type: ignore[attr-defined]
    kept: list[Task] = []
    faults: list[str] = []
    for seed in range(total):
        task = suite.synthetic("", seed)  # type: ignore[attr-defined]
        try:
            idle = play(suite, task, (), IDLE)
        except EpisodeError as error:
            faults.append(f"{task.data['scenario']}/{task.data['task']}: {error}")
            continue
        if idle is not None and idle.similarity < FULL:
            kept.append(task)
    lab.say(
        f"{len(kept)} of {total} tasks of {len(scenarios)} scenarios can be trained on; "
        f"{len(faults)} cannot be played" + (f", such as {faults[0]}" if faults else "")
    )
    if not kept:
        raise UserError(
            f"no task of method.environments={folder} can be trained on. Raise `method.scenarios`."
        )
    random.Random(stable_seed(lab.seed, "untargeted", "order")).shuffle(kept)
    return tuple(kept)
