"""Many episodes in flight, no barrier: whichever turn is ready is answered next.

A bad episode is data, never the end of a run: an exception from the environment becomes that
episode's Failure(ENVIRONMENT) (or the boundary that an EpisodeError names), an error from the
policy Failure(POLICY); a failed episode has no score. Episodes start in order and turns are
handled in the policy's order, so that a deterministic policy gives the same run every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trace_bench.errors import EpisodeError
from trace_bench.policies.routed import make_router
from trace_bench.protocols import Env, Policy, Router, Suite, TurnReply, TurnRequest
from trace_bench.types import (
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

MALFORMED = "ValueError: malformed tool call"

OnEpisode = Callable[[int, Trajectory], None]


def play(
    policy: Policy,
    suite: Suite,
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
    run = _Run(policy, suite, agent, temperature, max_turns, max_tokens, on_episode)
    run.router = make_router(agent) if route is None else None
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
    env: Env
    adapter: str | None = None
    tools: tuple[Tool, ...] = ()
    pending: tuple[Message, ...] = ()  # arrived since the agent's last turn
    turns: list[Turn] = field(default_factory=list)


@dataclass
class _Run:
    policy: Policy
    suite: Suite
    agent: AgentSpec
    temperature: float
    max_turns: int
    max_tokens: int
    on_episode: OnEpisode | None
    router: Router | None = None
    live: dict[int, _Episode] = field(default_factory=dict)
    done: dict[int, Trajectory] = field(default_factory=dict)

    def play(
        self, tasks: Sequence[Task], seeds: Sequence[int], route: Sequence[str | None] | None
    ) -> list[Trajectory]:
        started = 0
        try:
            while len(self.done) < len(tasks):
                room = min(len(tasks) - started, self.policy.capacity - len(self.live))
                fresh = range(started, started + max(room, 0))
                started += len(fresh)
                self._submit(self._start(fresh, tasks, seeds, route))
                if self.live:
                    self._submit(self._answer(self.policy.collect()))
        finally:
            for episode in list(self.live.values()):
                self.policy.release(episode.index)
                _close(episode.env)
        return [self.done[i] for i in range(len(tasks))]

    def _submit(self, requests: list[TurnRequest]) -> None:
        if requests:
            self.policy.submit(requests)

    def _start(
        self,
        indices: Sequence[int],
        tasks: Sequence[Task],
        seeds: Sequence[int],
        route: Sequence[str | None] | None,
    ) -> list[TurnRequest]:
        """Resets environments; no request for an episode that is over already."""
        episodes = []
        for i in indices:
            adapter = None if route is None else route[i]
            episodes.append(_Episode(i, tasks[i], seeds[i], self.suite.make(), adapter))
            self.live[i] = episodes[-1]
        steps = self._act([(e.env, e.task) for e in episodes])
        requests = []
        for episode, step in zip(episodes, steps, strict=True):
            if isinstance(step, Exception):
                self._fail(episode, Boundary.ENVIRONMENT, step)
                continue
            first = with_guidance(step.messages, self.agent.prompt)
            episode.tools = step.tools
            if self.router is not None:
                episode.adapter = self.router.route(first, step.tools)
            if (bind := getattr(self.policy, "bind", None)) is not None:
                bind(episode.index, episode.task)  # scripted policies need to know the task
            opening = Step(first, done=step.done, score=step.score, stop=step.stop)
            requests.append(self._take(episode, opening))
        return [r for r in requests if r]

    def _answer(self, replies: Sequence[TurnReply]) -> list[TurnRequest]:
        """Hands turns to their environments and asks for the next ones."""
        requests: list[TurnRequest | None] = []
        due: list[_Episode] = []
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
                requests.append(self._take(episode, Step((note,))))
            else:
                due.append(episode)
        steps = self._act([(e.env, e.turns[-1].reply) for e in due])
        for episode, step in zip(due, steps, strict=True):
            if isinstance(step, Exception):
                self._fail(episode, Boundary.ENVIRONMENT, step)
            else:
                requests.append(self._take(episode, step))
        return [r for r in requests if r]

    def _act(self, calls: Sequence[tuple[Env, Task | Message]]) -> list[Step | Exception]:
        """Resets and steps, all at once where the suite can (it has `act`), else in turn."""
        together = getattr(self.suite, "act", None)
        return together(calls) if together and calls else [_single(*call) for call in calls]

    def _take(self, episode: _Episode, step: Step) -> TurnRequest | None:
        episode.pending = tuple(step.messages)
        if step.done:
            self._finish(episode, step.stop or StopReason.DONE, step.score)
            return None
        if len(episode.turns) >= self.max_turns:
            self._cut(episode, StopReason.TURN_LIMIT)
            return None
        return TurnRequest(
            episode=episode.index,
            messages=episode.pending,
            tools=() if episode.turns else episode.tools,
            adapter=episode.adapter,
            seed=episode.seed,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
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


def _close(env: Env) -> None:
    """An environment that fails to close has already given its score; that stands."""
    try:
        env.close()
    except Exception:
        return
