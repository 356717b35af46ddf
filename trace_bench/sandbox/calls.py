"""The calls that one worker has been sent, and the questions that it asks back meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.decode import messages_of
from trace_bench.core.limits import Unreadable
from trace_bench.core.protocols import Ask
from trace_bench.sandbox.protocol import learn_tools
from trace_bench.sandbox.transport import Lost, Worker

MOST_ASKS = 100  # questions for each call; a replay may ask those of earlier calls again


@dataclass
class Calls:
    """Calls that are sent and not answered. `answers`: to the questions so far, by episode, for a
    replay; `open`: unanswered questions by number, during which the worker's clock stands still."""

    worker: Worker
    places: list[int]
    number: int
    deadline: float
    answers: dict[int, dict[str, Future[str]]]
    most_asks: int
    asked: int = 0
    open: list[tuple[int, Future[str]]] = field(default_factory=list)
    stopped: float = 0.0  # since when the clock stands still

    def question(
        self, message: Mapping[str, Any], ask: Ask | None, threads: ThreadPoolExecutor
    ) -> None:
        """Asks what the worker asked for. Raises Lost if it may not."""
        role, number, episode = (message.get(key) for key in ("role", "ask", "episode"))
        if ask is None or not isinstance(role, str):
            raise Lost(f"it asked for {role!r}, which no model or program plays here")
        if type(number) is not int or type(episode) is not int or episode not in self.answers:
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
        known = self.answers[episode]
        question = json.dumps([role, messages, schema], sort_keys=True)
        if question not in known or _failed(known[question]):
            known[question] = threads.submit(ask, role, messages, schema)
        if not self.open:
            self.stopped = time.monotonic()
        self.open.append((number, known[question]))

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
        if len(results) != len(self.places) or not all(isinstance(r, dict) for r in results):
            raise Lost(f"it gave {len(results)} results for {len(self.places)} calls")
        try:
            for result in results:
                learn_tools(result, self.worker.tools)
        except Unreadable as error:
            raise Lost(f"it broke the protocol: {error}") from error
        return results


def _failed(answer: Future[str]) -> bool:
    return answer.done() and answer.exception() is not None
