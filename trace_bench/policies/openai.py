"""A policy behind OpenAI-compatible servers: vLLM first, and any other with chat completions.

All requests of one episode go to one server (for its prefix cache); episodes run concurrently, up
to the endpoint's limit. Adapters are loaded into the servers at run time (policies/served.py).

If a server returns the token ids that it read and sampled (vLLM does), a Turn has them. A server
renders the conversation anew for every turn, so a prompt may not start with all earlier tokens:
thoughts are dropped, a call is rendered as JSON and not as it was sampled. Then begins another
stretch (`Turn.kept`), and `rewritten` counts the episode. With policy.thoughts=keep prompts are
rendered here, where nothing is rewritten, and sent as tokens.
"""

from __future__ import annotations

import json
import queue
import reprlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from trace_bench.core.checked import LATER, PLACE, number
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, Unreadable, fault_of
from trace_bench.core.protocols import Policy, RanksLabels, RunContext, TurnReply, TurnRequest
from trace_bench.core.store import read_object, stable_seed
from trace_bench.core.types import AgentSpec, Message, Tool, Turn
from trace_bench.llm.client import (
    Client,
    Endpoint,
    LLMError,
    check_extra,
    check_urls,
    read_key,
)
from trace_bench.policies.answers import (
    LARGEST_ID,
    as_chat,
    check_ids,
    check_logprobs,
    first_choice,
    read_message,
    remembered,
    shared,
)
from trace_bench.policies.formats import Reply
from trace_bench.policies.served import ContextFull, Servers, try_servers

if TYPE_CHECKING:
    from trace_bench.policies.chat import Chat
    from trace_bench.policies.talk import Talk

CHAT, TOKENS = "/chat/completions", "/completions"
CONFIG = "config.json"  # of a model's folder
# Without these, vLLM takes its values from the model's generation_config.json.
PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
PROBATION = 60.0  # seconds until a server that did not answer is tried again
MESSAGE = Limits(2**20)  # of the agent's message: more than any turn can hold
SPARE_IDS = 2**14  # tokens that a template adds to a conversation
TOP = 20  # the most likely tokens to request when ranking labels


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
    parse: Literal["server", "tokens"] = field(default="server", metadata=LATER)
    """Who reads calls and thoughts in a turn. server: what its parsers were started with; tokens:
    this program, from the sampled ids of a vLLM, with the tokenizer in `model.path`: no parser
    is needed there (docs/models.md has the formats)."""


@dataclass
class _Conversation:
    """The state of an episode between its turns."""

    server: int
    adapter: str | None
    tools: tuple[Tool, ...]
    history: list[Message] = field(default_factory=list)
    spoken: int = 0  # characters of tools and history as JSON
    ids: tuple[int, ...] = ()  # all tokens so far
    talk: Talk | None = None  # where prompts are rendered here
    exact: bool = True  # `ids` are the tokens that the server read and sampled
    rewritten: bool = False  # a prompt did not begin with all earlier tokens
    tight: bool = False  # the context cannot hold the prompt and a whole turn any more
    turns: int = 0
    reloaded: bool = False  # its adapter had to be loaded again

    def add(self, messages: Sequence[Message]) -> None:
        self.history += messages
        self.spoken += len(json.dumps(messages))  # in ASCII: no shorter than in UTF-8


class OpenAIPolicy(RanksLabels):
    """`model`: the base model's name on the servers; `extra`: further fields of every request;
    `chat`: reads the sampled ids in place of the servers' parsers; `keep`: it renders the prompts
    too, with all thoughts. No server is asked before `try_turn` or `load`, which raise UserError if
    one does not answer or does not have the model."""

    repeatable = False  # a server's answers depend on its other load
    at_servers = True
    addresses = MappingProxyType({"base_url": "key_env", "states_url": "states_key_env"})

    @classmethod
    def under(cls, settings: Mapping[str, Any]) -> type[Policy]:
        from trace_bench.policies.states import StatesPolicy

        return StatesPolicy if settings.get("states_url") else cls

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        capacity: int,
        extra: Mapping[str, Any] | None,
        chat: Chat | None = None,
        keep: bool = False,
    ) -> None:
        self.capacity, self._chat = capacity, chat
        self._path = TOKENS if keep else CHAT
        self.model = model
        self._vocabulary = LARGEST_ID
        self._extra = dict(extra or {})
        self._client = Client(endpoint)
        self.servers = Servers(self._client, model)
        self._open: dict[int, _Conversation] = {}
        self._load = [0] * len(endpoint.urls)  # live episodes of each server
        self._silent: dict[int, float] = {}  # servers that do not answer -> since when
        self._under_way: dict[int, Future[Any]] = {}
        self._ready: queue.SimpleQueue[tuple[TurnRequest, Future[Any] | TurnReply] | None]
        self._ready = queue.SimpleQueue()
        self.rewritten = 0

    def hold_to(self, folder: Path) -> None:
        """Refuses ids that the model in this folder does not have, where it is one: a trainer that
        reads its weights there could not look them up."""
        if (folder / CONFIG).is_file():
            size = read_object(folder / CONFIG).get("vocab_size", LARGEST_ID)
            if type(size) is not int or size < 1:
                raise UserError(
                    f"`vocab_size` in {folder / CONFIG} is {reprlib.repr(size)}; allowed: a whole "
                    "number from 1. Change `model`."
                )
            self._vocabulary = size

    def usage(self) -> dict[str, int]:
        """Requests, retries and tokens so far."""
        return {**vars(self._client.usage), "rewritten": self.rewritten}

    def load(self, agent: AgentSpec) -> None:
        self.servers.load(agent.adapters)

    def try_turn(self, request: TurnRequest) -> str:
        """At every server, as in an episode. Raises UserError."""
        self.servers.greet()
        return try_servers(self._client.endpoint.urls, self.model, self._alone, request)

    def submit(self, requests: Sequence[TurnRequest]) -> None:
        for request in requests:
            try:
                self._submit(request)
            except Exception as error:  # fails this episode only
                text = f"{type(error).__name__}: {error}"
                self._ready.put((request, TurnReply(request.episode, None, error=text)))

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
        if (known := self._open.pop(episode, None)) is not None:
            self._load[known.server] -= 1

    def close(self) -> None:
        """Forgets all episodes and unloads this program's adapters from the servers."""
        for episode in list(self._open):
            self.release(episode)
        self.servers.unload()
        self._client.close()

    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> dict[str, float] | None:
        """Natural logarithms of the base model's probability of each label (a single token) as the
        answer. Labels that are not among the server's most likely tokens are missing. None if the
        server returns no log-probabilities."""
        body = {**self._common(self.model, 0.0, 1), "messages": list(messages)}
        body |= {"logprobs": True, "top_logprobs": TOP}
        reply = self._client.ask(CHAT, body, self._choose())
        try:
            top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        except (KeyError, IndexError, TypeError):
            return None
        found: dict[str, float] = {}
        for entry in top if isinstance(top, list) else ():
            label = str(entry.get("token", "")).strip() if isinstance(entry, dict) else ""
            value = entry["logprob"] if label in labels else None
            if isinstance(value, int | float) and value <= 1e-3:
                found[label] = max(float(value), found.get(label, float("-inf")))
        return found

    # -- one turn -----------------------------------------------------------------------------

    def _submit(self, request: TurnRequest) -> None:
        episode = self._open.get(request.episode) or self._begin(request, self._choose())
        if request.adapter != episode.adapter:  # a server keeps the caches of adapters apart
            episode.adapter, episode.reloaded = request.adapter, False
        self._hear(request, episode)
        self._send(request, episode, None if episode.tight else request.max_tokens)

    def _hear(self, request: TurnRequest, episode: _Conversation) -> None:
        episode.add(self.servers.readable(request.messages))
        if episode.talk is not None:
            episode.talk.ask(request.messages)

    def _begin(self, request: TurnRequest, server: int) -> _Conversation:
        spoken = len(json.dumps(request.tools))
        episode = _Conversation(server, request.adapter, request.tools, spoken=spoken)
        if self._path == TOKENS and self._chat is not None:
            from trace_bench.policies.talk import Talk

            episode.talk = Talk(self._chat, request.tools, "keep")
        self._open[request.episode] = episode
        self._load[server] += 1
        return episode

    def _alone(self, server: int, request: TurnRequest) -> Turn:
        """The only turn of an episode at this server (`trial.OneTurn`)."""
        episode = self._begin(request, server)
        self._hear(request, episode)
        try:
            return self._turn(request, self._answer(request, episode))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        finally:
            self.release(request.episode)

    def _answer(self, request: TurnRequest, episode: _Conversation) -> dict[str, Any]:
        """A server's answer, also where its context has no room for a whole turn."""
        for most in (request.max_tokens, None):
            try:
                body = self._body(request, episode, most)
                return self._client.ask(self._path, body, episode.server)
            except LLMError as error:
                if not context_is_full(error):
                    raise
                if most is None or not self.servers.vllm:
                    raise ContextFull(str(error), error.status) from error
        raise AssertionError("the last attempt returns or raises")

    def _choose(self) -> int:
        """The server with the fewest live episodes. A server that does not answer gets none at
        first, then one at a time as a test (see PROBATION)."""
        now = time.monotonic()

        def rank(server: int) -> tuple[bool, int, int]:
            silent = self._silent.get(server)
            due = silent is None or (now - silent > PROBATION and not self._load[server])
            return (not due, self._load[server], server)

        return min(range(len(self._load)), key=rank)

    def _send(self, request: TurnRequest, episode: _Conversation, most: int | None) -> None:
        body = self._body(request, episode, most)
        future = self._client.start(self._path, body, episode.server)
        self._under_way[request.episode] = future
        future.add_done_callback(lambda f: self._ready.put((request, f)))

    def _body(
        self, request: TurnRequest, episode: _Conversation, most: int | None
    ) -> dict[str, Any]:
        name = self.servers.name_of(episode.adapter)
        body = self._common(name, request.temperature, most)
        body["seed"] = stable_seed("turn", request.seed, episode.turns) % 2**31
        if episode.talk is not None:  # without a number the server's default is 16
            body |= {"prompt": list(episode.talk.ids), "max_tokens": most}
            return body | {"logprobs": 0, "return_token_ids": True}
        body["messages"] = episode.history
        if episode.tools:
            body["tools"] = list(episode.tools)
            if self._chat is not None:
                body["tool_choice"] = "none"  # the server reads no calls; tools stay in the prompt
        if self.servers.vllm:
            body |= {"logprobs": True, "return_token_ids": True}
        return body

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
                self._send(request, episode, None)
                return None
            return TurnReply(request.episode, None, error=str(error), context_full=full)
        except Unreadable as error:
            return TurnReply(
                request.episode, None, error=f"the server's answer is refused: {error}"
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # unreadable response
            text = f"{type(error).__name__}: {error}"
            return TurnReply(request.episode, None, error=f"the server's answer: {text}")

    def _loaded_again(self, request: TurnRequest, episode: _Conversation, error: LLMError) -> bool:
        """Whether the request was sent again because the server had lost the adapter: it was
        restarted, or another program that shares it has unloaded the adapter."""
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
        # A server may report a base model under another name (a dated one), but not an adapter.
        if episode.adapter is not None and reply.get("model", wanted) != wanted:
            raise ValueError(f"{reply['model']!r} answered where {wanted!r} was asked")
        reply = reply if episode.talk is None else as_chat(reply)
        choice = first_choice(reply)
        if fault := fault_of(choice["message"], MESSAGE):
            raise Unreadable(f"its message cannot be used: {fault}")
        kept, prompt, sampled, logprobs = self._tokens(request, episode, reply, choice)
        said = self._said(request, episode, choice)
        episode.add([remembered(said)])
        episode.turns += 1
        return Turn(
            messages=request.messages,
            reply=said.message,
            prompt_ids=prompt,
            token_ids=sampled,
            logprobs=logprobs,
            adapter=episode.adapter,
            malformed=said.malformed,
            thoughts=said.thoughts,
            truncated=choice.get("finish_reason") == "length",
            kept=kept,
        )

    def _said(
        self, request: TurnRequest, episode: _Conversation, choice: Mapping[str, Any]
    ) -> Reply:
        if self._chat is None:
            return read_message(choice["message"], episode.turns)
        ids = choice.get("token_ids")
        if ids is None:
            raise Unreadable("it has no token ids, which policy.parse=tokens reads (vLLM's do)")
        check_ids(ids, "the turn", request.max_tokens + 1, self._vocabulary)
        if episode.talk is not None:
            return episode.talk.hear(ids, bool(ids) and ids[-1] == self._chat.stop)
        return self._chat.parse(ids, episode.turns, episode.tools)

    def _tokens(
        self,
        request: TurnRequest,
        episode: _Conversation,
        reply: Mapping[str, Any],
        choice: Mapping[str, Any],
    ) -> tuple[int | None, tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """(how many of the earlier tokens the prompt begins with, if not all; the ids after them;
        sampled ids, their log-probabilities); empty if the server does not return ids. vLLM's
        log-probabilities are at temperature 1, so there are none at other temperatures. Raises
        Unreadable for ids and log-probabilities that no model can have given."""
        heat = request.temperature
        whole, sampled = reply.get("prompt_token_ids"), choice.get("token_ids")
        if whole or sampled:
            most = episode.spoken + len(episode.ids) + SPARE_IDS
            check_ids(whole, "the prompt", most, self._vocabulary)
            check_ids(sampled, "the turn", request.max_tokens + 1, self._vocabulary)
        if not episode.exact or not whole or sampled is None:
            episode.exact = False
            return None, (), (), ()
        kept = min(shared(episode.ids, whole), max(0, len(whole) - 1))
        if anew := kept < len(episode.ids):
            self.rewritten += not episode.rewritten
            episode.rewritten = True
        prompt = tuple(whole[kept:])
        episode.ids = (*whole, *sampled)
        content = (choice.get("logprobs") or {}).get("content") or ()
        logprobs = tuple(entry["logprob"] for entry in content)
        check_logprobs(logprobs)
        known = tuple(map(float, logprobs)) if heat in (0, 1) else ()
        return kept if anew else None, prompt, tuple(sampled), known


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
        from trace_bench.policies.chat import Chat
        from trace_bench.policies.loading import load_tokenizer

        chat = Chat(load_tokenizer(run.model), run.model, run.thinking)
    how: dict[str, Any] = {"capacity": run.batch, "extra": extra, "keep": keep}
    how["chat"] = chat if settings.parse == "tokens" else None
    if settings.states_url and chat is not None:
        from trace_bench.policies.states import StateServers, StatesPolicy, states_at

        states = StateServers(
            states_at(settings.states_url, settings.states_key_env, endpoint),
            run.served_model,
            chat,
            run.model,
            run.context,
        )
        policy: OpenAIPolicy = StatesPolicy(endpoint, run.served_model, states, **how)
    else:
        policy = OpenAIPolicy(endpoint, run.served_model, **how)
    policy.hold_to(Path(run.model))
    return policy


def context_is_full(error: LLMError) -> bool:
    """Whether a server refused a prompt for its length; judged by the message, since there is no
    common error code."""
    text = str(error).lower()
    return error.status in (400, 413) and (
        "context_length_exceeded" in text or "context length" in text or "max_model_len" in text
    )
