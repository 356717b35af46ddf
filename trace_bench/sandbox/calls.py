"""Episodes in workers, the calls that are made of them, and the questions that a worker asks back
meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.decode import Unreadable, messages_of
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.sandbox.protocol import learn_tools
from trace_bench.sandbox.workers import Lost, Worker

MOST_ASKS = 100  # questions for each call; a replay may ask those of earlier calls again


@dataclass(eq=False)
class PooledEpisode:
    """An episode in the pool. `history`: the calls that led to its state."""

    number: int
    worker: Worker | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Future[str]] = field(default_factory=dict)  # by question, for a replay
    strikes: int = 0

    def leave(self) -> None:
        """Leaves its worker, which closes it with the next batch."""
        if self.worker is not None:
            self.worker.live.discard(self.number)
            self.worker.closing.append(self.number)
            self.worker = None

    def sent(self, call: dict[str, Any], worker: Worker) -> dict[str, Any]:
        """The call with its number, and with its history if the worker does not have it."""
        sent = {"episode": self.number, **call}
        if call["do"] == "reset":
            self.answers = {}
        if self.worker is not worker:
            if self.history and call["do"] != "reset":
                sent["replay"] = self.history
            self.worker = worker
        return sent

    def remember(self, call: dict[str, Any], result: Mapping[str, Any]) -> None:
        self.strikes = 0
        if call["do"] == "reset":
            self.history = [call]
        elif call["do"] == "step" and "error" not in result:
            self.history.append(call)


Result = dict[str, Any] | EpisodeError


@dataclass(frozen=True, eq=False)
class Due:
    """A call of an episode whose result somebody waits for."""

    episode: PooledEpisode
    call: dict[str, Any]
    result: Future[Result] = field(default_factory=Future)


@dataclass(eq=False)
class Calls:
    """A batch of calls that is sent and not answered. `open`: unanswered questions by number,
    during which the batch's clock stands still; `ring`: is called when an answer is there."""

    worker: Worker
    due: Sequence[Due]
    number: int
    deadline: float
    ring: Callable[[], None]
    asked: int = 0
    open: list[tuple[int, Future[str]]] = field(default_factory=list)
    stopped: float = 0.0  # since when the clock stands still

    @property
    def most_asks(self) -> int:
        return MOST_ASKS * sum(1 + len(due.episode.history) for due in self.due)

    def of(self, episode: object) -> PooledEpisode | None:
        """The episode with that number, if one of the calls is its."""
        return next((d.episode for d in self.due if d.episode.number == episode), None)

    def question(
        self, message: Mapping[str, Any], ask: Ask | None, threads: ThreadPoolExecutor
    ) -> None:
        """Asks what the worker asked for. Raises Lost if it may not."""
        role, number, episode = (message.get(key) for key in ("role", "ask", "episode"))
        if ask is None or not isinstance(role, str):
            raise Lost(f"it asked for {role!r}, which no model or program plays here")
        if type(number) is not int or type(episode) is not int or not (asks := self.of(episode)):
            raise Lost(f"it asked with the number {number!r} for the episode {episode!r}"[:200])
        try:
            messages = messages_of(message.get("messages", []))
        except Unreadable as error:
            raise Lost(f"it broke the protocol: {error}") from error
        if not isinstance(schema := message.get("schema"), dict | None):
            raise Lost("it asked with a schema that is no object")
        self.asked += 1
        if self.asked > self.most_asks:
            raise Lost(f"it asked more than {self.most_asks} questions")
        answers = asks.answers
        question = json.dumps([role, messages, schema], sort_keys=True)
        if question not in answers or _failed(answers[question]):
            answers[question] = threads.submit(ask, role, messages, schema)
        if not self.open:
            self.stopped = time.monotonic()
        self.open.append((number, answers[question]))
        answers[question].add_done_callback(lambda _: self.ring())

    def answer(self) -> None:
        """Sends the answers that are ready. With the last one the clock goes on."""
        for question in [q for q in self.open if q[1].done()]:
            self.open.remove(question)
            if not self.open:
                self.deadline += time.monotonic() - self.stopped
            number, answer = question
            error = answer.exception()
            reply = {"error": str(error)} if error else {"text": answer.result()}
            soon = max(self.deadline, time.monotonic() + 1.0)  # it may be reading right now
            self.worker.send({"answer": number, **reply}, soon)

    def results(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One result for each call. Raises Lost for anything else."""
        results = message.get("results")
        if message.get("id") != self.number or not isinstance(results, list):
            raise Lost(f"it answered {str(message)[:100]!r} where batch {self.number} was due")
        if len(results) != len(self.due) or not all(isinstance(r, dict) for r in results):
            raise Lost(f"it gave {len(results)} results for {len(self.due)} calls")
        try:
            for result in results:
                learn_tools(result, self.worker.tools)
        except Unreadable as error:
            raise Lost(f"it broke the protocol: {error}") from error
        return results


def _failed(answer: Future[str]) -> bool:
    return answer.done() and answer.exception() is not None
