"""A policy behind OpenAI-compatible servers: vLLM first, and any other with chat completions.

All requests of one episode go to one server (for its prefix cache); episodes run concurrently, up
to the endpoint's limit. If a server returns the token ids that it read and sampled (vLLM does), a
Turn has them; where a prompt does not start with all earlier tokens, `rewritten` counts the episode
(talk.py).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from trace_bench.core.checked import PLACE
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Policy, RunContext, TurnReply, TurnRequest
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Message, Meta, Natural, Turn
from trace_bench.llm.client import Client, Endpoint, LLMError, check_extra, check_urls, read_key
from trace_bench.policies.served import Servers, try_servers
from trace_bench.policies.talk import Conversation, submitted

CHAT = "/chat/completions"
# Without these, vLLM takes its values from the model's generation_config.json.
PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
PROBATION = 60.0  # seconds until a server that did not answer is tried again
TOP = 20  # the most likely tokens to request when ranking labels


@dataclass(frozen=True)
class OpenAISettings:
    """`policy.*` of `policy=openai`."""

    base_url: tuple[str, ...] = field(metadata=PLACE)
    """One address or a list of them; an episode stays on one server."""
    key_env: str | None = field(default=None, metadata=PLACE)
    """Name of the environment variable that holds the key; null: no key is sent."""
    deadline: Annotated[float, Meta(ge=0.1)] = field(default=120.0, metadata=PLACE)
    """Seconds for one attempt of a request."""
    retries: Natural = field(default=5, metadata=PLACE)
    """Further attempts after 429, 5xx, lost connections and deadlines."""
    patience: Annotated[float, Meta(ge=0)] = field(default=600.0, metadata=PLACE)
    """Seconds in which a server that has answered and is gone is waited for, as in a restart."""
    extra: Mapping[str, Any] | None = None
    """More fields of every request, such as {chat_template_kwargs: {...}}."""


def template_options(thinking: bool | None) -> dict[str, dict[str, bool]]:
    """What a request says to the template of vLLM's model; None: nothing."""
    return {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}


class OpenAIPolicy(Policy):
    """`model`: the base model's name on the servers; `extra`: further fields of every request.
    No server is asked before `try_turn` or `load`, which raise UserError if one does not answer or
    does not have the model."""

    repeatable = False  # a server's answers depend on its other load
    at_servers = True
    addresses = MappingProxyType({"base_url": "key_env"})

    def __init__(
        self, endpoint: Endpoint, model: str, *, capacity: int, extra: Mapping[str, Any] | None
    ) -> None:
        self.capacity, self.model = capacity, model
        self._extra = dict(extra or {})
        self._client = Client(endpoint)
        self.servers = Servers(self._client, model)
        self._open: dict[int, Conversation] = {}
        self._load = [0] * len(endpoint.urls)  # live episodes of each server
        self._silent: dict[int, float] = {}  # servers that do not answer -> since when
        self._under_way: dict[int, Future[Any]] = {}
        self._ready: queue.SimpleQueue[tuple[TurnRequest, Future[Any] | TurnReply] | None]
        self._ready = queue.SimpleQueue()
        self.rewritten = 0

    def usage(self) -> dict[str, int]:
        return {**vars(self._client.usage), "rewritten": self.rewritten}

    def load(self, agent: AgentSpec) -> None:
        self.servers.load(agent.adapters)

    def try_turn(self, request: TurnRequest) -> str:
        """At every server, as in an episode. Raises UserError."""
        self.servers.greet()
        return try_servers(self._client.endpoint.urls, self.model, self._alone, request)

    def submit(self, requests: Sequence[TurnRequest]) -> None:
        for failed in submitted(requests, self._submit):
            self._ready.put(failed)

    def collect(self) -> list[TurnReply]:
        """Waits for at least one turn and returns all that are ready; empty after `wake`."""
        out: list[TurnReply] = []
        while not out or not self._ready.empty():
            item = self._ready.get()
            if item is None:
                break
            request, what = item
            if isinstance(what, TurnReply):
                out.append(what)
            elif self._under_way.get(request.episode) is what:  # else the episode was released
                del self._under_way[request.episode]
                if (reply := self._reply(request, what)) is not None:
                    out.append(reply)
        return out

    def wake(self) -> None:
        """Wakes a blocked `collect`; callable from any thread."""
        self._ready.put(None)

    def release(self, episode: int) -> None:
        if (future := self._under_way.pop(episode, None)) is not None:
            future.cancel()
        if (conversation := self._open.pop(episode, None)) is not None:
            self._load[conversation.server] -= 1

    def close(self) -> None:
        """Forgets all episodes and unloads this program's adapters from the servers."""
        for episode in list(self._open):
            self.release(episode)
        self.servers.unload()
        self._client.close()

    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> dict[str, float] | None:
        """Natural logarithms of the base model's probability of each label (a token) as the answer,
        of those among its most likely tokens. None if the server returns none."""
        body = {**self._common(self.model, 0.0, 1), "messages": list(messages)}
        body |= {"logprobs": True, "top_logprobs": TOP}
        reply = self._client.ask(CHAT, body, self._choose())
        try:
            top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        except (KeyError, IndexError, TypeError):
            return None
        values: dict[str, float] = {}
        for entry in top if isinstance(top, list) else ():
            label = str(entry.get("token", "")).strip() if isinstance(entry, dict) else ""
            value = entry["logprob"] if label in labels else None
            if isinstance(value, int | float) and value <= 1e-3:
                values[label] = max(float(value), values.get(label, float("-inf")))
        return values

    # -- one turn -----------------------------------------------------------------------------

    def _submit(self, request: TurnRequest, server: int | None = None) -> None:
        episode = self._open.get(request.episode)
        if episode is None:
            server = self._choose() if server is None else server
            episode = Conversation(server, request.adapter, request.tools)
            self._open[request.episode] = episode
            self._load[server] += 1
        episode.history += self.servers.readable(request.messages)
        self._send(request, episode)

    def _alone(self, server: int, request: TurnRequest) -> TurnReply:
        """The only turn of an episode at this server."""
        self._submit(request, server)
        (reply,) = self.collect()
        self.release(request.episode)
        return reply

    def _choose(self) -> int:
        """The server with the fewest live episodes. One that did not answer gets none at first,
        then one at a time as a test (PROBATION)."""
        now = time.monotonic()

        def rank(server: int) -> tuple[bool, int, int]:
            silent = self._silent.get(server)
            due = silent is None or (now - silent > PROBATION and not self._load[server])
            return (not due, self._load[server], server)

        return min(range(len(self._load)), key=rank)

    def _send(self, request: TurnRequest, episode: Conversation) -> None:
        most = None if episode.tight else request.max_tokens
        body = self._common(self.servers.name_of(episode.adapter), request.temperature, most)
        body["seed"] = stable_seed("turn", request.seed, episode.turns) % 2**31
        body["messages"] = episode.history
        if episode.tools:
            body["tools"] = list(episode.tools)
        if self.servers.vllm:
            body |= {"logprobs": True, "return_token_ids": True}
        future = self._client.start(CHAT, body, episode.server)
        self._under_way[request.episode] = future
        future.add_done_callback(lambda f: self._ready.put((request, f)))

    def _common(self, name: str, temperature: float, most: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {"model": name, "temperature": temperature, "top_p": 1.0}
        if most is not None:
            body["max_tokens"] = most
        return body | (PLAIN_SAMPLING if self.servers.vllm else {}) | self._extra

    def _reply(self, request: TurnRequest, future: Future[Any]) -> TurnReply | None:
        """The reply; None if the request was sent again. vLLM refuses a prompt that leaves less
        space than `max_tokens`; without that number it samples up to the context limit."""
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
                self._send(request, episode)
                return None
            return TurnReply(request.episode, None, error=str(error), context_full=full)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"{type(error).__name__}: {error}"
            return TurnReply(request.episode, None, error=f"the server's answer: {text}")

    def _loaded_again(self, request: TurnRequest, episode: Conversation, error: LLMError) -> bool:
        """Whether the request was sent again because the server had lost the adapter: it was
        restarted, or another program that shares it has unloaded the adapter."""
        if error.status != 404 or episode.adapter is None or episode.reloaded:
            return False
        episode.reloaded = True
        try:
            self.servers.restore(episode.server, episode.adapter)
        except (LLMError, UserError):
            return False
        self._send(request, episode)
        return True

    def _turn(self, request: TurnRequest, reply: Mapping[str, Any]) -> Turn:
        episode = self._open[request.episode]
        wanted = self.servers.name_of(episode.adapter)
        # A server may report a base model under another name (a dated one), but not an adapter.
        if episode.adapter is not None and reply.get("model", wanted) != wanted:
            raise ValueError(f"{reply['model']!r} answered where {wanted!r} was asked")
        before = episode.rewritten
        turn = episode.turn(request, reply)
        self.rewritten += episode.rewritten and not before
        return turn


def context_is_full(error: LLMError) -> bool:
    """Whether a server refused a prompt for its length, by its words: there is no common code."""
    text = str(error).lower()
    return error.status in (400, 413) and (
        "context_length_exceeded" in text or "context length" in text or "max_model_len" in text
    )


def served(settings: OpenAISettings, run: RunContext) -> OpenAIPolicy:
    """`policy=openai`: sends requests to servers."""
    endpoint = Endpoint(
        check_urls(settings.base_url, "policy.base_url"),
        read_key(settings.key_env, "policy.key_env"),
        deadline=settings.deadline,
        retries=settings.retries,
        concurrency=run.batch,
        patience=settings.patience,
    )
    extra = check_extra(settings.extra, "policy.extra")
    for key, own in template_options(run.thinking).items():
        extra = {**extra, key: {**own, **extra.get(key, {})}}
    if run.thoughts == "keep":
        raise UserError(
            "policy.thoughts=keep needs prompts that are rendered here, and servers render theirs. "
            "Set policy.thoughts=own, or `policy` to local."
        )
    return OpenAIPolicy(endpoint, run.served_model, capacity=run.batch, extra=extra)
