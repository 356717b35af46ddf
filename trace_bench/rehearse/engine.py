"""This project's engine behind vLLM's HTTP, with adapters that are loaded while it serves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, Turn
from trace_bench.policies.formats import Reply
from trace_bench.policies.local import LocalPolicy, PolicyThread
from trace_bench.rehearse.scripted import Answer

WAIT = 300.0  # seconds for a turn, on a machine with other work


class Loading:
    """The script of such a server. `name`: of the base model; `loaded`: its adapters, ever."""

    def __init__(self, model: Path | str, name: str, batch: int, context: int | None) -> None:
        policy = LocalPolicy(model, batch=batch, context=context, threads=1)
        self._name, self._context, self._engine = name, policy.context, PolicyThread(policy)
        self._adapters: dict[str, AdapterRef] = {}
        self.loaded: list[str] = []
        self._numbers = itertools.count()

    def close(self) -> None:
        self._engine.close()

    def _load(self, adapters: dict[str, AdapterRef]) -> None:
        agent = AgentSpec("m", adapters=tuple(adapters.values()))
        self._engine.call(self._engine.policy.load, agent).result(WAIT)
        self._adapters = adapters

    def _turn(self, body: Mapping[str, Any]) -> Turn:
        said = (tuple(body["messages"]), tuple(body.get("tools", ())))
        adapter = None if body["model"] == self._name else body["model"]
        how = (body.get("seed", 0), body["temperature"], body.get("max_tokens", 64))
        done: Future[TurnReply] = Future()
        request = TurnRequest(next(self._numbers), *said, adapter, *how)
        self._engine.start(request, done.set_result)
        reply = done.result(WAIT)
        if reply.turn is None:
            full = "the context length is exceeded" if reply.context_full else reply.error
            raise ValueError(full)
        return reply.turn

    def __call__(self, path: str, body: Mapping[str, Any]) -> Answer:
        name = body.get("lora_name", "")
        if path == "/v1/models":
            head = {"owned_by": "vllm", "max_model_len": self._context}
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
        message = Reply(turn.reply, turn.thoughts).remembered  # as its parsers read it
        choice = {"message": message, "token_ids": list(turn.token_ids)}
        choice |= {"finish_reason": "length" if turn.truncated else "stop"}
        counts = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.token_ids)}
        said = {"model": name, "prompt_token_ids": list(turn.prompt_ids), "usage": counts}
        return {**said, "choices": [{**choice, "logprobs": {"content": content}}]}
