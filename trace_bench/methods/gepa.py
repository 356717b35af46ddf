"""GEPA, evolution of the prompt by reflection (Agrawal et al. 2025, arXiv 2507.19457), done by the
package of that name.

The package checks its budget only between iterations, so it is stopped as soon as a whole iteration
might not fit any more; what is left stays unspent, and is logged. Its cache and its run folder stay
off: it is deterministic given the seed, so a repeated run makes the same calls, and the lab answers
the finished ones from disk.

The training tasks are split once: `validation` of them compare candidates, the others are what
proposals are made from. The trained agent has the prompt with the best validation score.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

from trace_bench.core.errors import TraceBenchError, UserError, not_allowed
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Positive, Purpose, Task, Trajectory
from trace_bench.llm.client import LLMError
from trace_bench.methods.looking.evidence import as_text, feedback
from trace_bench.methods.reflectors import ROLE, ModelReflector, ProgramReflector, under
from trace_bench.play.suites import needed

COMPONENT = "guidance"
FAILURES = 5  # failed proposals in a row after which it stops with an error
Reflector = Callable[[str, Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True)
class GepaSettings:
    """`method.*` of `method=gepa`."""

    minibatch: Positive = 8
    """Training tasks that a proposal is made from and tested on (the package's default is 3: three
    sampled episodes say little about a candidate; on the development split 8 was the better)."""
    validation: Positive = 24
    """Training tasks kept for comparing accepted candidates; the others are for proposals."""
    lines: Positive = 4
    """Most lines of the prompt (the program reflector's)."""

    @property
    def iteration(self) -> int:
        """Most rollouts of an iteration: two minibatches, and the child on the validation tasks."""
        return 2 * self.minibatch + self.validation

    def proposals(self, budget: int) -> tuple[int, int]:
        """How many proposals a budget allows: when each is accepted, and when none is."""
        left = budget - self.validation
        return left // self.iteration, left // (2 * self.minibatch)


@dataclass(eq=False)
class GepaAdapter:
    """Implements gepa's `GEPAAdapter` over `lab.rollouts`, so that every metric call is in the
    ledger. A candidate is {"guidance": the prompt's lines}. `lost`: how many episodes the
    infrastructure lost; they score 0, since GEPA knows no missing value."""

    lab: Lab
    base: AgentSpec
    settings: GepaSettings
    reflector: Reflector
    validation: frozenset[str]  # ids of the tasks that are kept for comparing candidates
    calls: int = 0
    lost: int = 0
    proposals: int = 0
    failed: int = 0  # proposals in a row that could not be made
    fatal: TraceBenchError | None = None  # gepa catches what is raised in a proposal: see Gepa
    best: tuple[float, str] = (-1.0, "")  # validation score and prompt
    history: list[dict[str, Any]] = field(default_factory=list)

    def agent(self, prompt: str) -> AgentSpec:
        return under(self.base, prompt, "gepa")

    def evaluate(
        self, batch: list[Task], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        from gepa.core.adapter import EvaluationBatch

        prompt = candidate[COMPONENT]
        whole = {task.id for task in batch} == self.validation
        purpose = Purpose.VALIDATION if whole else Purpose.PROMPT
        self.calls += 1
        call = f"gepa/{self.calls:04d}"
        try:
            played = self.lab.rollouts(call, self.agent(prompt), batch, purpose=purpose)
        except UserError as error:  # too many episodes were lost
            self.fatal = error
            raise
        scores = [self._score(t) for t in played]
        self.lost += sum(t.score is None or t.failure is not None for t in played)
        if whole:
            self._validated(prompt, sum(scores) / len(scores))
        traces = played if capture_traces else None
        return EvaluationBatch(outputs=played, scores=scores, trajectories=traces)

    def _score(self, trajectory: Trajectory) -> float:
        if trajectory.score is None or trajectory.failure is not None:
            return 0.0
        return trajectory.score.similarity

    def _validated(self, prompt: str, mean: float) -> None:
        self.history.append({"prompt": prompt.splitlines(), "validation": mean})
        if mean > self.best[0]:
            self.best = (mean, prompt)
        self.lab.metric(phase="prompt", validation=mean, best=self.best[0])
        self.lab.checkpoint(self.agent(self.best[1]))

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        records = [
            {"Conversation": as_text(t), "Feedback": feedback(t), "Score": self._score(t)}
            for t in eval_batch.trajectories or ()
        ]
        return dict.fromkeys(components_to_update, records)

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """The reflector's prompt. A failure is counted; too many in a row stop the method."""
        try:
            prompt = self.reflector(candidate[COMPONENT], reflective_dataset[COMPONENT])
        except Exception as error:
            if isinstance(error, UserError):  # the model is out of reach
                self._stop(error, error)
            return self._unchanged(candidate, error)
        self.failed = 0
        self.proposals += 1
        return {COMPONENT: prompt}

    def _unchanged(self, candidate: Mapping[str, str], error: Exception) -> dict[str, str]:
        """Counts a failed proposal; the prompt stays as it is."""
        self.failed += 1
        trouble = f"{type(error).__name__}: {error}"
        if self.failed < FAILURES:
            self.lab.log(f"a proposal failed: {trouble}")
            return dict(candidate)
        row = f"{self.failed} proposals failed one after the other"
        why = f"method=gepa: {row}, the last with {trouble}"
        if isinstance(error, LLMError):  # the model's failure, not one of this program
            self._stop(UserError(f"{why.rstrip('.')}. Change `llm.reflector`."), error)
        self._stop(TraceBenchError(why), error)

    def _stop(self, fatal: TraceBenchError, cause: Exception) -> NoReturn:
        """Ends the method. Its last question is asked again when the run is resumed."""
        self.fatal = fatal
        if isinstance(self.reflector, ModelReflector):
            self.reflector.retract()
        raise fatal from cause


class Gepa(Method):
    """GEPA prompt evolution by its package, every metric call a rollout of the budget."""

    def __init__(self, settings: GepaSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent under the best prompt that was found; itself when none is better."""
        settings, budget = self.settings, lab.budget_left()
        order = list(needed(tasks))
        random.Random(stable_seed(lab.seed, "gepa", "split")).shuffle(order)
        validation, training = order[: settings.validation], order[settings.validation :]
        reflector: Reflector = ModelReflector(lab, settings.lines)
        if lab.prompt_limit(ROLE) is None:
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
        settings = self.settings
        if run.tasks and settings.validation >= run.tasks:
            allowed = f"1 to {run.tasks - 1}, as more leaves nothing of {run.tasks} training tasks"
            raise not_allowed("method.validation", settings.validation, allowed)
        # The first prompt on the validation tasks, and one proposal.
        least, named = settings.validation + settings.iteration, "method.validation, .minibatch"
        _, most = settings.proposals(run.budget)
        return MethodPlan(
            phases=(Phase("prompts", run.budget, most=True, least=least, setting=named),),
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
            adapter=adapter,  # type: ignore[arg-type]
            reflection_minibatch_size=min(settings.minibatch, len(training)),
            use_merge=False,
            stop_callbacks=lambda state: (
                adapter.fatal is not None or lab.budget_left() < settings.iteration
            ),
            # It logs every step; what matters goes to gepa.json and the metrics.
            logger=SimpleNamespace(log=lambda message: None),  # type: ignore[arg-type]
            cache_evaluation=False,
            raise_on_exception=True,
            display_progress_bar=False,
            seed=stable_seed(lab.seed, "gepa", "engine") % 2**32,
        )

    def _conclude(self, adapter: GepaAdapter, budget: int) -> AgentSpec:
        lab, (score, prompt) = adapter.lab, adapter.best
        unspent = lab.budget_left()
        lab.leave(f"one more iteration may cost {adapter.settings.iteration}")
        figures = {
            "candidates": adapter.history,
            "best": {"prompt": prompt.splitlines(), "validation": score},
            "proposals": adapter.proposals,
            "lost": adapter.lost,
            "unspent": unspent,
        }
        lab.write("gepa.json", figures)
        lab.log(
            f"gepa: {adapter.proposals} proposals, {len(adapter.history) - 1} of them accepted; "
            f"{unspent} of {budget} rollouts unspent, since one more iteration may cost "
            f"{adapter.settings.iteration}"
        )
        return adapter.agent(prompt)
