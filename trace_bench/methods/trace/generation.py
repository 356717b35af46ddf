"""Environments that a language model writes (the map's step 4), and what they must pass first.

    ask for a module -> restrictions -> load it in the sandbox -> checks -> calibration
    -> self-test of its tasks

What fails goes back to the model with the reason, `ATTEMPTS` times at most; every attempt's code
and verdict are kept in the run folder (generated/). The capability is dropped when no attempt
passes. Calibration episodes are rollouts like any other and in the ledger.

What the model is asked has a PROMPT_VERSION, which is written into every run, since other words
give other environments.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from trace_bench.core.chat import opening_of
from trace_bench.core.errors import EngineError, EpisodeError, SourceError, UserError
from trace_bench.core.protocols import Lab, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.text import file_name
from trace_bench.core.types import AgentSpec, Message, Task, Tool, Trajectory
from trace_bench.llm.client import LLMError
from trace_bench.llm.roles import read_block
from trace_bench.methods.looking.capabilities import Capability
from trace_bench.methods.looking.evidence import compact
from trace_bench.methods.making import seeded, self_test
from trace_bench.methods.trace import calibrate
from trace_bench.methods.trace.checks import MODULES, TOO_CLOSE, Leaks, examine, quoted, violations
from trace_bench.methods.trace.settings import TraceSettings

ATTEMPTS = 5  # of a model at an environment (published: up to 5 regenerations)
CHECKED = 16  # tasks that the checks look at
ROLE = "generator"  # the model's role
PROMPT_VERSION = "2"
EXAMPLES = 3

RULES = """\
You write training environments for an agent that works with tools. An environment is one Python
module, deterministic, that plays conversations and rewards one capability, and as little else as
possible. It simulates the tools itself, on data of its own.

The module defines, at its top level:
  make_task(seed: int) -> dict      a task as JSON-safe data; other seeds (0 to 2**31 - 1) give
                                    other tasks (names, numbers, wordings), the same seed always
                                    the same
  reference(data: dict) -> list     the assistant messages that earn the full reward, in order
  class Env                         with reset(self, task) -> Step, step(self, action) -> Step and
                                    close(self); task.data is what make_task gave
There is a name TOOLS, a dict from tool name to tool schema (OpenAI's format): offer some of these,
unchanged, and no others.

From trace_bench.core.types:
  Step(messages, tools, done, score, stop)   messages: a tuple of message dicts; tools: a tuple, at
                                    reset only; at the end done=True, score=Score(...),
                                    stop=StopReason.DONE
  Score(similarity, success)        similarity from 0.0 to 1.0 is the reward, success is True for
                                    the full reward only
Messages: reset gives a system message and ends with the user's request,
{{"role": "user", "content": "..."}}. An action is {{"role": "assistant", "content": str}}, with
"tool_calls": [{{"id": str, "type": "function", "function": {{"name": str, "arguments": "JSON"}}}}]
when it calls tools. Answer each call, in order, by {{"role": "tool", "tool_call_id": its id,
"name": its name, "content": str}}; a call of an unknown tool, with arguments that are no JSON
object, unknown or missing, is answered by a text with "Error: " in it. A message without calls is
for the user: answer as the user would, or end the episode. Every episode must end, also when the
agent says nothing at all.

Rules:
- Whoever does nothing, only talks, or calls tools at random earns next to nothing.
- Rewards may have levels, such as 0.6 for the deed and 0.4 for telling the user.
- The agent that is to be trained should earn between {low:g} and {high:g} on average.
- Use names, numbers and wordings of your own.
- Import only: {modules}. No files, no clock, no module-level state.

Answer with the whole module in one ```python block."""


def request(
    capability: Capability,
    tools: Mapping[str, Tool],
    examples: Sequence[Trajectory],
    limit: int,
) -> list[Message]:
    """The first question. `limit`: characters that it may have."""
    modules = ", ".join(sorted(MODULES))
    rules = RULES.format(low=calibrate.LOW, high=calibrate.HIGH, modules=modules)
    listed = "\n".join(json.dumps(tool["function"]) for _, tool in sorted(tools.items()))
    head = (
        f"Capability: {capability.name}\n{capability.description}\n\n"
        f"The keys of TOOLS are the names of these tools:\n{listed}\n"
    )
    left = limit - len(rules) - len(head)
    each = left // (2 * EXAMPLES)
    episodes = [compact(t, each) for t in examples[:EXAMPLES]] if each > 300 else []
    lacking = "\n\n".join(f"-- an episode that lacked it\n{text}" for text in episodes)
    return opening_of(rules, f"{head}\n{lacking}".rstrip())


def again(first: Sequence[Message], code: str, problems: Sequence[str]) -> list[Message]:
    listed = "\n".join(f"- {p}" for p in problems[:8])
    why = f"This module was not accepted:\n{listed}\nWrite the whole module again."
    answer = {"role": "assistant", "content": f"```python\n{code}```"}
    return [*first, answer, {"role": "user", "content": why}]


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
        limit = self.lab.prompt_limit(ROLE)
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
            return self.lab.ask(ROLE, call, talk, read_block)
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
