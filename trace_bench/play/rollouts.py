"""Many episodes in flight, no barrier: whichever turn is ready is answered next.

A bad episode is data, never the end of a run: an exception from the environment becomes that
episode's Failure(ENVIRONMENT) (or the boundary that an EpisodeError names), an error from the
policy Failure(POLICY); a failed episode has no score. Episodes start in order and turns are
handled in the policy's order, so that a deterministic policy gives the same run every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import Env, Policy, Router, Suite, TurnReply, TurnRequest
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import (
    AdapterRef,
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
)
from trace_bench.play.suites import Several
from trace_bench.policies.routing.merge import Mixture, merge
from trace_bench.policies.routing.router import make_router

MALFORMED = "ValueError: malformed tool call"

OnEpisode = Callable[[int, Trajectory], None]


def play(
    policy: Policy,
    suite: Suite | Several,
    agent: AgentSpec,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    *,
    temperature: float = 1.0,
    route: Sequence[str | None] | None = None,
    max_turns: int = 20,
    max_tokens: int = 96,
    on_episode: OnEpisode | None = None,
) -> list[Trajectory]:
    """Plays one episode per entry of `tasks` and returns the trajectories in that order.

    `seeds[i]` is episode i's own random stream. `route[i]` is its adapter's name (None: base
    model); without `route` the agent's router chooses from the first messages. `max_turns` bounds
    the agent's turns, `max_tokens` the tokens of one turn. `on_episode(i, trajectory)` is called
    as each episode ends, in the order in which they end.
    """
    if len(seeds) != len(tasks) or (route is not None and len(route) != len(tasks)):
        raise ValueError("tasks, seeds and route must have the same length")
    policy.load(agent)
    suites = suite if isinstance(suite, Several) else Several(suite)
    run = _Run(policy, suites, agent, temperature, max_turns, max_tokens, on_episode)
    run.router = make_router(agent, policy) if route is None else None
    return run.play(tasks, seeds, route)


def with_guidance(messages: Sequence[Message], guidance: str) -> tuple[Message, ...]:
    """The only place where an agent's prompt meets a conversation: "\\nGuidance: <prompt>" is
    added to the first system message, or becomes one where there is none."""
    if not guidance:
        return tuple(messages)
    out = list(messages)
    for i, message in enumerate(out):
        if message["role"] == "system":
            out[i] = {**message, "content": f"{message['content']}\nGuidance: {guidance}"}
            return tuple(out)
    return ({"role": "system", "content": f"Guidance: {guidance}"}, *out)


@dataclass
class _Episode:
    index: int
    task: Task
    seed: int
    suite: Suite
    env: Env
    adapter: str | None = None
    opened: bool = False
    tools: tuple[Tool, ...] = ()
    pending: tuple[Message, ...] = ()  # arrived since the agent's last turn
    turns: list[Turn] = field(default_factory=list)


Choice = str | Mixture | None  # an adapter's name, a weighted sum, or the base model
Due = tuple[_Episode, Task | Message]  # a reset or a step that is to be made


@dataclass
class _Run:
    policy: Policy
    suites: Several
    agent: AgentSpec
    temperature: float
    max_turns: int
    max_tokens: int
    on_episode: OnEpisode | None
    router: Router | None = None
    live: dict[int, _Episode] = field(default_factory=dict)
    done: dict[int, Trajectory] = field(default_factory=dict)
    outbox: list[TurnRequest] = field(default_factory=list)
    asked: int = 0  # turns that the policy owes
    thinking: dict[Future[Step | Exception], _Episode] = field(default_factory=dict)
    sums: dict[str, AdapterRef] = field(default_factory=dict)  # weighted sums of adapters
    routing: dict[Future[Choice], tuple[_Episode, Step, tuple[Message, ...]]] = field(
        default_factory=dict
    )
    threads: ThreadPoolExecutor | None = None

    def play(
        self, tasks: Sequence[Task], seeds: Sequence[int], route: Sequence[str | None] | None
    ) -> list[Trajectory]:
        started = 0
        try:
            while len(self.done) < len(tasks):
                room = min(len(tasks) - started, self.policy.capacity - len(self.live))
                fresh = range(started, started + max(room, 0))
                started += len(fresh)
                self._start(fresh, tasks, seeds, route)
                self._submit()
                if self.asked:
                    replies = self.policy.collect()
                    self.asked -= len(replies)
                    self._answer(replies)
                elif self.thinking or self.routing:
                    busy: list[Future[Any]] = [*self.thinking, *self.routing]
                    wait(busy, return_when=FIRST_COMPLETED)
                self._gather()
                self._submit()
        finally:
            if self.threads is not None:
                self.threads.shutdown(wait=False, cancel_futures=True)
            for episode in list(self.live.values()):
                self.policy.release(episode.index)
                _close(episode.env)
        return [self.done[i] for i in range(len(tasks))]

    def _submit(self) -> None:
        if self.outbox:
            self.asked += len(self.outbox)
            self.policy.submit(self.outbox)
            self.outbox = []

    def _start(
        self,
        indices: Sequence[int],
        tasks: Sequence[Task],
        seeds: Sequence[int],
        route: Sequence[str | None] | None,
    ) -> None:
        """Resets environments."""
        due: list[Due] = []
        for i in indices:
            adapter = None if route is None else route[i]
            suite = self.suites.of(tasks[i])
            self.live[i] = _Episode(i, tasks[i], seeds[i], suite, suite.make(), adapter)
            due.append((self.live[i], tasks[i]))
        self._act(due)

    def _answer(self, replies: Sequence[TurnReply]) -> None:
        """Hands turns to their environments."""
        due: list[Due] = []
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
                # The environment never sees a call that cannot be read; the agent is told.
                note = {"role": "tool", "tool_call_id": "", "name": "", "content": MALFORMED}
                self._take(episode, Step((note,)))
            else:
                due.append((episode, reply.turn.reply))
        self._act(due)

    def _act(self, due: Sequence[Due]) -> None:
        """Resets and steps: those of one suite all at once where it can (it has `act`); where its
        environments wait for somebody's words (it has `asks`) each in a thread of its own; else in
        turn."""
        groups: dict[int, list[Due]] = {}
        for episode, what in due:
            groups.setdefault(id(episode.suite), []).append((episode, what))
        for group in groups.values():
            suite = group[0][0].suite
            if (together := getattr(suite, "act", None)) is not None:
                steps = together([(episode.env, what) for episode, what in group])
                for (episode, _), step in zip(group, steps, strict=True):
                    self._stepped(episode, step)
            elif getattr(suite, "asks", False):
                for episode, what in group:
                    future = self._aside(_single, episode.env, what)
                    self.thinking[future] = episode
            else:
                for episode, what in group:
                    self._stepped(episode, _single(episode.env, what))

    def _aside(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begins what waits for somebody's words in a thread of its own. A policy that can be woken
        is, at its end, so that nobody waits for another episode's turn."""
        self.threads = self.threads or ThreadPoolExecutor(self.policy.capacity)
        future = self.threads.submit(function, *arguments)
        if (wake := getattr(self.policy, "wake", None)) is not None:
            future.add_done_callback(lambda _: wake())
        return future

    def _gather(self) -> None:
        """Takes what the threads have finished."""
        for routed in [f for f in self.routing if f.done()]:
            episode, step, first = self.routing.pop(routed)
            if (error := routed.exception()) is None:
                self._begin(episode, step, first, routed.result())
            elif isinstance(error, UserError):
                raise error  # nobody can be routed
            else:
                self._fail(episode, Boundary.POLICY, f"{type(error).__name__}: {error}")
        for future in [f for f in self.thinking if f.done()]:
            self._stepped(self.thinking.pop(future), future.result())

    def _stepped(self, episode: _Episode, step: Step | Exception) -> None:
        """What came of a reset or step."""
        if isinstance(step, Exception):
            self._fail(episode, Boundary.ENVIRONMENT, step)
        elif episode.opened:
            self._take(episode, _readable(step))
        else:
            self._open(episode, _readable(step))

    def _open(self, episode: _Episode, step: Step) -> None:
        """The episode's first messages: guidance, tools, and which adapter plays."""
        episode.opened = True
        first = with_guidance(step.messages, self.agent.prompt)
        episode.tools = step.tools
        if self.router is None:
            self._begin(episode, step, first, episode.adapter)
        elif getattr(self.router, "slow", False):
            future = self._aside(self.router.route, first, step.tools)
            self.routing[future] = (episode, step, first)
        else:
            self._begin(episode, step, first, self.router.route(first, step.tools))

    def _begin(
        self, episode: _Episode, step: Step, first: tuple[Message, ...], chosen: Choice
    ) -> None:
        episode.adapter = self._merged(chosen) if isinstance(chosen, Mixture) else chosen
        if (bind := getattr(self.policy, "bind", None)) is not None:
            bind(episode.index, episode.task)  # scripted policies need to know the task
        self._take(episode, Step(first, done=step.done, score=step.score, stop=step.stop))

    def _merged(self, wanted: Mixture) -> str:
        """The name of a weighted sum of the agent's adapters, made and loaded when first asked."""
        if wanted.name not in self.sums:
            self.sums[wanted.name] = merge(wanted, self.agent.adapters)
            everything = (*self.agent.adapters, *self.sums.values())
            self.policy.load(replace(self.agent, adapters=everything))
        return wanted.name

    def _take(self, episode: _Episode, step: Step) -> None:
        episode.pending = tuple(step.messages)
        if step.done:
            self._finish(episode, step.stop or StopReason.DONE, step.score)
            return
        if len(episode.turns) >= self.max_turns:
            self._cut(episode, StopReason.TURN_LIMIT)
            return
        self.outbox.append(
            TurnRequest(
                episode=episode.index,
                messages=episode.pending,
                tools=() if episode.turns else episode.tools,
                adapter=episode.adapter,
                seed=episode.seed,
                temperature=self.temperature,
                max_tokens=self.max_tokens,
            )
        )

    def _cut(self, episode: _Episode, stop: StopReason) -> None:
        """The agent ran out of turns or context: its own doing, so it is scored as it stands
        where the environment can (a method `score()`), and as 0 where it cannot."""
        score = Score(0.0, False)
        if (current := getattr(episode.env, "score", None)) is not None:
            try:
                score = current()
            except Exception as error:
                self._fail(episode, Boundary.ENVIRONMENT, error)
                return
        self._finish(episode, stop, score)

    def _fail(self, episode: _Episode, boundary: Boundary, error: Exception | str) -> None:
        if isinstance(error, EpisodeError):
            boundary = Boundary(error.boundary)
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._finish(episode, StopReason.ERROR, None, Failure(boundary, text))

    def _finish(
        self,
        episode: _Episode,
        stop: StopReason,
        score: Score | None,
        failure: Failure | None = None,
    ) -> None:
        if score is None and failure is None:
            stop = StopReason.ERROR
            failure = Failure(Boundary.ENVIRONMENT, "the environment ended without a score")
        trajectory = Trajectory(
            task=episode.task.id,
            seed=episode.seed,
            agent=self.agent.version,
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
        _close(episode.env)
        self.done[episode.index] = trajectory
        if self.on_episode is not None:
            self.on_episode(episode.index, trajectory)


def _single(env: Env, what: Task | Message) -> Step | Exception:
    try:
        return env.reset(what) if isinstance(what, Task) else env.step(what)
    except Exception as error:
        return error


def _readable(step: Step) -> Step:
    """Without halves of characters, which no tokenizer takes."""
    if all(str(m.get("content") or "").isascii() for m in step.messages):
        return step
    return replace(step, messages=tuple(without_surrogates(dict(m)) for m in step.messages))


def _close(env: Env) -> None:
    """An environment that fails to close has already given its score; that stands."""
    try:
        env.close()
    except Exception:
        return
