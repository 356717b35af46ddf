"""The models of a policy's servers: the base model, and adapters that are loaded at run time.

vLLM serves each adapter under its own model name and can load new ones while it runs
(`--enable-lora`, VLLM_ALLOW_RUNTIME_LORA_UPDATING=True); it reads them from disk, so servers and
this program must see the same files. The served name contains a hash of
the weights, so that two adapters never share one, even on a server that several runs use. Each
server is checked once for each adapter: it must list the name, and its probabilities for a probe
prompt must differ from the base model's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.beginning import adapter_hash
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.types import AdapterRef, Message, Turn
from trace_bench.llm.client import Client, LLMError
from trace_bench.policies.engine.lora import read_weights

PROBE: Message = {"role": "user", "content": "Name three things that you can do for me."}
VLLM = "vllm"
TOLERANT = frozenset((VLLM, "trace_bench"))
"""Owners of models on servers that accept a tool's result which belongs to no call."""
_PROBE_TOKENS = 8
SAME = 1e-6  # log-probabilities closer than this are equal
_REPEATS = 3  # probes of the base model, to measure how much its answers vary


class Servers:
    """All servers of one endpoint, which are asked for their identity when it is first needed."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self._urls = client.endpoint.urls
        self._loaded: dict[str, tuple[str, AdapterRef]] = {}  # by name: its name on the servers
        self._own: list[tuple[int, str]] = []  # loaded by this program: (server, name)
        self._base: dict[int, list[float]] = {}  # the base model's log-probabilities for the probe
        self._noise: dict[int, float] = {}  # and how much they vary between requests
        self._owners: set[str | None] = set()  # of the models there; None: it lists none

    @property
    def vllm(self) -> bool:
        """Whether all servers are vLLM. Raises UserError as `greet` does."""
        return self.greet() == {VLLM}

    def greet(self) -> set[str | None]:
        """Asks all servers, once, for their models, and returns their owners. Raises UserError if
        one does not answer or does not have the model."""
        self._owners = self._owners or {self._greet(n) for n in range(len(self._urls))}
        return self._owners

    def name_of(self, adapter: str | None) -> str:
        if adapter is None:
            return self._model
        if adapter not in self._loaded:
            raise unknown("adapter", adapter, self._loaded, "agent.adapters")
        return self._loaded[adapter][0]

    def load(self, adapters: Sequence[AdapterRef]) -> None:
        """Makes these adapters available on every server and unloads all others. Raises UserError
        if a server does not answer, lacks the model, refuses an adapter or does not use its
        weights."""
        self.greet()
        wanted = {a.name: a for a in adapters}
        for name in [name for name in self._loaded if name not in wanted]:
            self._drop(name)
        for adapter in wanted.values():
            if adapter.name not in self._loaded:
                served = served_name(adapter)
                for server in range(len(self._urls)):
                    self._add(server, served, adapter)
                self._loaded[adapter.name] = served, adapter

    def unload(self) -> None:
        """Unloads this program's adapters. A server that is gone is ignored."""
        for server, served in self._own:
            self._forget(server, served)
        self._own, self._loaded = [], {}

    def readable(self, messages: Sequence[Message]) -> list[Message]:
        """Messages as the servers accept them. A malformed call is answered with a result that
        belongs to no call, which most servers other than vLLM refuse."""
        if self.greet() <= TOLERANT:
            return list(messages)
        return [
            {"role": "user", "content": m["content"]}
            if m["role"] == "tool" and not m.get("tool_call_id")
            else m
            for m in messages
        ]

    def _greet(self, server: int) -> str | None:
        """Checks that the server has the model; returns its owner, if the server names one."""
        url = self._urls[server]
        try:
            models = self._models(server)
        except LLMError as error:
            if error.status in (404, 405):  # not every server lists its models
                return None
            hint = "its key (`policy.key_env`)" if error.status in (401, 403) else "its address"
            raise UserError(
                f"the server {url} does not answer: {error}. Start it, or change {hint} "
                "(`policy.base_url`)."
            ) from error
        names = [str(m.get("id")) for m in models]
        if self._model not in names:
            raise unknown(f"model at {url}", self._model, names, "model.name")
        owners = {str(m.get("owned_by")) for m in models}
        return VLLM if VLLM in owners else min(owners)

    def _add(self, server: int, served: str, adapter: AdapterRef) -> None:
        url = self._urls[server]
        if served not in self._listed(server):
            body = {"lora_name": served, "lora_path": str(Path(adapter.path).resolve())}
            try:
                self._client.ask("/load_lora_adapter", body, server)
            except LLMError as error:
                raise UserError(
                    f"the server {url} did not load the adapter {served}: {error}. It must be a "
                    "vLLM started with --enable-lora, --max-lora-rank of at least the adapter's "
                    "and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and must see the folder "
                    f"{adapter.path}."
                ) from error
            self._own.append((server, served))
        if served not in self._listed(server):
            raise UserError(f"the server {url} loaded the adapter {served} but does not list it.")
        if changes_something(adapter) and self._answers_as_base(server, served):
            raise UserError(
                f"the server {url} answers under the name {served} just as the base model does: it "
                "does not use the adapter's weights. Restart it, or use another one "
                "(`policy.base_url`)."
            )

    def _listed(self, server: int) -> list[str]:
        return [str(m.get("id")) for m in self._models(server)]

    def _models(self, server: int) -> list[Mapping[str, Any]]:
        """What the server lists; what is no object in it is left out. Raises LLMError."""
        listed = self._client.ask("/models", None, server).get("data")
        return [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []

    def restore(self, server: int, adapter: str) -> None:
        """Loads an adapter again if the server has lost it."""
        served, lost = self._loaded[adapter]
        if served not in self._listed(server):
            self._own = [pair for pair in self._own if pair != (server, served)]
            self._add(server, served, lost)

    def _answers_as_base(self, server: int, served: str) -> bool:
        """Whether its probe answer differs from the base model's by no more than a server's answers
        vary between requests, by rounding."""
        if server not in self._base:
            base, *more = [self._probe(server, self._model) for _ in range(_REPEATS)]
            self._base[server] = base
            self._noise[server] = max(SAME, *(_distance(base, other) for other in more))
        return _distance(self._base[server], self._probe(server, served)) <= self._noise[server]

    def _probe(self, server: int, name: str) -> list[float]:
        """Log-probabilities of a greedy answer's tokens and of their alternatives."""
        body = {"model": name, "messages": [PROBE], "temperature": 0.0, "seed": 0}
        body |= {"max_tokens": _PROBE_TOKENS, "logprobs": True, "top_logprobs": 5}
        reply = self._client.ask("/chat/completions", body, server)
        try:
            content: list[Mapping[str, Any]] = reply["choices"][0]["logprobs"]["content"]
            return [float(top["logprob"]) for entry in content for top in entry["top_logprobs"]]
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"the server {self._urls[server]} gives no log-probabilities, so it cannot be "
                "checked whether it uses an adapter. Use vLLM, or an agent without adapters."
            ) from error

    def _drop(self, name: str) -> None:
        served, _ = self._loaded.pop(name)
        for server, own in [pair for pair in self._own if pair[1] == served]:
            self._own.remove((server, own))
            self._forget(server, own)

    def _forget(self, server: int, served: str) -> None:
        try:
            self._client.ask("/unload_lora_adapter", {"lora_name": served}, server)
        except LLMError:
            return  # the server is unreachable, or a restart has unloaded the adapter


def _distance(one: Sequence[float], two: Sequence[float]) -> float:
    """The largest difference; infinite for answers of different lengths."""
    if len(one) != len(two):
        return math.inf
    return max((abs(a - b) for a, b in zip(one, two, strict=True)), default=0.0)


def served_name(adapter: AdapterRef) -> str:
    """The adapter's name on servers, with a hash of its files: it identifies the content."""
    return f"{adapter.name}+{adapter_hash(adapter)[:10]}"


def changes_something(adapter: AdapterRef) -> bool:
    """Whether any of the adapter's updates is not zero. Training starts at zero; with such an
    adapter a server rightly answers as the base model."""
    weights = read_weights(adapter)
    return any(bool(value.any()) for key, value in weights.items() if ".lora_B" in key)


# -- before a run ---------------------------------------------------------------------------------


def try_servers(
    urls: Sequence[str],
    model: str,
    one: Callable[[int, TurnRequest], TurnReply],
    request: TurnRequest,
) -> str:
    """Asks each server for the turn before a run begins: what would fail every episode ends the run
    at once, with the server's own words and the setting to change. Returns what was asked; no
    rollout is spent. Where a server says which tokens it read, it is asked once more without the
    tools: if it read the same, they do not reach the model. `one`: the only turn of an episode at a
    server. Raises UserError."""
    asked = 0
    for server, url in enumerate(urls):
        read = _turn(url, model, one(server, request)).prompt_ids
        asked += 1
        if not request.tools or not read:
            continue
        bare = replace(request, tools=(), max_tokens=1)
        asked += 1
        if _turn(url, model, one(server, bare)).prompt_ids == read:
            raise UserError(
                f"the server {url} leaves tools out of the prompt, so the agent would never see "
                f"them: the prompt of {len(read)} tokens is the same without them. Give it a chat "
                "template with tools (vLLM: --chat-template), or change `model.name`."
            )
    many = f"{len(urls)} servers" if len(urls) > 1 else "the server"
    tools = f" with {len(request.tools)} tools" if request.tools else ""
    return f"asked {many} for a first turn{tools}: {asked} requests, no rollout"


def _turn(url: str, model: str, reply: TurnReply) -> Turn:
    if reply.turn is not None:
        return reply.turn
    if reply.context_full:
        raise UserError(
            f"the server {url} has no room for the first prompt of a task: {reply.error}. Start it "
            "with a longer context (vLLM: --max-model-len), or lower `policy.max_tokens`."
        )
    remedy = _remedy(str(reply.error), model)
    raise UserError(f"the server {url} gives no turn: {reply.error}. {remedy}")


def _remedy(said: str, model: str) -> str:
    """What to do about a request that failed, by the words of the error."""
    if "--tool-call-parser" in said:  # vLLM's
        return (
            "It was started without a parser of tool calls. Start it with "
            "--enable-auto-tool-choice --tool-call-parser and the one for what the model writes "
            "(hermes, qwen3_coder, llama3_json, mistral)."
        )
    status = re.search(r": HTTP (4\d\d): ", said)
    match status[1] if status else None:
        case None | "429":
            return "See its log, change `policy.base_url`, or raise `policy.deadline`."
        case "401" | "403":
            return "Change its key (`policy.key_env`)."
        case "404":
            return f"Does it serve {model!r}? Change `model.name` or `policy.base_url`."
    return "It refuses this request: change `policy.extra` or `policy.max_tokens`."
