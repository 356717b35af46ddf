"""The local policy: runs a Hugging Face causal language model in this process, in batches; and a
thread over it, for requests that come at any time."""

from __future__ import annotations

import math
import traceback
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trace_bench.core.errors import UserError, not_allowed, unknown
from trace_bench.core.protocols import Policy, Prompt, State, TurnReply, TurnRequest
from trace_bench.core.types import AgentSpec, Message, T, Tool, grouped
from trace_bench.policies.chat import Chat
from trace_bench.policies.engine.layout import Backend
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.policies.engine.scheduler import Order, Sampled, Scheduler
from trace_bench.policies.hub import check_device
from trace_bench.policies.loading import DType, load_model
from trace_bench.policies.talk import Talk, Thoughts, submitted

_STATES = 1024  # prompts whose states are remembered


class LocalPolicy(Policy):
    """A model in this process.

    `batch`: live episodes, and the most rows in one forward call; memory for keys and values grows
    with `batch` times the longest episode. `context`: the most tokens of an episode (default: the
    model's limit, at most 1024). `threads`: sets torch's thread count for the process. `dtype`: the
    numbers of the model's products. `thinking`: as for `Chat`; `thoughts`: as for `Talk`. Raises
    UserError for a model that cannot be loaded or run."""

    repeatable = True

    def __init__(
        self,
        model_path: str | Path,
        *,
        batch: int = 128,
        context: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        dtype: DType = "auto",
        thinking: bool | None = None,
        thoughts: Thoughts = "own",
    ) -> None:
        if batch < 1:
            raise UserError(f"batch is {batch}; allowed: 1 or more. Set `policy.batch`.")
        if threads is not None:
            torch.set_num_threads(threads)
        check_device(device)
        model, tokenizer = load_model(model_path, device, dtype)
        self.capacity = batch
        self.context: int = context_of(model.config, context)
        self.chat = Chat(tokenizer, str(model_path), thinking)
        self._thoughts = thoughts
        self._model = model
        self._backend = backend_of(model, batch, self.context)
        self._engine = Scheduler(self._backend, batch, self.context, self.chat.stop)
        self._adapters = set[str]()  # loaded
        self._open: dict[int, Talk] = {}
        self._ready: list[TurnReply] = []
        # The same tasks are routed for every version of an agent; the base model stays the same.
        self._states: OrderedDict[tuple[int, ...], State] = OrderedDict()
        self.vocab = self._backend.vocab

    def load(self, agent: AgentSpec) -> None:
        """Makes the agent's adapters available, drops others. Raises UserError for a misfit."""
        wanted = {a.name: a for a in agent.adapters}
        for name in self._adapters - wanted.keys() - self._engine.adapters():
            self._backend.remove(name)
            self._adapters.remove(name)
        for name, ref in wanted.items():
            if name not in self._adapters:
                self._backend.add(read_adapter(ref, self._backend.shapes))
                self._adapters.add(name)

    def submit(self, requests: Sequence[TurnRequest]) -> None:
        """Queues turns. A prompt that does not fit the context gets a `context_full` reply."""
        self._ready += [reply for _, reply in submitted(requests, self._submit)]

    def collect(self) -> list[TurnReply]:
        """Runs the model until at least one turn is finished."""
        while not (ready := self.step()):
            pass
        return ready

    def step(self) -> list[TurnReply]:
        """Runs the model once for all open turns (at least one); returns the finished."""
        if not self._ready:
            self._ready = [self._reply(sampled) for sampled in self._engine.step()]
        ready, self._ready = self._ready, []
        return ready

    def partial(self, episode: int) -> str:
        """The text of an open turn before its first tool call, stripped; it only grows."""
        return self.chat.partial(self._engine.sampled(episode).ids)

    def cut(self, episode: int) -> TurnReply:
        """Ends an open turn where it is; the episode has to be released."""
        return self._reply(self._engine.sampled(episode))

    def release(self, episode: int) -> None:
        self._engine.release(episode)
        self._open.pop(episode, None)
        self._ready = [r for r in self._ready if r.episode != episode]

    def close(self) -> None:
        for episode in list(self._open):
            self.release(episode)

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        return self.chat.first_prompt(messages, tools)

    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> dict[str, float]:
        """Natural logarithms of the base model's probabilities of answering with each label. Raises
        UserError for one that is not a single token."""
        ids = {label: self.chat.token(label) for label in labels}
        prompt = torch.tensor([self.chat.first(messages, ())], device=self._model.device)
        with torch.inference_mode():
            scores = self._model(prompt).logits[0, -1].float().log_softmax(-1)
        return {label: float(scores[i]) for label, i in ids.items()}

    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]:
        """Prompts of one length are read together, so that none is padded: a row's numbers are then
        those that it has alone."""
        wanted = [self.chat.first(*prompt)[-self.context :] for prompt in prompts]
        new = [ids for ids in dict.fromkeys(wanted) if ids not in self._states]
        for alike in grouped(new, len).values():
            for first in range(0, len(alike), self.capacity):
                self._read(alike[first : first + self.capacity])
        for ids in wanted:
            self._states.move_to_end(ids)
        states = [self._states[ids] for ids in wanted]
        while len(self._states) > _STATES:
            self._states.popitem(last=False)
        return states

    def _read(self, together: Sequence[tuple[int, ...]]) -> None:
        """Remembers the states of prompts of one length."""
        ids = torch.tensor(together, device=self._model.device)
        with torch.inference_mode():
            out = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
        for prompt, state in zip(together, out.float().cpu().numpy(), strict=True):
            self._states[prompt] = array("f", state.tobytes())

    def _submit(self, request: TurnRequest) -> None:
        talk, name = self._open.get(request.episode), request.adapter
        if name is not None and name not in self._adapters:
            raise unknown("adapter", name, self._adapters, "agent.adapters")
        if talk is None:
            talk = Talk(self.chat, request.tools, self._thoughts, name)
            self._open[request.episode] = talk
        talk.ask(request.messages)
        ids, kept = talk.new, talk.kept
        if not self._engine.fits(request.episode, len(ids), kept):
            self._ready.append(TurnReply(request.episode, None, context_full=True))
            return
        how = (talk.seed(request.seed), request.temperature, request.max_tokens, kept)
        self._engine.submit(Order(request.episode, ids, name, *how))

    def _reply(self, sampled: Sampled) -> TurnReply:
        talk = self._open[sampled.episode]
        if not math.isfinite(sum(sampled.logprobs)):
            acting = f"adapter {talk.adapter!r}" if talk.adapter else "base model"
            text = f"the logits are not finite: the weights of the {acting} are out of all bounds"
            return TurnReply(sampled.episode, None, error=text)
        cut = sampled.truncated
        turn = talk.turn(sampled.ids, sampled.logprobs, finished=not cut, truncated=cut)
        return TurnReply(sampled.episode, turn)


def context_of(config: Any, wanted: int | None) -> int:
    """The most tokens of an episode with a model of this configuration: `wanted`, by default the
    model's limit but at most 1024. Raises UserError if `wanted` exceeds the model's limit."""
    limit = int(config.get_text_config().max_position_embeddings)
    if wanted is not None and not 2 <= wanted <= limit:
        raise not_allowed("policy.context", wanted, f"2 to {limit} for this model")
    return min(limit, 1024) if wanted is None else wanted


def backend_of(model: Any, slots: int, context: int) -> Backend:
    from trace_bench.policies.engine import decoder, hf

    if decoder.supports(model):
        return decoder.Decoder(model, slots, context)
    return hf.HuggingFace(model, slots, context)


@dataclass(frozen=True)
class _Open:
    deliver: Callable[[TurnReply], None]
    grow: Callable[[str], bool] | None


class PolicyThread:
    """One thread over a policy. Each turn is an episode of its own."""

    def __init__(self, policy: LocalPolicy) -> None:
        self.policy = policy
        self._open: dict[int, _Open] = {}
        self._thread = ThreadPoolExecutor(1, "engine")

    def call(self, what: Callable[..., T], *arguments: object) -> Future[T]:
        """Calls it in that thread, between two steps."""
        return self._thread.submit(what, *arguments)

    def start(
        self,
        request: TurnRequest,
        deliver: Callable[[TurnReply], None],
        grow: Callable[[str], bool] | None = None,
    ) -> None:
        """Begins a turn. `deliver` gets its reply; `grow` its text after each step before, and says
        whether the turn ends here. Both are called in that thread."""
        self.call(self._begin, request, _Open(deliver, grow))

    def cancel(self, episode: int) -> None:
        """Frees the place of a turn, if it has not ended."""
        self.call(self._drop, episode)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    # -- in that thread ---------------------------------------------------------------------------

    def _begin(self, request: TurnRequest, one: _Open) -> None:
        self.policy.submit([request])
        self._open[request.episode] = one
        if len(self._open) == 1:
            self.call(self._step)

    def _step(self) -> None:
        """One step for all open turns; the next comes after what was asked meanwhile."""
        try:
            if self._open:
                for reply in self.policy.step():
                    self._end(reply)
            for episode, one in [*self._open.items()]:
                if one.grow is not None and one.grow(self.policy.partial(episode)):
                    self._end(self.policy.cut(episode))
        except Exception as error:
            traceback.print_exc()
            for episode in [*self._open]:
                self._end(TurnReply(episode, None, error=f"the engine has failed: {error!r}"))
        if self._open:
            self.call(self._step)

    def _end(self, reply: TurnReply) -> None:
        if (one := self._drop(reply.episode)) is not None:
            one.deliver(reply)

    def _drop(self, episode: int) -> _Open | None:
        if (one := self._open.pop(episode, None)) is not None:
            self.policy.release(episode)
        return one
