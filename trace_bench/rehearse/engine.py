"""This project's engine behind vLLM's HTTP, with adapters that are loaded while it serves."""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, Turn
from trace_bench.policies.local import LocalPolicy
from trace_bench.rehearse.scripted import Answer

WAIT = 300.0  # seconds for a turn, on a machine with other work


class Loading:
    """The script of such a server (`scripted.serve`): one thread runs the engine over the requests
    of all clients. `name`: of the base model; `loaded`: every adapter that was ever loaded."""

    def __init__(self, model: Path | str, name: str, batch: int, context: int | None) -> None:
        self._policy = LocalPolicy(model, batch=batch, context=context, threads=1)
        self._name = name
        self._adapters: dict[str, AdapterRef] = {}
        self.loaded: list[str] = []
        self._asked: dict[int, Future[Turn]] = {}
        self._places = threading.Semaphore(batch)
        self._numbers = itertools.count()
        self._engine = ThreadPoolExecutor(1)  # runs the policy, one call after the other

    def close(self) -> None:
        self._engine.shutdown(cancel_futures=True)

    def _load(self, adapters: dict[str, AdapterRef]) -> None:
        agent = AgentSpec("m", adapters=tuple(adapters.values()))
        self._engine.submit(self._policy.load, agent).result(WAIT)
        self._adapters = adapters

    def _turn(self, body: Mapping[str, Any]) -> Turn:
        said = (tuple(body["messages"]), tuple(body.get("tools", ())))
        adapter = None if body["model"] == self._name else body["model"]
        how = (body.get("seed", 0), body["temperature"], body.get("max_tokens", 64))
        request = TurnRequest(next(self._numbers), *said, adapter, *how)
        with self._places:
            done: Future[Turn] = Future()
            self._engine.submit(self._begin, request, done)
            return done.result(WAIT)

    def _begin(self, request: TurnRequest, done: Future[Turn]) -> None:
        self._policy.submit([request])
        self._asked[request.episode] = done
        if len(self._asked) == 1:
            self._engine.submit(self._step)

    def _step(self) -> None:
        """One step for all open turns; the next comes after what was asked meanwhile."""
        try:
            replies = self._policy.step()
        except Exception as error:
            traceback.print_exc()
            for done in self._asked.values():
                done.set_exception(error)
            self._asked.clear()
            return
        for reply in replies:
            self._policy.release(reply.episode)
            if reply.turn is not None:
                self._asked.pop(reply.episode).set_result(reply.turn)
            else:
                text = "the context length is exceeded" if reply.context_full else reply.error
                self._asked.pop(reply.episode).set_exception(ValueError(text))
        if self._asked:
            self._engine.submit(self._step)

    def __call__(self, path: str, body: Mapping[str, Any]) -> Answer:
        name = body.get("lora_name", "")
        if path == "/v1/models":
            head = {"owned_by": "vllm", "max_model_len": self._policy.context}
            return Answer({"data": [{"id": n, **head} for n in (self._name, *self._adapters)]})
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
            return Answer(self._completion(body["model"], self._turn(body)))
        except ValueError as error:
            return Answer({"error": {"message": str(error)}}, 400)

    def _completion(self, name: str, turn: Turn) -> dict[str, Any]:
        content = [{"logprob": p, "top_logprobs": [{"logprob": p}]} for p in turn.logprobs]
        choice = {"message": turn.reply, "token_ids": list(turn.token_ids)}
        choice |= {"finish_reason": "length" if turn.truncated else "stop"}
        counts = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.token_ids)}
        said = {"model": name, "prompt_token_ids": list(turn.prompt_ids), "usage": counts}
        return {**said, "choices": [{**choice, "logprobs": {"content": content}}]}
