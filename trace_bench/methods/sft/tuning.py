"""The training of `method=sft`: demonstrations as tokens, optimizer steps, the adapter on disk."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import FineTunes, Lab
from trace_bench.core.store import fingerprint, stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Task
from trace_bench.methods.sft.data import Conversation, World, others, own
from trace_bench.methods.sft.settings import SftSettings
from trace_bench.play.rollouts import with_guidance
from trace_bench.trainers.record import stepped
from trace_bench.trainers.start import start_of

if TYPE_CHECKING:
    from trace_bench.policies.chat import Chat
    from trace_bench.trainers.model import Learner
    from trace_bench.trainers.tree import Tokens


class Tuning:
    """One adapter. After every step what is needed to go on is on disk."""

    def __init__(
        self,
        base: AgentSpec,
        lab: Lab,
        trainer: FineTunes,
        settings: SftSettings,
        tasks: Sequence[Task] = (),
    ) -> None:
        self.base, self.lab, self.settings, self.tasks = base, lab, settings, tasks
        self.learner: Learner = trainer.learner(base.model)
        rate = settings.learning_rate
        self.trainer = dataclasses.replace(trainer.settings, learning_rate=rate)
        self.seed = stable_seed(lab.seed, "sft")
        self.folder = lab.folder / "adapters" / "sft"

    def run(self) -> AgentSpec:
        """The agent with the adapter; the base agent if no step had a gradient."""
        from trace_bench.trainers.adapters import write_adapter
        from trace_bench.trainers.resume import State, restore

        state = State.load(self.folder, self._identity(), self.lab.log)
        if not state.finished:
            sequences = self._sequences()
            start = start_of(self.base)
            optimizer = restore(state, self.learner, self.trainer, self.seed, start)
            batches = self._batches(len(sequences))
            for step in range(state.iteration, len(batches)):
                for group in optimizer.param_groups:
                    group["lr"] = self.settings.learning_rate * (1 - step / len(batches))
                state.records.append(self._step(optimizer, [sequences[i] for i in batches[step]]))
                state.iteration = step + 1
                state.finished = state.iteration == len(batches)
                if state.finished:
                    s = self.trainer
                    lora = {"rank": s.rank, "alpha": s.alpha, "target_modules": s.target_modules}
                    version = self.folder / f"{state.iteration:04d}"
                    write_adapter(version, self.learner.layers, lora, self.base.model)
                state.save(self.folder, self.learner, optimizer)
        for step, record in enumerate(state.records):
            self.lab.metric(phase="fine-tuning", step=step, **record)
        tokens = sum(r["tokens"] for r in state.records)
        self.lab.log(
            f"sft: {state.iteration} steps on {tokens:,} tokens of demonstrations; no rollout is "
            f"spent, {self.lab.budget_left()} stay"
        )
        if not stepped(state.records):
            self.lab.log("sft: no step had a gradient, so there is no adapter")
            return self.base
        name = f"sft@{state.iteration:04d}"
        adapter = AdapterRef(name, str(self.folder / f"{state.iteration:04d}"))
        return dataclasses.replace(
            self.base,
            version=f"{self.base.version}+{name}",
            adapters=(adapter,),
        )

    def _sequences(self) -> list[Tokens]:
        """The demonstrations as tokens. Those too long for the context are left out, and counted in
        the log."""
        from trace_bench.policies.chat import Chat
        from trace_bench.policies.local import load_tokenizer

        chat = Chat(load_tokenizer(self.base.model), self.base.model)
        every = [
            tokens_of(chat, (with_guidance(messages, self.base.prompt), tools))
            for messages, tools in self._conversations()
        ]
        fitting = [s for s in every if len(s.ids) <= self.learner.context]
        if len(fitting) < len(every):
            self.lab.log(
                f"sft: {len(every) - len(fitting)} of {len(every)} demonstrations are longer than "
                f"the context of {self.learner.context} tokens and left out"
            )
        if not fitting:
            raise UserError("method=sft has no demonstration that fits. Change `method.data`.")
        return fitting

    def _conversations(self) -> Iterable[Conversation]:
        settings = self.settings
        if settings.data is None:
            return own(settings.demonstrations, self.seed)
        return others(
            Path(settings.data),
            settings.demonstrations,
            lambda: World(self.lab.suite, self.tasks),
            self.lab.log,
        )

    def _batches(self, count: int) -> list[list[int]]:
        """All epochs' batches, each epoch in an order of its own."""
        out: list[list[int]] = []
        for epoch in range(self.settings.epochs):
            order = list(range(count))
            random.Random(stable_seed(self.seed, "order", epoch)).shuffle(order)
            out += [
                order[first : first + self.settings.batch]
                for first in range(0, count, self.settings.batch)
            ]
        return out

    def _step(self, optimizer: Any, batch: Sequence[Tokens]) -> dict[str, float]:
        """One optimizer step on the mean of -log p over the batch's agent tokens."""
        import torch

        from trace_bench.trainers.parts import parts
        from trace_bench.trainers.tree import build

        optimizer.zero_grad(set_to_none=True)
        every = sum(len(s.sampled) for s in batch)
        value = 0.0
        for part in parts(batch, self.trainer.batch_tokens, self.learner.room):
            share = sum(len(s.sampled) for s in part) / every
            loss = -self.learner.logprobs(build(part)).mean() * share
            torch.autograd.backward(loss)
            value += float(loss.detach())
        limit = self.trainer.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.learner.parameters, limit))
        if value != value or norm != norm:
            raise UserError("sft: the loss is not finite. Lower `method.learning_rate`.")
        optimizer.step()
        tokens = sum(len(s.ids) for s in batch)
        return {"loss": value, "grad_norm": norm, "steps": int(norm > 0), "tokens": tokens}

    def _identity(self) -> str:
        return fingerprint(
            {
                "model": Path(self.base.model).name,
                "agent": self.base.version,
                "seed": self.seed,
                "settings": dataclasses.asdict(self.settings),
                "trainer": self.trainer.trained(),
            }
        )


def tokens_of(chat: Chat, talk: Conversation) -> Tokens:
    """A conversation as tokens up to the agent's last turn; `sampled` are the agent's own."""
    import numpy as np

    from trace_bench.trainers.tree import Tokens

    messages, tools = talk
    ids: list[int] = []
    sampled: list[int] = []
    pending: list[Any] = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            pending.append(message)
            continue
        ids += chat.following(pending, True) if ids else chat.first(pending, tools)
        turn = chat.turn(messages[:place], tools, message)
        sampled += range(len(ids), len(ids) + len(turn))
        ids += turn
        pending = []
    return Tokens(
        np.array(ids, dtype=np.int64),
        np.array(sampled, dtype=np.int64),
        np.zeros(len(sampled), dtype=np.float32),
    )
