"""Environments that a language model writes (the map's step 4), and what they must pass first.

    ask for a module -> restrictions -> load it in the sandbox -> checks -> calibration
    -> self-test of its tasks

What fails goes back to the model with the reason, `ATTEMPTS` times at most; every attempt's code
and verdict are kept in the run folder (generated/). The capability is dropped when no attempt
passes. Calibration episodes are rollouts like any other and in the ledger.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from trace_bench.core.errors import EngineError, EpisodeError, SourceError, UserError
from trace_bench.core.protocols import Lab, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.text import file_name
from trace_bench.core.types import AgentSpec, Message, Task, Tool, Trajectory
from trace_bench.llm.client import LLMError
from trace_bench.llm.structured import read_block
from trace_bench.methods.looking.capabilities import Capability
from trace_bench.methods.making import seeded, self_test
from trace_bench.methods.trace import calibrate
from trace_bench.methods.trace.generate.checks import TOO_CLOSE, Leaks, examine, quoted, violations
from trace_bench.methods.trace.generate.questions import GENERATOR, again, request
from trace_bench.methods.trace.settings import TraceSettings

ATTEMPTS = 5  # of a model at an environment (published: up to 5 regenerations)
CHECKED = 16  # tasks that the checks look at


@dataclass
class Attempt:
    """One module, and its calibration, if it came so far."""

    name: str
    code: str = ""
    numbers: calibrate.Numbers | None = None


class Refused(Exception):
    """A module is not accepted; its arguments say why, in words for its author."""


def refuse(problems: Sequence[str]) -> None:
    """Raises Refused if there are any."""
    if problems:
        raise Refused(*problems)


def seeds_of(run: int, name: str, code: str, count: int) -> list[int]:
    """Seeds for a module, in the run with the seed `run`: of the checks, of calibration and of
    training, parts of one random sequence, so that a module cannot tell from a seed what it is run
    for. Its text is part of what they are drawn from: no module can know its own."""
    return random.Random(stable_seed(run, "trace", "written", name, code)).sample(
        range(2**31), count
    )


class Generation:
    """Makes a run's environments. `pool`: rollouts that calibration may use in all."""

    def __init__(
        self,
        lab: Lab,
        base: AgentSpec,
        settings: TraceSettings,
        tools: Mapping[str, Tool],
        leaks: Leaks,
        pool: int,
    ) -> None:
        self.lab, self.base, self.settings = lab, base, settings
        self.tools, self.leaks, self.pool = tools, leaks, pool
        self.dropped: dict[str, str] = {}  # capabilities, each with the reason

    def make(
        self, capability: Capability, examples: Sequence[Trajectory], waiting: int = 0
    ) -> tuple[Task, ...] | None:
        """Training tasks for a capability, or None when no attempt was accepted. `examples`: failed
        episodes that lack it. For each of the `waiting` capabilities that come after it one round
        of calibration is left."""
        name = capability.name
        limit = self.lab.prompt_limit(GENERATOR)
        assert limit is not None, "no model plays the generator"
        talk = first = request(capability, self.tools, examples, limit)
        last = ""
        for number in range(ATTEMPTS):
            if self.pool < self.settings.calibration_round * (1 + waiting):
                self._drop(name, f"no rollouts are left to calibrate another attempt{last}")
                return None
            attempt = Attempt(f"{name}@{number}")
            problems: list[str] = []
            try:
                attempt.code = self._ask(f"{name}/{number}", talk)
                tasks = self._try(attempt)
            except Refused as refused:
                problems = [str(why) for why in refused.args]
            self._keep(f"{file_name(name)}/{number}", attempt, problems)
            said = problems[0] if problems else "accepted"
            self.lab.log(f"{name}, attempt {number + 1}: {said}")
            if not problems:
                return tasks
            last = f"; the last one: {said}"
            talk = again(first, attempt.code, problems) if attempt.code else first
        self._drop(name, f"no attempt at its environment was accepted{last}")
        return None

    def _ask(self, call: str, talk: Sequence[Message]) -> str:
        """The model's module."""
        try:
            return self.lab.ask(GENERATOR, call, talk, read_block)
        except LLMError as error:
            raise Refused(f"the generator gave no module: {error}") from error

    def _try(self, attempt: Attempt) -> tuple[Task, ...]:
        """Raises Refused at the first step that the module does not pass."""
        refuse(violations(attempt.code))
        if self.leaks.overlap(quoted(attempt.code)):
            raise Refused(TOO_CLOSE)
        try:
            return self._run(attempt)
        except (SourceError, EpisodeError, Refused) as error:
            self.lab.drop_suite(attempt.name)
            raise Refused(*error.args) from error

    def _run(self, attempt: Attempt) -> tuple[Task, ...]:
        """Checks, calibration and training have workers of their own; tasks for the last."""
        name, code, settings = attempt.name, attempt.code, self.settings
        used = CHECKED + settings.calibration_groups
        seeds = seeds_of(self.lab.seed, name, code, used + 2 * settings.synthetic_tasks)
        with self._fresh(name, code) as suite, self._fresh(f"{name}'", code) as twin:
            refuse(examine(suite, twin, seeds[:CHECKED], self.tools, self.leaks))
        self._calibrate(attempt, self._load(name, code), seeds[CHECKED:used])
        self.lab.drop_suite(name)  # training has workers of its own: a module may remember
        suite = self._load(name, code)
        with as_source_error():
            return self._tasks(suite, seeds[used:])

    def _load(self, name: str, code: str) -> Suite:
        try:
            return self.lab.generated_suite(name, code, {"TOOLS": dict(self.tools)})
        except SourceError as error:
            raise SourceError(f"the module cannot be loaded: {error}") from error

    @contextmanager
    def _fresh(self, name: str, code: str) -> Iterator[Suite]:
        """The module in workers of its own, for as long as the block lasts."""
        try:
            yield self._load(name, code)
        finally:
            self.lab.drop_suite(name)

    def _calibrate(self, attempt: Attempt, suite: Suite, seeds: Sequence[int]) -> None:
        """Raises Refused for the bands that the base agent misses."""
        self.pool -= self.settings.calibration_round
        with as_source_error():
            tasks = [seeded(suite, seed) for seed in seeds]
        call = f"calibration/{attempt.name}"
        (attempt.numbers,) = calibrate.play(self.lab, self.base, call, tasks, self.settings)
        outside = attempt.numbers.outside() if self.settings.bands else ()
        refuse([f"played by the agent that is to be trained: {what}" for what in outside])

    def _tasks(self, suite: Suite, seeds: Sequence[int]) -> tuple[Task, ...]:
        """Tested training tasks: half as many as there are seeds, since some may be refused."""
        count = self.settings.synthetic_tasks
        kept: list[Task] = []
        why = ""
        for task in (seeded(suite, seed) for seed in seeds):
            if self.leaks.in_task(suite, task):
                why = TOO_CLOSE  # without the task: it would tell which words
            elif (wrong := self_test(suite, task)) is not None:
                why = f"{task.id}: {wrong}"
            else:
                kept.append(task)
            if len(kept) == count:
                return tuple(kept)
        raise SourceError(f"only {len(kept)} of {len(seeds)} tasks pass the test: {why}")

    def _drop(self, capability: str, why: str) -> None:
        self.dropped[capability] = why
        self.lab.log(f"{capability} is dropped: {why}")

    def _keep(self, place: str, attempt: Attempt, problems: Sequence[str]) -> None:
        self.lab.write_text(f"generated/{place}.py", attempt.code)
        measured = None if attempt.numbers is None else asdict(attempt.numbers)
        verdict = {"accepted": not problems, "problems": list(problems)}
        self.lab.write(f"generated/{place}.json", {**verdict, "calibration": measured})


@contextmanager
def as_source_error() -> Iterator[None]:
    """What a module does wrong while tasks are made of it as a SourceError."""
    try:
        yield
    except EngineError:
        raise
    except UserError as error:
        raise SourceError(str(error)) from error
