"""GEPA, evolution of the prompt by reflection (Agrawal et al. 2025, arXiv 2507.19457), done by the
package of that name.

Counted and bounded by our ledger: the package checks its budget only between iterations, so it is
stopped as soon as a whole iteration might not fit any more; what is left stays unspent, and is
logged. Its cache and its run folder stay off. Resuming needs neither: the package is deterministic
given the seed, so a repeated run makes the same calls, and the lab answers the finished ones from
disk.

The training tasks are split once: `validation` of them compare candidates, the others are what
proposals are made from. The trained agent has the prompt with the best validation score.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.gepa.adapter import COMPONENT, GepaAdapter, GepaSettings, Reflector
from trace_bench.methods.gepa.reflectors import ROLE, ModelReflector, ProgramReflector


class Gepa(Method):
    """GEPA prompt evolution by its package, every metric call a rollout of the budget."""

    def __init__(self, settings: GepaSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent under the best prompt that was found; itself when none is better."""
        settings, budget = self.settings, lab.budget_left()
        if not tasks:
            raise UserError("method=gepa needs training tasks; change `env.suite`.")
        settings.check(budget, len(tasks))
        order = list(tasks)
        random.Random(stable_seed(lab.seed, "gepa", "split")).shuffle(order)
        validation, training = order[: settings.validation], order[settings.validation :]
        reflector: Reflector
        if lab.prompt_limit(ROLE) is not None:
            reflector = ModelReflector(lab, settings.lines)
        else:
            seed = stable_seed(lab.seed, "gepa", "reflector")
            reflector = ProgramReflector(settings.lines, seed)
        ids = frozenset(task.id for task in validation)
        adapter = GepaAdapter(lab, base, settings, reflector, ids)
        least, most = settings.proposals(budget)
        lab.log(f"gepa: {budget} rollouts allow {least} to {most} proposals")
        self._optimize(adapter, training, validation)
        if adapter.fatal is not None:
            raise adapter.fatal
        return self._conclude(adapter, budget)

    def plan(self, run: PlannedRun) -> MethodPlan:
        self.settings.check(run.budget, run.tasks)
        _, most = self.settings.proposals(run.budget)
        return MethodPlan(
            phases=(Phase("prompts", run.budget, most=True),),
            questions={ROLE: most} if ROLE in run.models else {},
            caveat="a run stops where the next proposal might not fit its budget",
        )

    def _optimize(
        self, adapter: GepaAdapter, training: Sequence[Task], validation: Sequence[Task]
    ) -> None:
        import gepa

        lab, settings = adapter.lab, adapter.settings
        gepa.optimize(
            seed_candidate={COMPONENT: adapter.base.prompt},
            trainset=list(training),
            valset=list(validation),
            adapter=_Plain(adapter),  # type: ignore[arg-type]
            reflection_minibatch_size=min(settings.minibatch, len(training)),
            use_merge=False,
            stop_callbacks=lambda state: (
                adapter.fatal is not None or lab.budget_left() < settings.iteration
            ),
            logger=_Unheard(),
            cache_evaluation=False,
            raise_on_exception=True,
            display_progress_bar=False,
            seed=stable_seed(lab.seed, "gepa", "engine") % 2**32,
        )

    def _conclude(self, adapter: GepaAdapter, budget: int) -> AgentSpec:
        lab, (score, prompt) = adapter.lab, adapter.best
        unspent = lab.budget_left()
        lab.write(
            "gepa.json",
            {
                "candidates": adapter.history,
                "best": {"prompt": prompt.splitlines(), "validation": score},
                "proposals": adapter.proposals,
                "lost": adapter.lost,
                "unspent": unspent,
            },
        )
        lab.log(
            f"gepa: {adapter.proposals} proposals, {len(adapter.history) - 1} of them accepted; "
            f"{unspent} of {budget} rollouts unspent, since one more iteration may cost "
            f"{adapter.settings.iteration}"
        )
        return adapter.agent(prompt)


class _Plain:
    """The adapter as gepa looks at it: with just the attributes of its protocol, so that optional
    hooks which it finds by name are not there by accident."""

    def __init__(self, adapter: GepaAdapter) -> None:
        self.evaluate = adapter.evaluate
        self.make_reflective_dataset = adapter.make_reflective_dataset
        self.propose_new_texts = adapter.propose_new_texts


class _Unheard:
    """gepa logs every step to the screen; what matters goes to gepa.json and the metrics."""

    def log(self, message: str) -> Any:
        """Dropped."""
