"""A server with adapters that are loaded while it runs, as vLLM has them, in a thread of a test: it
speaks vLLM's HTTP, and the project's own engine samples with the real weights."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers.scripted import Answer, models, serve
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, Turn
from trace_bench.policies.local import LocalPolicy


class Loading:
    """One thread runs the engine over the requests of all clients. `loaded`: every adapter that
    was ever loaded."""

    def __init__(self, model: Path | str, name: str, batch: int, context: int | None) -> None:
        self._policy = LocalPolicy(model, batch=batch, context=context, threads=1)
        self._name = name
        self._adapters: dict[str, AdapterRef] = {}
        self.loaded: list[str] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asked: dict[int, Future[Turn]] = {}
        self._places = threading.Semaphore(batch)
        self._number = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(30)

    def _work(self) -> None:
        while True:
            while not self._asked or not self._jobs.empty():
                if (job := self._jobs.get()) is None:
                    return
                job()
            for reply in self._policy.step():
                self._policy.release(reply.episode)
                if reply.turn is not None:
                    self._asked.pop(reply.episode).set_result(reply.turn)
                else:
                    text = "the context length is exceeded" if reply.context_full else reply.error
                    self._asked.pop(reply.episode).set_exception(ValueError(text))

    def _done(self, work: Callable[[Future[Any]], None]) -> Any:
        done: Future[Any] = Future()
        self._jobs.put(lambda: work(done))
        return done.result(120)

    def _load(self, adapters: dict[str, AdapterRef]) -> None:
        def work(done: Future[Any]) -> None:
            self._policy.load(AgentSpec("m", adapters=tuple(adapters.values())))
            self._adapters = adapters
            done.set_result(None)

        self._done(work)

    def _turn(self, body: dict[str, Any]) -> Turn:
        def work(done: Future[Any]) -> None:
            self._number += 1
            self._asked[self._number] = done
            request = TurnRequest(
                self._number,
                tuple(body["messages"]),
                tuple(body.get("tools", ())),
                None if body["model"] == self._name else body["model"],
                body.get("seed", 0),
                body["temperature"],
                body.get("max_tokens", 64),
            )
            self._policy.submit([request])

        with self._places:
            found: Turn = self._done(work)
        return found

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        name = body.get("lora_name", "")
        if path == "/v1/models":
            return models(self._name, *self._adapters, owner="vllm")
        if path == "/v1/load_lora_adapter":
            self.loaded.append(name)
            self._load({**self._adapters, name: AdapterRef(name, body["lora_path"])})
            return Answer("Success")
        if path == "/v1/unload_lora_adapter":
            self._load({n: a for n, a in self._adapters.items() if n != name})
            return Answer("Success")
        if body["model"] not in (self._name, *self._adapters):
            return Answer({"error": {"message": "no such model"}}, 404)
        try:
            return self._completion(body["model"], self._turn(body))
        except ValueError as error:
            return Answer({"error": {"message": str(error)}}, 400)

    def _completion(self, name: str, turn: Turn) -> Answer:
        content = [{"logprob": p, "top_logprobs": [{"logprob": p}]} for p in turn.logprobs]
        choice = {"message": turn.reply, "token_ids": list(turn.token_ids)}
        choice |= {"finish_reason": "length" if turn.truncated else "stop"}
        counts = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.token_ids)}
        said = {"model": name, "prompt_token_ids": list(turn.prompt_ids), "usage": counts}
        return Answer({**said, "choices": [{**choice, "logprobs": {"content": content}}]})


@contextmanager
def lora_server(
    model: Path | str, name: str = "m", batch: int = 64, context: int | None = None
) -> Iterator[tuple[str, Loading]]:
    """Its address, and the server."""
    script = Loading(model, name, batch, context)
    with serve(script) as server:
        try:
            yield server.url, script
        finally:
            script.close()
