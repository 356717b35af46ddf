"""A server as vLLM is, from this project's engine: it renders conversations by the model's
template, and tells what it read and sampled."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.policies.chat import Chat
from trace_bench.policies.engine.scheduler import Order, Sampled, Scheduler
from trace_bench.policies.loading import load_model
from trace_bench.policies.local import backend_of
from trace_bench.rehearse.scripted import Answer, Script, models, serve

Read = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class Serving:
    """`read`: (prompt, sampled ids) of every turn."""

    url: str = ""
    read: list[Read] = field(default_factory=list)


@contextmanager
def tokens(model: Path, name: str = "m", context: int = 512) -> Iterator[Serving]:
    """Serves until the end of the block."""
    serving = Serving()
    with serve(_script(model, name, context, serving)) as server:
        serving.url = server.url
        yield serving


def _script(model: Path, name: str, context: int, serving: Serving) -> Script:
    loaded, tokenizer = load_model(model)
    chat, lock = Chat(tokenizer, name), threading.Lock()
    engine, finished = (
        Scheduler(backend_of(loaded, 8, context), 8, context, chat.stop),
        dict[int, Sampled](),
    )
    numbers = itertools.count()

    def sampled(prompt: tuple[int, ...], body: dict[str, Any], limit: int) -> Sampled:
        """The turn; whoever waits for one advances all of them."""
        with lock:
            number = next(numbers)
            engine.submit(Order(number, prompt, None, body["seed"], body["temperature"], limit))
        while True:
            with lock:
                if number in finished:
                    return finished.pop(number)
                for done in engine.step():
                    engine.release(done.episode)
                    finished[done.episode] = done

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return models(name, owner="vllm")
        messages, tools = body.get("messages", ()), body.get("tools", ())
        prompt = chat.encode(chat.render(messages, tools))
        limit = body.get("max_tokens") or max(1, context - len(prompt))
        if len(prompt) + limit > context:
            said = f"This model's maximum context length is {context} tokens."
            return Answer({"error": {"message": said}}, 400)
        done = sampled(prompt, body, limit)
        serving.read.append((prompt, done.ids))
        ids, finish = list(done.ids), "length" if done.truncated else "stop"
        choice = {"index": 0, "finish_reason": finish, "token_ids": ids}
        choice["message"] = {"role": "assistant", "content": chat.text(ids)}
        choice["logprobs"] = {"content": [{"token": "t", "logprob": p} for p in done.logprobs]}
        return Answer({"model": name, "choices": [choice], "prompt_token_ids": list(prompt)})

    return answer
