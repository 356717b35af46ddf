"""The models of a policy's servers: the base model, and adapters that are loaded at run time.

vLLM serves each adapter under its own model name and can load new ones while it runs
(`--enable-lora`, VLLM_ALLOW_RUNTIME_LORA_UPDATING=True); it reads them from disk, so servers and
this program must see the same files. The served name contains a hash of
the weights, so that two adapters never share one, even on a server that several runs use. Each
server is checked once for each adapter: it must list the name, and its probabilities for a probe
prompt must differ from the base model's (`acting` asks more of a server, for people).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.beginning import adapter_hash
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.types import JSON, AdapterRef, Message, Turn
from trace_bench.llm.client import Client, LLMError
from trace_bench.policies.engine.lora import read_weights

PROMPT = "Name three things that you can do for me."
VLLM = "vllm"
TOLERANT = frozenset((VLLM, "trace_bench"))
"""Owners of models on servers that accept a tool's result which belongs to no call."""
_PROBE_TOKENS = 8
SAME = 1e-6  # log-probabilities closer than this are equal


class Servers:
    """All servers of one endpoint, which are asked for their identity when it is first needed.
    `model`: the base model's name there; "": the first one listed that is no adapter."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self._urls = client.endpoint.urls
        self._loaded: dict[str, tuple[str, AdapterRef]] = {}  # by name: its name on the servers
        self._own: list[tuple[int, str]] = []  # loaded by this program: (server, name)
        self._probes: dict[int, Probe] = {}  # by server
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
            gone, _ = self._loaded.pop(name)
            for server in [server for server, there in self._own if there == gone]:
                self.take_out(server, gone)
        for adapter in wanted.values():
            if adapter.name not in self._loaded:
                served = served_name(adapter)
                for server in range(len(self._urls)):
                    self._add(server, served, adapter)
                self._loaded[adapter.name] = served, adapter

    def unload(self) -> None:
        """Unloads this program's adapters. A server that is gone is ignored."""
        for server, served in list(self._own):
            self.take_out(server, served)
        self._loaded = {}

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
        bases = (str(m.get("id")) for m in models if not m.get("parent"))
        self._model = self._model or next(bases, "")
        if self._model not in names:
            raise unknown(f"model at {url}", self._model, names, "model.name")
        owners = {str(m.get("owned_by")) for m in models}
        return VLLM if VLLM in owners else min(owners)

    def put(self, server: int, served: str, adapter: AdapterRef) -> None:
        """Loads the adapter under this name if the server does not list it. Raises UserError if it
        refuses the adapter or does not list it then."""
        url = self._urls[server]
        if served not in self.listed(server):
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
        if served not in self.listed(server):
            raise UserError(f"the server {url} loaded the adapter {served} but does not list it.")

    def take_out(self, server: int, served: str) -> None:
        """Unloads an adapter that this program has loaded."""
        self._own.remove((server, served))
        try:
            self._client.ask("/unload_lora_adapter", {"lora_name": served}, server)
        except LLMError:
            return  # the server is unreachable, or a restart has unloaded the adapter

    def listed(self, server: int) -> dict[str, Any]:
        """The folders of its models by name, None where it does not say. Raises LLMError."""
        return {str(m.get("id")): m.get("root") for m in self._models(server)}

    def _models(self, server: int) -> list[Mapping[str, Any]]:
        """What the server lists; what is no object in it is left out. Raises LLMError."""
        listed = self._client.ask("/models", None, server).get("data")
        return [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []

    def restore(self, server: int, adapter: str) -> None:
        """Loads an adapter again if the server has lost it."""
        served, lost = self._loaded[adapter]
        if served not in self.listed(server):
            self._own = [pair for pair in self._own if pair != (server, served)]
            self._add(server, served, lost)

    def _add(self, server: int, served: str, adapter: AdapterRef) -> None:
        self.put(server, served, adapter)
        if not changes_something(adapter):
            return
        if server not in self._probes:
            self._probes[server] = Probe(self._client, server, self._model, [PROMPT])
        probe = self._probes[server]
        if apart(probe.base, probe.warm(served)) <= probe.noise:
            raise UserError(
                f"the server {self._urls[server]} answers under the name {served} just as the base "
                "model does: it does not use the adapter's weights. Restart it, or use another one "
                "(`policy.base_url`)."
            )


def served_name(adapter: AdapterRef) -> str:
    """The adapter's name on servers, with a hash of its files: it identifies the content."""
    return f"{adapter.name}+{adapter_hash(adapter)[:10]}"


def changes_something(adapter: AdapterRef) -> bool:
    """Whether any of the adapter's updates is not zero. Training starts at zero; with such an
    adapter a server rightly answers as the base model."""
    weights = read_weights(adapter)
    return any(bool(value.any()) for key, value in weights.items() if ".lora_B" in key)


# -- whether an adapter acts ----------------------------------------------------------------------


class Probe:
    """Asks the models of one server. The first answer to a prompt fills the server's cache of
    prefixes and may be rounded otherwise, so later ones are compared with each other.

    base: the base model's answers; noise: the most that they differ between requests, at least
    SAME; cached: and from the first ones. `ids`: whether answers hold vLLM's ids of the tokens.
    Raises UserError for a server without log-probabilities, LLMError for a request that fails."""

    def __init__(
        self, client: Client, server: int, base: str, prompts: Sequence[str], ids: bool = False
    ) -> None:
        self._client, self._server, self._prompts = client, server, prompts
        self._url = client.endpoint.urls[server]
        self._more = {"return_token_ids": True} if ids else {}
        (first,), (self.base,), (again,) = (self.ask(base) for _ in range(3))
        self.noise = max(SAME, apart(self.base, again))
        self.cached = max(self.noise, apart(self.base, first))

    def ask(self, *names: str) -> list[list[JSON]]:
        """The answers of each model to each prompt, greedy; all are asked at once."""
        sent = [[self._start(name, prompt) for prompt in self._prompts] for name in names]
        replies = [[each.result() for each in one] for one in sent]
        try:
            for reply in (reply for one in replies for reply in one):
                list(_tops(reply))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"the server {self._url} gives no log-probabilities, so it cannot be checked "
                "whether it uses an adapter. Use vLLM, or an agent without adapters."
            ) from error
        return replies

    def _start(self, name: str, prompt: str) -> Future[JSON]:
        body = {"model": name, "messages": [{"role": "user", "content": prompt}], "seed": 0}
        body |= {"temperature": 0.0, "max_tokens": _PROBE_TOKENS, "logprobs": True}
        body |= {"top_logprobs": 5, **self._more}
        return self._client.start("/chat/completions", body, self._server)

    def warm(self, name: str) -> list[JSON]:
        """Its answers with the prompts in the server's cache."""
        self.ask(name)
        return self.ask(name)[0]


def _tops(reply: JSON) -> Iterator[tuple[Any, list[float]]]:
    """Of each position the token as the server writes it and the likeliest log-probabilities."""
    for entry in reply["choices"][0]["logprobs"]["content"]:
        yield entry.get("token"), [float(top["logprob"]) for top in entry["top_logprobs"]]


def apart(one: Sequence[JSON], two: Sequence[JSON]) -> float:
    """The largest difference of log-probabilities between answers to the same prompts, each up to
    the first token that differs, which rounding may decide."""
    most = [0.0]
    for first, second in zip(one, two, strict=True):
        for (token, left), (other, right) in zip(_tops(first), _tops(second), strict=False):
            most += [abs(a - b) for a, b in zip(left, right, strict=False)]
            if token != other:
                break
    return max(most)


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
