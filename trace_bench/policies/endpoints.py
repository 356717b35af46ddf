"""`policy=openai`: its settings, the policy that they make, and servers that show it hidden states.

These read the openings of episodes with the same base model and show its final hidden state at the
last token, as OpenAI's embeddings of token ids: vLLM's pooling runner, or this project's own
`serve --states` (`START`). The prompt is rendered here, as in `policies.local`, so that a router
gets the same states from either. A state is asked for once and kept."""

from __future__ import annotations

import functools
import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.checked import PLACE, number
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Prompt, RunContext, ShowsState, State, TurnRequest
from trace_bench.core.store import read_if_there
from trace_bench.llm.client import (
    Client,
    Endpoint,
    LLMError,
    RefusedAnswer,
    check_extra,
    check_urls,
    read_key,
)
from trace_bench.policies.chat import Chat
from trace_bench.policies.openai import CONFIG, OpenAIPolicy

SHOWN = "/embeddings"
URL = "policy.states_url"
KEPT = 4096  # states
_UNIT = 1e-3  # a state whose length is as close to 1 was normalized
START = (
    "python -m vllm.entrypoints.openai.api_server --model {model} --served-model-name {name} "
    "--port 8001 --runner pooling --convert embed "
    """--pooler-config '{{"pooling_type": "LAST", "use_activation": false}}'""",
    "python -m trace_bench.serve {model} --states --name {name} --port 8001",
)
"""Commands that start a server of states: vLLM's, and ours."""


@dataclass(frozen=True)
class OpenAISettings:
    """`policy.*` of `policy=openai`."""

    base_url: tuple[str, ...] = field(metadata=PLACE)
    """One address or a list of them; an episode stays on one server."""
    key_env: str | None = field(default=None, metadata=PLACE)
    """Name of the environment variable that holds the key; null: no key is sent."""
    deadline: float = field(default=120.0, metadata=number(0.1) | PLACE)
    """Seconds for one attempt of a request."""
    retries: int = field(default=5, metadata=number(0) | PLACE)
    """Further attempts after 429, 5xx, lost connections and deadlines."""
    extra: Mapping[str, Any] | None = None
    """More fields of every request, such as {chat_template_kwargs: {...}}."""
    states_url: tuple[str, ...] = field(default=(), metadata=PLACE)
    """Address of a second server, or a list of them, that shows the hidden states of the same base
    model (method.route classifier and soft read them); docs/servers.md says how to start one."""
    states_key_env: str | None = field(default=None, metadata=PLACE)
    """Name of the environment variable that holds its key; null: no key is sent."""
    parse: Literal["server", "tokens"] = "server"
    """Who reads calls and thoughts in a turn. server: what its parsers were started with; tokens:
    this program, from the sampled ids of a vLLM, with the tokenizer in `model.path`: no parser
    is needed there (docs/models.md has the formats)."""


def template_options(thinking: bool | None) -> dict[str, dict[str, bool]]:
    """What a request says to the template of vLLM's model; None: nothing."""
    return {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}


def served(settings: OpenAISettings, run: RunContext) -> OpenAIPolicy:
    """`policy=openai`: sends requests to servers."""
    endpoint = Endpoint(
        check_urls(settings.base_url, "policy.base_url"),
        read_key(settings.key_env, "policy.key_env"),
        deadline=settings.deadline,
        retries=settings.retries,
        concurrency=run.batch,
    )
    extra = check_extra(settings.extra, "policy.extra")
    for key, own in template_options(run.thinking).items():
        extra = {**extra, key: {**own, **extra.get(key, {})}}
    chat, keep = None, run.thoughts == "keep"
    if keep and settings.parse != "tokens":
        raise UserError(
            "policy.thoughts=keep at servers needs prompts that are rendered here, with the "
            "tokenizer in `model.path`. Set policy.parse=tokens, or policy.thoughts=own."
        )
    if settings.parse == "tokens" or settings.states_url:
        from trace_bench.policies.loading import load_tokenizer

        chat = Chat(load_tokenizer(run.model), run.model, run.thinking)
    how: dict[str, Any] = {"capacity": run.batch, "extra": extra, "keep": keep}
    how["chat"] = chat if settings.parse == "tokens" else None
    states = None
    if settings.states_url and chat is not None:
        states = StateServers(
            states_at(settings.states_url, settings.states_key_env, endpoint),
            run.served_model,
            chat,
            run.model,
            run.context,
        )
    policy = policy_at(endpoint, run.served_model, states, **how)
    policy.hold_to(Path(run.model))
    return policy


def policy_at(
    endpoint: Endpoint, model: str, states: StateServers | None, **how: Any
) -> OpenAIPolicy:
    """A policy at these servers; one that shows states, where there are servers of states."""
    if states is None:
        return OpenAIPolicy(endpoint, model, **how)
    return StatesPolicy(endpoint, model, states, **how)


def starts(model: str, name: str) -> str:
    """What to run for `policy.states_url`. `model`: its folder or hub name; `name`: on servers."""
    return " or ".join(command.format(model=model, name=name) for command in START)


def states_at(
    urls: Sequence[str],
    key_env: str | None,
    like: Endpoint,
    settings: tuple[str, str] = (URL, "policy.states_key_env"),
) -> Endpoint:
    """The servers of states, asked as `like` is. `settings`: the first two's. Raises UserError."""
    servers = check_urls(tuple(urls), settings[0])
    return replace(like, urls=servers, key=read_key(key_env, settings[1]))


class StateServers:
    """Asks for states. `model`: the base model's name there; `chat`: of that model; `place`: its
    folder or hub name; `context`: of a prompt that is longer, the last tokens are read (None: as
    many as the servers say that they read). Thread-safe."""

    def __init__(
        self, endpoint: Endpoint, model: str, chat: Chat, place: str, context: int | None
    ) -> None:
        self._client = Client(endpoint)
        self._urls, self._model, self._place = endpoint.urls, model, place
        self._chat, self._context = chat, context
        config = read_if_there(Path(place) / CONFIG)
        self._width = config.get("text_config", config).get("hidden_size")
        self._kept: OrderedDict[tuple[int, ...], State | Future[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self.asked = 0

    def of(self, prompts: Sequence[Prompt]) -> list[State]:
        """The states [hidden size] of prompts. Raises LLMError if a server gives none now, and
        UserError for one that cannot serve."""
        with self._lock:
            wanted = [self._chat.first(*p)[-(self._most or 0) :] for p in prompts]
            found = [self._begun(ids) for ids in wanted]
        try:
            return [self._ended(ids, got) for ids, got in zip(wanted, found, strict=True)]
        except BaseException:
            with self._lock:  # the others may fail too, unread: who asks next is to ask anew
                for ids, got in zip(wanted, found, strict=True):
                    if isinstance(got, Future) and self._kept.get(ids) is got:
                        del self._kept[ids]
            raise

    def try_one(self, prompt: Prompt) -> str:
        """Asks each server before a run begins; returns what was asked. Raises UserError, with how
        to start a server, for one that cannot serve."""
        try:
            ids = self._chat.first(*prompt)[-(self._most or 0) :]
            states = [self._read(self._start(ids, n).result()) for n in range(len(self._urls))]
        except LLMError as error:
            raise UserError(
                f"no hidden state from `policy.states_url`: {error}. {self._how()}"
            ) from error
        return f"asked {len(states)} server(s) for a hidden state of {len(states[0])} numbers"

    def close(self) -> None:
        self._client.close()

    def _how(self) -> str:
        return f"Start one: {starts(self._place, self._model)}."

    @functools.cached_property
    def _most(self) -> int | None:
        """Tokens of a prompt. What the servers list must have the model: LLMError and UserError."""
        limits = [self._context]
        for server, url in enumerate(self._urls):
            try:
                listed = self._client.ask("/models", None, server).get("data")
            except LLMError as error:
                if error.status in (404, 405):  # not every server lists its models
                    continue
                raise
            named = {str(m.get("id")): m for m in listed or () if isinstance(m, dict)}
            if self._model not in named:
                raise unknown(f"model at {url}", self._model, named, "policy.states_url")
            limits.append(named[self._model].get("max_model_len"))
        return min((n for n in limits if type(n) is int and n > 0), default=None)

    def _start(self, ids: Sequence[int], server: int) -> Future[Any]:
        self.asked += 1
        body = {"model": self._model, "input": [list(ids)], "encoding_format": "float"}
        return self._client.start(SHOWN, {**body, "use_activation": False}, server)

    def _begun(self, ids: tuple[int, ...]) -> State | Future[Any]:
        """What is known of a prompt's state, which is asked for if it is new."""
        if ids in self._kept:
            self._kept.move_to_end(ids)
        else:
            self._kept[ids] = self._start(ids, self.asked % len(self._urls))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept.get(ids) or self._start(ids, 0)

    def _ended(self, ids: tuple[int, ...], got: State | Future[Any]) -> State:
        if not isinstance(got, Future):
            return got
        state: State | None = None
        try:
            state = self._read(got.result())
            return state
        finally:
            with self._lock:
                if self._kept.get(ids) is got:
                    if state is None:  # the next asks again
                        del self._kept[ids]
                    else:
                        self._kept[ids] = state

    def _read(self, reply: Mapping[str, Any]) -> State:
        data = reply.get("data")
        one = data[0] if isinstance(data, list) and len(data) == 1 else None
        numbers = one.get("embedding") if isinstance(one, dict) else None
        if not isinstance(numbers, list) or not set(map(type, numbers)) <= {int, float}:
            raise RefusedAnswer("the answer holds no list of numbers as the embedding of a prompt")
        try:
            state = array("f", numbers)
        except OverflowError as error:
            raise RefusedAnswer("a hidden state holds a number that is too large") from error
        if not all(map(math.isfinite, state)):
            raise RefusedAnswer("a hidden state is not finite")
        self._check(state)
        return state

    def _check(self, state: State) -> None:
        """Raises UserError for what is no state of the model."""
        if self._width is None:
            self._width = len(state)
        if len(state) != self._width:
            raise UserError(
                f"`policy.states_url` shows states of {len(state)} numbers, and the model "
                f"{self._place} has {self._width}. {self._how()}"
            )
        if abs(math.sqrt(math.fsum(x * x for x in state)) - 1) < _UNIT:
            raise UserError(
                "`policy.states_url` shows states of length 1: the server normalizes them, and a "
                f"router reads them as they are. {self._how()}"
            )


class StatesPolicy(OpenAIPolicy, ShowsState):
    """A policy at servers that shows states, from servers of their own."""

    def __init__(self, endpoint: Endpoint, model: str, states: StateServers, **how: Any) -> None:
        super().__init__(endpoint, model, **how)
        self._states = states

    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]:
        return self._states.of(prompts)

    def try_turn(self, request: TurnRequest) -> str:
        said = super().try_turn(request)
        return f"{said}; {self._states.try_one((request.messages, request.tools))}"

    def usage(self) -> dict[str, int]:
        return {**super().usage(), "states": self._states.asked}

    def close(self) -> None:
        super().close()
        self._states.close()
