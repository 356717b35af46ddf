"""Demonstrations of any world: episodes that are really played, with mistakes that are put right
and with some haste.

An environment with a program for it (`Env.solution`) is solved by that, in half of the
episodes from where some random calls have led; any other world's episode follows the task's
reference. In both, some of the agent's turns are preceded by a mistake: another tool, or other
arguments, which the environment answers: an agent that has seen none collapses after its first.
Mistakes are not learned, only what comes after them, and an episode that does not end in success is
left out.

An agent that is shown successes only fails where it copies or counts wrongly, which some thousand
rollouts hardly mend. So there are hasty demonstrations too, which leave a call out and go on as if
they had made it, whatever that is worth: that is learned, and a choice that RL can put right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from trace_bench.core.chat import make_call, read_call
from trace_bench.core.errors import UserError, attempt
from trace_bench.core.protocols import Env, Suite
from trace_bench.core.store import canonical, stable_seed
from trace_bench.core.types import JSON, Message, Step, Task, Tool
from trace_bench.play.steps import close, make, step_one
from trace_bench.play.suites import needed
from trace_bench.policies.scripted import plausible

MISTAKES = 0.14  # of the agent's turns, each before a right one
NOISY, MOST_NOISE = 0.5, 6  # share of solved episodes that begin with random calls, and their most
TRIES = 4  # episodes of a task for one demonstration, the last without mistakes


@dataclass(frozen=True)
class Demonstration:
    """A played episode. `learned`: for each of the agent's messages, whether it is learned;
    `whole`: whether no call was left out, and it ended in success."""

    task: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    learned: tuple[bool, ...]
    whole: bool = True

    def weighted(self) -> list[Message]:
        """The messages with a `weight` for each of the agent's: 0 is not learned."""
        learned = iter(self.learned)
        return [
            {**m, "weight": int(next(learned))} if m["role"] == "assistant" else m
            for m in self.messages
        ]


def demonstrations(
    suite: Suite, tasks: Sequence[Task], count: int, *, seed: int, max_turns: int, hasty: float = 0
) -> Iterator[Demonstration]:
    """Up to `count` demonstrations, of one task after the other and again. `hasty`: the share that
    leaves a call of the solution out. Raises UserError if none ends in success."""
    seen: dict[str, list[JSON]] = {}
    successes, tasks = 0, needed(tasks)
    for n in range(count):
        task = tasks[n % len(tasks)]
        for tried in range(TRIES):
            rng = Random(stable_seed("demonstration", seed, n, tried))
            mistakes = MISTAKES * (tried < TRIES - 1)
            demonstration = _play(suite, task, rng, mistakes, max_turns, seen, hasty)
            if demonstration is not None:
                successes += demonstration.whole
                yield demonstration
                break
        if not successes and n + 1 == min(len(tasks), count):
            raise UserError(
                f"no solution of {n + 1} tasks of {suite.name}/{suite.variant} ends in success "
                f"within {max_turns} turns, such as {task.id}. `python -m trace_bench.check` says "
                "why, or raise `policy.max_turns`."
            )


def _play(
    suite: Suite,
    task: Task,
    rng: Random,
    mistakes: float,
    max_turns: int,
    seen: dict[str, list[JSON]],
    hasty: float,
) -> Demonstration | None:
    """One episode; None if it does not end in success, unless a call was left out. `seen`: the
    arguments of right calls so far, by tool."""
    env = make(suite)
    try:
        first = step_one(env, task)
        if not isinstance(first, Step) or first.done:
            return None
        episode = _Episode(env, first, rng, seen)
        anywhere = env.has(Env.solution)
        if anywhere and episode.tools and mistakes and rng.random() < NOISY:
            for _ in range(rng.randint(1, MOST_NOISE)):
                episode.act(episode.random_call(), False)
        plan = _solution(suite, env, task)
        left_out = _left_out(plan) if rng.random() < hasty else None
        while plan and not episode.over and len(episode.learned) < max_turns:
            if sum(episode.learned) == left_out:
                plan.pop(0)
                left_out = -1  # and no other
            elif episode.tools and rng.random() < mistakes:
                episode.act(episode.mistake(plan[0]), False)
                plan = _solution(suite, env, task) if anywhere else plan
            else:
                episode.act(plan.pop(0), True)
        score = episode.last.score
        if episode.lost or score is None or not any(episode.learned):
            return None
        if (whole := left_out is None) and not score.success:
            return None
        messages, learned = tuple(episode.messages), tuple(episode.learned)
        return Demonstration(task.id, messages, episode.tools, learned, whole)
    finally:
        close(env)


def _solution(suite: Suite, env: Env, task: Task) -> list[Message]:
    """What solves the episode; nothing where that is not known."""
    if env.has(Env.solution):
        solution = attempt(lambda: list(env.solution()))
        return [] if isinstance(solution, BaseException) else solution
    return list(suite.reference(task)) if suite.has(Suite.reference) else []


def _left_out(plan: Sequence[Message]) -> int | None:
    """Which message of a solution a hasty agent leaves out: one with calls, always the same one
    where the same tools are called in the same order. None if there is none."""
    names = [[name for name, _ in _calls(message)] for message in plan]
    with_calls = [n for n, called in enumerate(names) if called]
    return Random(stable_seed("hasty", names)).choice(with_calls) if with_calls else None


class _Episode:
    """An episode. `learned`: of each of the agent's messages; `lost`: the environment raised."""

    def __init__(self, env: Env, first: Step, rng: Random, seen: dict[str, list[JSON]]) -> None:
        self.env, self.last, self.rng, self.seen = env, first, rng, seen
        self.tools, self.messages = tuple(first.tools), list(first.messages)
        self.learned: list[bool] = []
        self.lost = False

    @property
    def over(self) -> bool:
        return self.lost or self.last.done

    def act(self, message: Message, learned: bool) -> None:
        """Plays the agent's message, unless the episode is over."""
        if self.over:
            return
        for name, arguments in _calls(message) if learned else ():
            self.seen.setdefault(name, []).append(arguments)
        step = step_one(self.env, message)
        if not isinstance(step, Step):
            self.lost = True
            return
        self.last = step
        self.messages += [message, *step.messages]
        self.learned.append(learned)

    def mistake(self, right: Message) -> Message:
        """Another call than the right one, of the same tool half of the time."""
        names = [name for name, _ in _calls(right)]
        for _ in range(8):
            wrong = self.random_call(names[0] if names and self.rng.random() < 0.5 else None)
            if canonical(_calls(wrong)) != canonical(_calls(right)):
                break
        return wrong

    def random_call(self, name: str | None = None) -> Message:
        """A valid call, half of the time with arguments that were right in another episode."""
        functions = {tool["function"]["name"]: tool["function"] for tool in self.tools}
        if name is None or name not in functions:
            name = self.rng.choice(list(functions))
        earlier = self.seen.get(name, ())
        if earlier and self.rng.random() < 0.5:
            return make_call(name, **self.rng.choice(earlier))
        return make_call(name, **plausible(functions[name].get("parameters") or {}, self.rng))


def _calls(message: Message) -> list[tuple[str, JSON]]:
    """The names and arguments of a message's calls."""
    return [read_call(call) for call in message.get("tool_calls") or ()]
