"""A policy behind OpenAI-compatible servers: vLLM first, and any other with chat completions.

Requests of one episode go to one server (its prefix cache), all episodes side by side up to the
endpoint's concurrency. Adapters are loaded into the servers at run time (policies/served.py).

Where a server says which tokens it read and sampled (vLLM does), a Turn has them, if this prompt
begins with all that came before it. A server renders a conversation anew for every turn, so that
this does not always hold: a tool call is written back as JSON, not as it was sampled. From there on
the episode has no token ids, and `rewritten` counts it.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Message, Tool, Turn
from trace_bench.llm.client import Client, Endpoint, LLMError
from trace_bench.policies.chat import parse_text
from trace_bench.policies.served import Servers

# What vLLM would else take from the model's generation_config.json.
PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
PROBATION = 60.0  # seconds until a server that did not answer is tried again
TOP = 20  # alternatives of a label that are asked for


@dataclass
class _Open:
    """An episode between its turns."""

    server: int
    adapter: str | None
    tools: tuple[Tool, ...]
    history: list[Message] = field(default_factory=list)
    ids: tuple[int, ...] = ()  # all tokens so far
    exact: bool = True  # `ids` is what the server read and sampled
    tight: bool = False  # the context does not hold the prompt and a whole turn any more
    turns: int = 0
    reloaded: bool = False  # its adapter had to be loaded again


class OpenAIPolicy:
    """Implements `protocols.Policy`. `model`: the name under which the servers know the base model;
    `extra`: further fields of every request. Raises UserError when a server does not answer, or
    does not have the model."""

    repeatable = False  # a server's answers depend on what else it is doing

    def __init__(
        self, endpoint: Endpoint, model: str, *, capacity: int, extra: Mapping[str, Any] | None
    ) -> None:
        self.capacity = capacity
        self.model = model
        self._extra = dict(extra or {})
        self._client = Client(endpoint)
        try:
            self.servers = Servers(self._client, model)
        except Exception:
            self._client.close()
            raise
        self._open: dict[int, _Open] = {}
        self._load = [0] * len(endpoint.urls)  # live episodes of each server
        self._silent: dict[int, float] = {}  # servers that do not answer, and since when
        self._under_way: dict[int, Future[Any]] = {}
        self._ready: queue.SimpleQueue[tuple[TurnRequest, Future[Any] | TurnReply] | None]
        self._ready = queue.SimpleQueue()
        self.rewritten = 0

    def usage(self) -> dict[str, int]:
        """Requests, retries and tokens so far."""
        return {**vars(self._client.usage), "rewritten": self.rewritten}

    def load(self, agent: AgentSpec) -> None:
        self.servers.load(agent.adapters)

    def submit(self, requests: Sequence[TurnRequest]) -> None:
        for request in requests:
            try:
                self._submit(request)
            except Exception as error:  # one episode's trouble, not the batch's
                text = f"{type(error).__name__}: {error}"
                self._ready.put((request, TurnReply(request.episode, None, error=text)))

    def collect(self) -> list[TurnReply]:
        """Waits for one turn, and takes what else is ready. Empty when it was woken."""
        out: list[TurnReply] = []
        while not out or not self._ready.empty():
            item = self._ready.get()
            if item is None:
                break
            request, what = item
            if isinstance(what, TurnReply):
                out.append(what)
            elif self._under_way.get(request.episode) is what:  # else it was released meanwhile
                del self._under_way[request.episode]
                if (reply := self._reply(request, what)) is not None:
                    out.append(reply)
        return out

    def wake(self) -> None:
        """Ends a `collect` that waits, from any thread: there is something else to do."""
        self._ready.put(None)

    def release(self, episode: int) -> None:
        if (future := self._under_way.pop(episode, None)) is not None:
            future.cancel()
        if (known := self._open.pop(episode, None)) is not None:
            self._load[known.server] -= 1

    def close(self) -> None:
        """Forgets all episodes and takes this program's adapters out of the servers."""
        for episode in list(self._open):
            self.release(episode)
        self.servers.unload()
        self._client.close()

    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> dict[str, float] | None:
        """Natural logarithms of the base model's probabilities of answering with each label (a
        single token); labels outside the server's most likely answers are missing. None when the
        server gives no probabilities."""
        body = {**self._common(self.model, 0.0, 1), "messages": list(messages)}
        body |= {"logprobs": True, "top_logprobs": TOP}
        reply = self._client.ask("/chat/completions", body, self._choose())
        try:
            top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        except (KeyError, IndexError, TypeError):
            return None
        found: dict[str, float] = {}
        for entry in top:
            label = str(entry.get("token", "")).strip()
            if label in labels:
                found[label] = max(float(entry["logprob"]), found.get(label, float("-inf")))
        return found

    # -- one turn -----------------------------------------------------------------------------

    def _submit(self, request: TurnRequest) -> None:
        episode = self._open.get(request.episode)
        if episode is None:
            server = self._choose()
            episode = _Open(server, request.adapter, request.tools)
            self._open[request.episode] = episode
            self._load[server] += 1
        episode.history += self.servers.readable(request.messages)
        self._send(request, episode, None if episode.tight else request.max_tokens)

    def _choose(self) -> int:
        """The server with the fewest live episodes. One that does not answer is never busy: it gets
        none, but for one at a time after a while, to see whether it is back."""
        now = time.monotonic()

        def rank(server: int) -> tuple[bool, int, int]:
            silent = self._silent.get(server)
            due = silent is None or (now - silent > PROBATION and not self._load[server])
            return (not due, self._load[server], server)

        return min(range(len(self._load)), key=rank)

    def _send(self, request: TurnRequest, episode: _Open, most: int | None) -> None:
        name = self.servers.name_of(episode.adapter)
        body = {**self._common(name, request.temperature, most), "messages": episode.history}
        body["seed"] = stable_seed("turn", request.seed, episode.turns) % 2**31
        if episode.tools:
            body["tools"] = list(episode.tools)
        if self.servers.vllm:
            body |= {"logprobs": True, "return_token_ids": True}
        future = self._client.start("/chat/completions", body, episode.server)
        self._under_way[request.episode] = future
        future.add_done_callback(lambda f: self._ready.put((request, f)))

    def _common(self, name: str, temperature: float, most: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {"model": name, "temperature": temperature, "top_p": 1.0}
        if most is not None:
            body["max_tokens"] = most
        return body | (PLAIN_SAMPLING if self.servers.vllm else {}) | self._extra

    def _reply(self, request: TurnRequest, future: Future[Any]) -> TurnReply | None:
        """None when it is asked again: vLLM refuses a prompt that leaves less than `max_tokens`;
        without that number it samples as far as the context goes."""
        episode = self._open[request.episode]
        try:
            reply = future.result()
            self._silent.pop(episode.server, None)
            return TurnReply(request.episode, self._turn(request, reply))
        except LLMError as error:
            if self._loaded_again(request, episode, error):
                return None
            if error.outage:
                self._silent[episode.server] = time.monotonic()
            full = context_is_full(error)
            if full and self.servers.vllm and not episode.tight:
                episode.tight = True
                self._send(request, episode, None)
                return None
            return TurnReply(request.episode, None, error=str(error), context_full=full)
        except Exception as error:  # an answer that makes no sense
            text = f"{type(error).__name__}: {error}"
            return TurnReply(request.episode, None, error=f"the server's answer: {text}")

    def _loaded_again(self, request: TurnRequest, episode: _Open, error: LLMError) -> bool:
        """Whether the turn is asked again because the server had lost the adapter: it was started
        anew, or another program that shares it has taken the adapter out."""
        if error.status != 404 or episode.adapter is None or episode.reloaded:
            return False
        episode.reloaded = True
        try:
            if not self.servers.restore(episode.server, episode.adapter):
                return False
        except (LLMError, UserError):
            return False
        self._send(request, episode, None if episode.tight else request.max_tokens)
        return True

    def _turn(self, request: TurnRequest, reply: Mapping[str, Any]) -> Turn:
        episode = self._open[request.episode]
        wanted = self.servers.name_of(episode.adapter)
        # A base model may have another name for itself (a dated one); an adapter's is ours.
        if episode.adapter is not None and reply.get("model", wanted) != wanted:
            raise ValueError(f"{reply['model']!r} answered where {wanted!r} was asked")
        choice = reply["choices"][0]
        message, malformed = read_message(choice["message"], episode.turns)
        prompt, sampled, logprobs = self._tokens(episode, reply, choice, request.temperature)
        episode.history.append(message)
        episode.turns += 1
        return Turn(
            messages=request.messages,
            reply=message,
            prompt_ids=prompt,
            token_ids=sampled,
            logprobs=logprobs,
            adapter=episode.adapter,
            malformed=malformed,
            truncated=choice.get("finish_reason") == "length",
        )

    def _tokens(
        self, episode: _Open, reply: Mapping[str, Any], choice: Mapping[str, Any], heat: float
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """(ids appended to the prompt, sampled ids, their log-probabilities); nothing where the
        server does not say, or what it read does not begin with what came before. vLLM's
        log-probabilities are at temperature 1, so there are none for another one."""
        whole, sampled = reply.get("prompt_token_ids"), choice.get("token_ids")
        if not episode.exact or not whole or sampled is None:
            episode.exact = False
            return (), (), ()
        if tuple(whole[: len(episode.ids)]) != episode.ids:
            episode.exact = False
            self.rewritten += 1
            return (), (), ()
        prompt = tuple(whole[len(episode.ids) :])
        episode.ids = (*whole, *sampled)
        content = ((choice.get("logprobs") or {}).get("content") or ()) if heat in (0, 1) else ()
        return prompt, tuple(sampled), tuple(float(entry["logprob"]) for entry in content)


def read_message(message: Mapping[str, Any], turn: int) -> tuple[Message, str | None]:
    """An assistant message from a server's, and why a tool call in it cannot be read. Calls that
    the server left in the text are read there."""
    content = str(message.get("content") or "").strip()
    calls = message.get("tool_calls") or []
    if not calls:
        return parse_text(content, turn)
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") or {}
        name, arguments = str(function.get("name")), function.get("arguments") or "{}"
        if not isinstance(arguments, str):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        fault = _fault(arguments)
        if fault:
            text = f"{content}<tool_call>{json.dumps(name)} {arguments}</tool_call>"
            return {"role": "assistant", "content": text}, fault
        function = {"name": name, "arguments": arguments}
        out.append({"id": f"call_{turn}_{i}", "type": "function", "function": function})
    return {"role": "assistant", "content": content, "tool_calls": out}, None


def _fault(arguments: str) -> str | None:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return None if isinstance(found, dict) else '"arguments" is not an object'


def context_is_full(error: LLMError) -> bool:
    """Whether a server refused a prompt for its length: there is no common code for it."""
    text = str(error).lower()
    return error.status in (400, 413) and (
        "context_length_exceeded" in text or "context length" in text or "max_model_len" in text
    )
