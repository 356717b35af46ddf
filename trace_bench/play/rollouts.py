"""Runs many episodes concurrently, without a barrier: each turn is handled as soon as it is ready.

A failed episode never ends a run: an exception becomes its Failure, of the environment (or the
boundary that an EpisodeError names) or of the policy, without a score. Episodes start in order and
turns are handled in the policy's order: a deterministic policy gives the same run every time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from trace_bench.core.chat import with_guidance
from trace_bench.core.decode import score_of
from trace_bench.core.errors import EpisodeError, TraceBenchError, UserError, attempt
from trace_bench.core.protocols import Env, OnEpisode, Policy, Suite, TurnReply, TurnRequest
from trace_bench.core.text import described
from trace_bench.core.types import (
    AgentSpec,
    Boundary,
    Failure,
    Message,
    Score,
    Step,
    StopReason,
    Task,
    Tool,
    Trajectory,
    Turn,
    grouped,
)
from trace_bench.play import steps
from trace_bench.play.steps import Faults
from trace_bench.play.suites import Suites
from trace_bench.policies.routing.merge import MergedSums, Mixture
from trace_bench.policies.routing.router import make_router

# Seconds that a thread lets another one run. A thread that waits for the interpreter wakes as often
# to ask for it, so with Python's own 0.005 two thousand of them take most of a core for that.
INTERVAL = 0.05
MALFORMED = "ValueError: malformed tool call"


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes to run, one per entry of `tasks`. `seeds[i]` is the seed of episode i's own random
    stream; `route[i]` its adapter's name (None: base model), without `route` the agent's router
    chooses. Raises ValueError unless all have the same length."""

    agent: AgentSpec
    tasks: tuple[Task, ...]
    seeds: tuple[int, ...]
    temperature: float = 1.0
    route: tuple[str | None, ...] | None = None

    def __post_init__(self) -> None:
        columns = (self.seeds, self.route)
        if {len(values) for values in columns if values is not None} != {len(self.tasks)}:
            raise ValueError("tasks, seeds and route must have the same length")

    def __len__(self) -> int:
        return len(self.tasks)

    def with_more(self, more: EpisodeBatch) -> EpisodeBatch:
        """With those of a batch of the same agent behind its own."""
        tasks, seeds = (*self.tasks, *more.tasks), (*self.seeds, *more.seeds)
        route = None if self.route is None else (*self.route, *(more.route or ()))
        return replace(self, tasks=tasks, seeds=seeds, route=route)

    def only(self, which: Sequence[int]) -> EpisodeBatch:
        tasks, seeds = tuple(self.tasks[i] for i in which), tuple(self.seeds[i] for i in which)
        route = None if self.route is None else tuple(self.route[i] for i in which)
        return replace(self, tasks=tasks, seeds=seeds, route=route)


More = Callable[[], EpisodeBatch | None]
"""What has been asked for since, of the same agent; each such request wakes the policy."""


@dataclass(frozen=True)
class Player:
    """Runs batches of episodes. `max_tokens`: per turn; `faults`: keeps tracebacks."""

    policy: Policy
    suites: Suites
    max_turns: int = 20
    max_tokens: int = 96
    faults: Faults = field(default_factory=Faults)

    @property
    def repeats(self) -> bool:
        """Whether running the same batch again gives the same episodes."""
        return self.policy.repeatable and not any(suite.asks_user() for suite in self.suites)

    def play(
        self, batch: EpisodeBatch, on_episode: OnEpisode | None = None, more: More | None = None
    ) -> list[Trajectory]:
        """The batch's trajectories, in order; `on_episode(i, trajectory)` is called at each end.
        `more`: episodes that join those that run."""
        self.policy.load(batch.agent)
        return _Playing(self, batch, on_episode, more).play()

    def complete(self, batch: EpisodeBatch, there: Collection[int], on_episode: OnEpisode) -> None:
        """Runs what is missing of a batch of which `there` has been run before. The rounding of an
        episode may depend on the others in its batch, so all of it is run again, and what was
        missing is reported; where nothing repeats itself, this alone is run."""
        missing = [i for i in range(len(batch)) if i not in there]
        if not missing:
            return
        which = range(len(batch)) if self.repeats else missing

        def ended(place: int, trajectory: Trajectory) -> None:
            if which[place] not in there:
                on_episode(which[place], trajectory)

        self.play(batch.only(which), ended)


Choice = str | Mixture | None  # an adapter's name, a weighted sum, or the base model


@dataclass
class _Live:
    index: int
    task: Task
    suite: Suite
    env: Env
    adapter: str | None = None
    opened: bool = False
    tools: tuple[Tool, ...] = ()
    pending: tuple[Message, ...] = ()  # arrived since the agent's last turn
    turns: list[Turn] = field(default_factory=list)


_Due = tuple[_Live, Task | Message]  # a reset (task) or a step (message) to make


@dataclass(eq=False)
class _Playing:
    player: Player
    batch: EpisodeBatch
    on_episode: OnEpisode | None
    more: More | None = None

    def __post_init__(self) -> None:
        policy, agent = self.player.policy, self.batch.agent
        self.policy = policy
        self.router = make_router(agent, policy) if self.batch.route is None else None
        self.sums = MergedSums(policy, agent)
        self.live: dict[int, _Live] = {}
        self.done: dict[int, Trajectory] = {}
        self.outbox: list[TurnRequest] = []
        self.asked = 0  # turns requested and not yet collected
        self.waiting: dict[Future[Any], Callable[[Any], None]] = {}  # and what takes the result
        self.ended: SimpleQueue[Future[Any]] = SimpleQueue()  # of these; thousands may wait
        self.threads: ThreadPoolExecutor | None = None
        self.interval = sys.getswitchinterval()

    def play(self) -> list[Trajectory]:
        try:
            while len(self.done) < len(self.batch):
                if self.more is not None and (more := self.more()) is not None:
                    self.batch = self.batch.with_more(more)
                end = min(len(self.batch), len(self.done) + self.policy.capacity)
                fresh = range(len(self.done) + len(self.live), end)
                self._act([self._start(i) for i in fresh])
                self._submit()
                # The end of a turn wakes it, and that of what is waited for, too.
                if self.asked or (self.waiting and self.more is not None):
                    replies = self.policy.collect()
                    self.asked -= len(replies)
                    self._answer(replies)
                elif self.waiting:
                    self._take_result(self.ended.get())
                while not self.ended.empty():
                    self._take_result(self.ended.get())
                self._submit()
        finally:
            if self.threads is not None:
                self.threads.shutdown(wait=False, cancel_futures=True)
                sys.setswitchinterval(self.interval)
            for episode in list(self.live.values()):
                self.policy.release(episode.index)
                steps.close(episode.env)
        return [self.done[i] for i in range(len(self.batch))]

    def _submit(self) -> None:
        if self.outbox:
            self.asked += len(self.outbox)
            self.policy.submit(self.outbox)
            self.outbox = []

    def _start(self, index: int) -> _Due:
        task = self.batch.tasks[index]
        suite = self.player.suites.of(task)
        adapter = None if self.batch.route is None else self.batch.route[index]
        self.live[index] = _Live(index, task, suite, steps.make(suite), adapter)
        return self.live[index], task

    def _answer(self, replies: Sequence[TurnReply]) -> None:
        """Passes the agent's turns to their environments."""
        due: list[_Due] = []
        for reply in replies:
            episode = self.live[reply.episode]
            if reply.context_full:
                self._cut(episode, StopReason.CONTEXT_LIMIT)
                continue
            if reply.turn is None:
                error = reply.error or "the policy gave no turn and no reason"
                self._fail(episode, Boundary.POLICY, error)
                continue
            episode.turns.append(reply.turn)
            episode.pending = ()
            if reply.turn.malformed is not None:
                # The environment never sees a malformed call; the agent gets an error message.
                note = {"role": "tool", "tool_call_id": "", "name": "", "content": MALFORMED}
                self._take(episode, Step((note,)))
            else:
                due.append((episode, reply.turn.reply))
        self._act(due)

    def _act(self, due: Sequence[_Due]) -> None:
        """Makes the resets and steps that are due, suite by suite."""
        for group in grouped(due, lambda one: id(one[0].suite)).values():
            suite = group[0][0].suite
            if suite.asks_user() and not suite.has(Suite.act):
                for episode, what in group:
                    self._in_thread(
                        partial(steps.step_one, episode.env, what), partial(self._stepped, episode)
                    )
                continue
            results = steps.step_all(suite, [(episode.env, what) for episode, what in group])
            for (episode, _), step in zip(group, results, strict=True):
                self._stepped(episode, step)

    def _in_thread(self, ask: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Runs in a thread what waits for a model's answer. When it ends, the policy is woken, so
        that this episode does not wait for another one's turn, and `then` is given the result."""
        if self.threads is None:
            self.threads = ThreadPoolExecutor(self.policy.capacity)
            sys.setswitchinterval(max(self.interval, INTERVAL))
        future = self.threads.submit(ask)
        self.waiting[future] = then
        future.add_done_callback(self.ended.put)
        future.add_done_callback(lambda _: self.policy.wake())

    def _take_result(self, future: Future[Any]) -> None:
        self.waiting.pop(future)(future.result())

    def _stepped(self, episode: _Live, step: Step | BaseException) -> None:
        if isinstance(step, BaseException):
            self._fail(episode, Boundary.ENVIRONMENT, step)
        elif episode.opened:
            self._take(episode, step)
        else:
            self._open(episode, step)

    def _open(self, episode: _Live, step: Step) -> None:
        """Starts the conversation: adds the guidance, sets the tools and chooses the adapter."""
        episode.opened = True
        messages = with_guidance(step.messages, self.batch.agent.prompt)
        opening = replace(step, messages=messages)
        episode.tools = step.tools
        begin = partial(self._begin, episode, opening)
        if self.router is None:
            begin(episode.adapter)
            return
        choose = partial(attempt, partial(self.router.route, opening.messages, step.tools))
        if self.router.waits:
            self._in_thread(choose, begin)
        else:
            begin(choose())

    def _begin(self, episode: _Live, opening: Step, chosen: Choice | BaseException) -> None:
        if isinstance(chosen, UserError):
            raise chosen  # a setup error: no episode can be routed
        if isinstance(chosen, BaseException):
            asked = self.router is not None and self.router.waits  # a server has no traceback
            self._fail(episode, Boundary.POLICY, described(chosen) if asked else chosen)
            return
        episode.adapter = self.sums.name_of(chosen)
        try:
            self.policy.bind(episode.index, episode.task)
        except TraceBenchError:
            raise
        except Exception as error:  # a script for a task that has none
            self._fail(episode, Boundary.POLICY, error)
            return
        self._take(episode, opening)

    def _take(self, episode: _Live, step: Step) -> None:
        episode.pending = tuple(step.messages)
        if step.done:
            self._finish(episode, step.stop or StopReason.DONE, step.score)
            return
        if len(episode.turns) >= self.player.max_turns:
            self._cut(episode, StopReason.TURN_LIMIT)
            return
        self.outbox.append(
            TurnRequest(
                episode=episode.index,
                messages=episode.pending,
                tools=() if episode.turns else episode.tools,
                adapter=episode.adapter,
                seed=self.batch.seeds[episode.index],
                temperature=self.batch.temperature,
                max_tokens=self.player.max_tokens,
            )
        )

    def _cut(self, episode: _Live, stop: StopReason) -> None:
        """Ends an episode whose agent ran out of turns or context. That is not a failure of the
        infrastructure: the environment scores it as it stands, or else the score is 0."""
        score = attempt(lambda: score_of(episode.env.score()))
        if isinstance(score, BaseException):
            self._fail(episode, Boundary.ENVIRONMENT, score)
        else:
            self._finish(episode, stop, score)

    def _fail(self, episode: _Live, boundary: Boundary, error: BaseException | str) -> None:
        if isinstance(error, EpisodeError):
            boundary = Boundary(error.boundary)
        if isinstance(error, BaseException):
            self.player.faults.note(episode.task, boundary, error)
        text = error if isinstance(error, str) else described(error)
        self._finish(episode, StopReason.ERROR, None, Failure(boundary, text))

    def _finish(
        self, episode: _Live, stop: StopReason, score: Score | None, failure: Failure | None = None
    ) -> None:
        if score is None and failure is None:
            stop = StopReason.ERROR
            failure = Failure(Boundary.ENVIRONMENT, "the environment ended without a score")
        if score is not None and (beyond := steps.beyond(score, episode.turns)):
            stop, score, failure = StopReason.ERROR, None, Failure(Boundary.ENVIRONMENT, beyond)
        if score is not None:
            score = self.player.suites.scored(episode.task, episode.turns, score)
        trajectory = Trajectory(
            task=episode.task.id,
            seed=self.batch.seeds[episode.index],
            agent=self.batch.agent.version,
            tools=episode.tools,
            turns=tuple(episode.turns),
            closing=episode.pending,
            stop=stop,
            score=score,
            failure=failure,
            adapter=episode.adapter,
        )
        del self.live[episode.index]
        self.policy.release(episode.index)
        steps.close(episode.env)
        self.done[episode.index] = trajectory
        if self.on_episode is not None:
            self.on_episode(episode.index, trajectory)
