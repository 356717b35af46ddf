"""Runs many episodes concurrently, without a barrier: each turn is handled as soon as it is ready.

A failed episode never ends a run: an exception from the environment becomes that episode's
Failure(ENVIRONMENT) (or the boundary that an EpisodeError names), an error from the policy
Failure(POLICY); a failed episode has no score. Episodes start in order and turns are handled in the
policy's order, so a deterministic policy gives the same run every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.errors import EpisodeError, TraceBenchError, UserError
from trace_bench.core.protocols import (
    Env,
    KnowsTask,
    OnEpisode,
    Policy,
    Router,
    RoutesTurns,
    ScoresAlone,
    Suite,
    TurnReply,
    TurnRequest,
    Wakes,
)
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
)
from trace_bench.play.faults import Faults
from trace_bench.play.steps import (
    Way,
    close,
    fault_of,
    fault_of_score,
    make,
    readable,
    step_all,
    step_one,
    way_of,
)
from trace_bench.play.suites import Suites
from trace_bench.policies.routing.merge import Mixture, Sums
from trace_bench.policies.routing.router import make_router

MALFORMED = "ValueError: malformed tool call"


def play(
    policy: Policy,
    suite: Suite | Suites,
    agent: AgentSpec,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    *,
    temperature: float = 1.0,
    route: Sequence[str | None] | None = None,
    hints: Sequence[str] | None = None,
    max_turns: int = 20,
    max_tokens: int = 96,
    on_episode: OnEpisode | None = None,
    faults: Faults | None = None,
) -> list[Trajectory]:
    """Runs one episode per entry of `tasks` and returns the trajectories in that order.

    `seeds[i]` is the seed of episode i's own random stream. `route[i]` is its adapter's name (None:
    base model); without `route` the agent's router chooses from the first messages, or anew at
    every turn. `hints[i]` is added to the agent's prompt in episode i. `max_turns`
    limits the agent's turns, `max_tokens` the tokens of one turn. `on_episode(i, trajectory)` is
    called when an episode ends, in the order in which they end. `faults` keeps tracebacks of the
    exceptions that end episodes.
    """
    if {len(given) for given in (seeds, route, hints) if given is not None} != {len(tasks)}:
        raise ValueError("tasks, seeds, route and hints must have the same length")
    policy.load(agent)
    suites = suite if isinstance(suite, Suites) else Suites(suite)
    router = make_router(agent, policy) if route is None else None
    playing = _Playing(
        policy, suites, agent, temperature, max_turns, max_tokens, on_episode, router, faults
    )
    return playing.play(tasks, seeds, route, hints)


def with_guidance(messages: Sequence[Message], guidance: str) -> tuple[Message, ...]:
    """The messages with the agent's prompt: "\\nGuidance: <prompt>" is added to the first system
    message, or becomes one if there is none. Nothing else inserts the prompt."""
    if not guidance:
        return tuple(messages)
    out = list(messages)
    for i, message in enumerate(out):
        if message["role"] == "system":
            out[i] = {**message, "content": f"{message['content']}\nGuidance: {guidance}"}
            return tuple(out)
    return ({"role": "system", "content": f"Guidance: {guidance}"}, *out)


def without_guidance(messages: Sequence[Message], guidance: str) -> tuple[Message, ...]:
    """The messages as they were before `with_guidance`."""
    out = list(messages)
    for i, message in enumerate(out):
        if message["role"] == "system":
            text = str(message["content"]).removesuffix(f"Guidance: {guidance}")
            if not text:
                return (*out[:i], *out[i + 1 :])
            out[i] = {**message, "content": text.removesuffix("\n")}
            break
    return tuple(out)


@dataclass
class _Episode:
    index: int
    task: Task
    seed: int
    suite: Suite
    env: Env
    adapter: str | None = None
    hint: str = ""
    used: list[str | None] = field(default_factory=list)  # the adapters so far, each once
    opened: bool = False
    tools: tuple[Tool, ...] = ()
    pending: tuple[Message, ...] = ()  # arrived since the agent's last turn
    turns: list[Turn] = field(default_factory=list)


Choice = str | Mixture | None  # an adapter's name, a weighted sum, or the base model
_Due = tuple[_Episode, Task | Message]  # a reset (task) or a step (message) to make


@dataclass
class _Playing:
    """One call of `play`. The abilities of the policy and the suites are looked up once."""

    policy: Policy
    suites: Suites
    agent: AgentSpec
    temperature: float
    max_turns: int
    max_tokens: int
    on_episode: OnEpisode | None
    router: Router | None = None
    faults: Faults | None = None
    live: dict[int, _Episode] = field(default_factory=dict)
    done: dict[int, Trajectory] = field(default_factory=dict)
    outbox: list[TurnRequest] = field(default_factory=list)
    asked: int = 0  # turns requested and not yet collected
    thinking: dict[Future[Step | Exception], _Episode] = field(default_factory=dict)
    routing: dict[Future[Choice], tuple[_Episode, Step, tuple[Message, ...]]] = field(
        default_factory=dict
    )
    threads: ThreadPoolExecutor | None = None
    ways: dict[int, Way] = field(default_factory=dict)  # by the suite's id()

    def __post_init__(self) -> None:
        policy = self.policy
        self.wake = policy.wake if isinstance(policy, Wakes) else None
        self.bind = policy.bind if isinstance(policy, KnowsTask) else None
        self.sums = Sums(policy, self.agent)
        self.turns = self.router if isinstance(self.router, RoutesTurns) else None

    def play(
        self,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        route: Sequence[str | None] | None,
        hints: Sequence[str] | None,
    ) -> list[Trajectory]:
        started = 0
        try:
            while len(self.done) < len(tasks):
                count = min(len(tasks) - started, self.policy.capacity - len(self.live))
                fresh = range(started, started + max(count, 0))
                started += len(fresh)
                self._start(fresh, tasks, seeds, route, hints)
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
                close(episode.env)
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
        hints: Sequence[str] | None,
    ) -> None:
        """Resets environments."""
        due: list[_Due] = []
        for i in indices:
            adapter = None if route is None else route[i]
            suite = self.suites.of(tasks[i])
            hint = "" if hints is None else hints[i]
            self.live[i] = _Episode(i, tasks[i], seeds[i], suite, make(suite), adapter, hint)
            due.append((self.live[i], tasks[i]))
        self._act(due)

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
        groups: dict[int, list[_Due]] = {}
        for episode, what in due:
            groups.setdefault(id(episode.suite), []).append((episode, what))
        for key, group in groups.items():
            suite = group[0][0].suite
            way = self.ways.get(key) or self.ways.setdefault(key, way_of(suite))
            if way is Way.TOGETHER:
                steps = step_all(suite, [(episode.env, what) for episode, what in group])
                for (episode, _), step in zip(group, steps, strict=True):
                    self._stepped(episode, step)
            elif way is Way.IN_THREADS:
                for episode, what in group:
                    future = self._in_thread(step_one, episode.env, what)
                    self.thinking[future] = episode
            else:
                for episode, what in group:
                    self._stepped(episode, step_one(episode.env, what))

    def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs a function that waits for a model's answer in a thread. When it ends, a policy that
        implements `Wakes` is woken, so that this episode does not wait for another one's turn."""
        self.threads = self.threads or ThreadPoolExecutor(self.policy.capacity)
        future = self.threads.submit(function, *arguments)
        if (wake := self.wake) is not None:
            future.add_done_callback(lambda _: wake())
        return future

    def _gather(self) -> None:
        """Handles the results of finished threads."""
        for routed in [f for f in self.routing if f.done()]:
            episode, step, first = self.routing.pop(routed)
            if (error := routed.exception()) is None:
                self._begin(episode, step, first, routed.result())
            elif isinstance(error, UserError):
                raise error  # a setup error: no episode can be routed
            else:
                self._fail(episode, Boundary.POLICY, described(error))
        for future in [f for f in self.thinking if f.done()]:
            self._stepped(self.thinking.pop(future), future.result())

    def _stepped(self, episode: _Episode, step: Step | Exception) -> None:
        """Handles the result of a reset or step."""
        if isinstance(step, Exception):
            self._fail(episode, Boundary.ENVIRONMENT, step)
        elif (fault := fault_of(step)) is not None:
            self._fail(episode, Boundary.ENVIRONMENT, fault)
        elif episode.opened:
            self._take(episode, readable(step))
        else:
            self._open(episode, readable(step))

    def _open(self, episode: _Episode, step: Step) -> None:
        """Starts the conversation: adds the guidance, sets the tools and chooses the adapter."""
        episode.opened = True
        guidance = "\n".join(text for text in (self.agent.prompt, episode.hint) if text)
        first = with_guidance(step.messages, guidance)
        episode.tools = step.tools
        if self.router is None:
            self._begin(episode, step, first, episode.adapter)
        elif self.router.waits:
            future = self._in_thread(self.router.route, first, step.tools)
            self.routing[future] = (episode, step, first)
        else:
            try:
                chosen: Choice = self.router.route(first, step.tools)
            except UserError:
                raise  # a setup error: no episode can be routed
            except Exception as error:
                self._fail(episode, Boundary.POLICY, error)
                return
            self._begin(episode, step, first, chosen)

    def _begin(
        self, episode: _Episode, step: Step, first: tuple[Message, ...], chosen: Choice
    ) -> None:
        episode.adapter = self.sums.name_of(chosen)
        if self.bind is not None:
            try:
                self.bind(episode.index, episode.task)
            except TraceBenchError:
                raise
            except Exception as error:  # a script for a task that has none
                self._fail(episode, Boundary.POLICY, error)
                return
        self._take(episode, Step(first, done=step.done, score=step.score, stop=step.stop))

    def _take(self, episode: _Episode, step: Step) -> None:
        episode.pending = tuple(step.messages)
        if step.done:
            self._finish(episode, step.stop or StopReason.DONE, step.score)
            return
        if len(episode.turns) >= self.max_turns:
            self._cut(episode, StopReason.TURN_LIMIT)
            return
        if episode.turns and self.turns is not None and not self._switched(episode, self.turns):
            return
        if episode.adapter not in episode.used:
            episode.used.append(episode.adapter)
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

    def _switched(self, episode: _Episode, turns: RoutesTurns) -> bool:
        """Chooses the adapter for an episode's next turn; False if that failed the episode."""
        messages: list[Message] = []
        for turn in episode.turns:
            messages += [*turn.messages, turn.reply]
        try:
            chosen = turns.next([*messages, *episode.pending], episode.tools)
            episode.adapter = self.sums.name_of(chosen)
        except UserError:
            raise  # a setup error: no turn can be routed
        except Exception as error:
            self._fail(episode, Boundary.POLICY, error)
            return False
        return True

    def _cut(self, episode: _Episode, stop: StopReason) -> None:
        """Ends an episode whose agent ran out of turns or context. That is not a failure of the
        infrastructure: the environment scores it as it stands, or else the score is 0."""
        score = Score(0.0, False)
        if isinstance(episode.env, ScoresAlone):
            try:
                score = episode.env.score()
            except Exception as error:
                self._fail(episode, Boundary.ENVIRONMENT, error)
                return
            if (fault := fault_of_score(score)) is not None:
                self._fail(episode, Boundary.ENVIRONMENT, fault)
                return
        self._finish(episode, stop, score)

    def _fail(self, episode: _Episode, boundary: Boundary, error: Exception | str) -> None:
        if isinstance(error, EpisodeError):
            boundary = Boundary(error.boundary)
        if self.faults is not None and isinstance(error, Exception):
            self.faults.note(episode.task, boundary, error)
        text = error if isinstance(error, str) else described(error)
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
            adapter=_players(episode),
        )
        del self.live[episode.index]
        self.policy.release(episode.index)
        close(episode.env)
        self.done[episode.index] = trajectory
        if self.on_episode is not None:
            self.on_episode(episode.index, trajectory)


def _players(episode: _Episode) -> str | None:
    """The adapter that acted in the episode; all of them, in order of their first turn, if it
    changed."""
    if len(episode.used) < 2:
        return episode.adapter
    return " > ".join(name or "base model" for name in episode.used)
