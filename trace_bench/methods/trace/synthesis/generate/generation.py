"""Environments that a language model writes (method, step 2), and what they must pass first.

    ask for a module -> restrictions -> load it in the sandbox -> checks -> judge -> calibration

What fails goes back to the model with the reason, `method.generator_rounds` times at most; every
attempt's code and verdict are kept in the run folder (generated/). The capability is dropped when
no attempt passes. Calibration episodes are rollouts like any other and in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trace_bench.core.errors import EpisodeError, SourceError, UserError
from trace_bench.core.protocols import Lab, Suite
from trace_bench.core.types import AgentSpec, Message, Purpose, Task, Tool, Trajectory
from trace_bench.llm.client import LLMError
from trace_bench.llm.structured import read_block
from trace_bench.methods.trace.analysis.vocabulary import Capability
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.methods.trace.synthesis import calibrate
from trace_bench.methods.trace.synthesis.draw import opening, seeded, self_test
from trace_bench.methods.trace.synthesis.generate.accept import TOO_CLOSE, examine
from trace_bench.methods.trace.synthesis.generate.judge import objection
from trace_bench.methods.trace.synthesis.generate.leaks import Leaks, quoted, texts_of
from trace_bench.methods.trace.synthesis.generate.prompt import again, request
from trace_bench.methods.trace.synthesis.generate.restrictions import violations
from trace_bench.methods.trace.synthesis.generate.seeds import Seeds

ROLE = "generator"


@dataclass
class Attempt:
    """One module. `problems` is empty when it was accepted; `numbers`: its calibration, if any."""

    number: int
    code: str = ""
    problems: list[str] = field(default_factory=list)
    numbers: calibrate.Numbers | None = None


@dataclass(frozen=True)
class Wanted:
    """A capability to make an environment for, and failed episodes that lack it."""

    capability: Capability
    examples: Sequence[Trajectory]


class Generation:
    """Makes environments for one run. `tools`: the target's, by name; `pool`: rollouts that
    calibration may use in all."""

    def __init__(
        self,
        lab: Lab,
        base: AgentSpec,
        settings: SynthesisSettings,
        tools: Mapping[str, Tool],
        leaks: Leaks,
        pool: int,
    ) -> None:
        self.lab, self.base, self.settings = lab, base, settings
        self.tools, self.leaks, self.pool = tools, leaks, pool

    def make(self, wanted: Wanted, waiting: int = 0) -> tuple[Task, ...] | None:
        """Training tasks for a capability, or None when no attempt was accepted. For each of the
        `waiting` capabilities that come after it one round of calibration is left."""
        name = wanted.capability.name
        limit = self.lab.prompt_limit(ROLE)
        assert limit is not None, "no model plays the generator"
        first = request(wanted.capability, self.tools, wanted.examples, limit, self.settings)
        talk: list[Message] = first
        for number in range(self.settings.generator_rounds):
            if self.pool < self.settings.calibration_round * (1 + waiting):
                self.lab.log(
                    f"{name} is dropped: no rollouts are left to calibrate another attempt "
                    "(budget, method.calibration_share)"
                )
                return None
            attempt = Attempt(number)
            tasks = None
            if self._ask(f"{name}/{number}", talk, attempt):
                tasks = self._try(wanted.capability, attempt)
            self._keep(name, attempt)
            if tasks is not None:
                self.lab.log(f"{name}, attempt {number + 1}: accepted")
                return tasks
            self.lab.log(f"{name}, attempt {number + 1}: {attempt.problems[0]}")
            talk = again(first, attempt.code, attempt.problems) if attempt.code else first
        self.lab.log(f"{name} is dropped: no attempt at its environment was accepted")
        return None

    def _ask(self, call: str, talk: Sequence[Message], attempt: Attempt) -> bool:
        """The attempt's code; False when the model's answer cannot be used. Raises UserError when
        the model is out of reach: no capability is given up for that."""
        try:
            attempt.code = self.lab.ask(ROLE, call, talk, read_block)
        except LLMError as error:
            if error.outage:
                self.lab.retract(ROLE, f"{call}/")
                raise UserError(
                    f"the generator does not answer: {error}. The same command goes on from here; "
                    "or change `llm.generator`."
                ) from error
            attempt.problems = [f"the generator gave no module: {error}"]
        return not attempt.problems

    def _try(self, capability: Capability, attempt: Attempt) -> tuple[Task, ...] | None:
        """The accepted attempt's training tasks; else None, and what is wrong in `problems`."""
        attempt.problems = violations(attempt.code)
        if not attempt.problems and self.leaks.found(quoted(attempt.code)):
            attempt.problems = [TOO_CLOSE]
        if attempt.problems:
            return None
        name = f"{capability.name}@{attempt.number}"
        names = (name, f"{name}'")  # the second in another process, which must do the same
        seeds = Seeds.of(self.lab.seed, name, attempt.code, self.settings)
        try:
            suite, twin = (self._load(n, attempt.code) for n in names)
            attempt.problems = examine(
                suite, twin, seeds.checks, self.tools, self.leaks, self.settings
            )
        except SourceError as error:
            attempt.problems = [f"the module cannot be loaded: {error}"]
        finally:
            self.lab.drop_suite(names[1])
        tasks = None if attempt.problems else self._go_on(capability, attempt, name, suite, seeds)
        if tasks is None:
            self.lab.drop_suite(name)
        return tasks

    def _load(self, name: str, code: str) -> Suite:
        return self.lab.generated_suite(name, code, {"TOOLS": dict(self.tools)})

    def _go_on(
        self, capability: Capability, attempt: Attempt, name: str, suite: Suite, seeds: Seeds
    ) -> tuple[Task, ...] | None:
        """Judge, calibration and tasks of a module that has passed the checks."""
        if why := objection(self.lab, capability, name, attempt.code):
            attempt.problems = [f"a reader objects: {why}"]
            return None
        try:
            attempt.problems = self._calibrate(name, attempt, suite, seeds)
            return None if attempt.problems else self._tasks(suite, seeds)
        except (SourceError, EpisodeError) as error:
            attempt.problems = [str(error)]
            return None

    def _calibrate(self, name: str, attempt: Attempt, suite: Suite, seeds: Seeds) -> list[str]:
        """The bands that the base agent misses, after playing one calibration round."""
        self.pool -= self.settings.calibration_round
        size = self.settings.calibration_group_size
        tasks = [task for task in _draw(suite, seeds.calibration) for _ in range(size)]
        played = self.lab.rollouts(
            f"calibration/{name}",
            self.base,
            tasks,
            purpose=Purpose.CALIBRATION,
            temperature=self.settings.calibration_temperature,
        )
        attempt.numbers = calibrate.numbers(played, self.settings)
        outside = calibrate.outside_bands(attempt.numbers, self.settings)
        return [f"played by the agent that is to be trained: {what}" for what in outside]

    def _tasks(self, suite: Suite, seeds: Seeds) -> tuple[Task, ...]:
        """Training tasks, each tested like any other synthetic task."""
        count = self.settings.synthetic_tasks
        kept: list[Task] = []
        why = ""
        for task in _draw(suite, seeds.training):
            if len(kept) == count:
                break
            wrong = self_test(suite, task) or self._leaked(suite, task)
            if wrong is None:
                kept.append(task)
            else:
                why = f"{task.id}: {wrong}"
        if len(kept) < count:
            raise SourceError(
                f"only {len(kept)} of {len(seeds.training)} tasks pass the test: {why}"
            )
        return tuple(kept)

    def _leaked(self, suite: Suite, task: Task) -> str | None:
        found = self.leaks.found([*texts_of(task), opening(suite, task)[0]])
        return TOO_CLOSE if found else None

    def _keep(self, name: str, attempt: Attempt) -> None:
        place = f"generated/{name}/{attempt.number}"
        self.lab.write_text(f"{place}.py", attempt.code)
        self.lab.write(f"{place}.json", verdict(attempt))


def verdict(attempt: Attempt) -> dict[str, Any]:
    """What is kept of an attempt beside its code."""
    return {
        "accepted": not attempt.problems,
        "problems": attempt.problems,
        "calibration": None if attempt.numbers is None else asdict(attempt.numbers),
    }


def _draw(suite: Suite, seeds: Sequence[int]) -> list[Task]:
    """Tasks by seed. Raises SourceError when the module cannot make one."""
    try:
        return [seeded(suite, seed) for seed in seeds]
    except UserError as error:
        raise SourceError(str(error)) from error
