"""Fine-tuning of one adapter on tokens, for the methods that train without a reward: optimizer
steps, the adapter on disk. After every step what is needed to go on is on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Need, Trainer
from trace_bench.core.store import fingerprint, stable_seed
from trace_bench.core.text import file_name
from trace_bench.core.types import AgentSpec
from trace_bench.trainers.course import epoch, in_groups
from trace_bench.trainers.record import check_finite, start_of, stepped, with_version

if TYPE_CHECKING:
    from trace_bench.trainers.model import Learner
    from trace_bench.trainers.tree import Tokens
    from trace_bench.trainers.update import State

HERE = Need(
    "trainer",
    Trainer.learner,
    "docs/trainers.md",
    "This method fine-tunes in this process. Set `trainer` to local.",
)


@dataclass(frozen=True)
class TuningSettings:
    """The steps of a fine-tuning. The adapter's rank and layers are the trainer's."""

    epochs: int = field(default=1, metadata=number(1))
    """Passes over the conversations."""
    batch: int = field(default=32, metadata=number(1))
    """Conversations in one optimizer step."""
    learning_rate: float = field(default=0.001, metadata=number(0))
    """At the first step; it falls linearly to 0."""


class Tuning:
    """One adapter, `<name>@<steps>`. `given`: what the conversations follow from, for the job's
    identity. `sequences` gives them as tokens when they are needed, `batch` of them a step."""

    def __init__(
        self,
        name: str,
        base: AgentSpec,
        lab: Lab,
        settings: TuningSettings,
        given: Mapping[str, Any],
        sequences: Callable[[int], Sequence[Tokens]],
    ) -> None:
        trainer = lab.trainer
        if not trainer.has(Trainer.learner):
            raise UserError("This method fine-tunes in this process. Set `trainer` to local.")
        self.name, self.base, self.lab, self.settings = name, base, lab, settings
        self.given, self.sequences = given, sequences
        self.learner: Learner = trainer.learner(base.model)
        rate = settings.learning_rate
        self.trainer = dataclasses.replace(trainer.settings, learning_rate=rate)
        self.seed = stable_seed(lab.seed, name)
        self.folder = lab.folder / "adapters" / file_name(name)
        self.where = name

    def run(self) -> AgentSpec:
        """The agent with the adapter; the base agent if no step had a gradient."""
        from trace_bench.trainers.adapters import write_adapter
        from trace_bench.trainers.update import State, restore

        state = State.load(self.folder, self._identity(), self.lab.log)
        for step, record in enumerate(state.records):  # taken before the program was stopped
            self.lab.metric(phase="fine-tuning", step=step, **record)
        if not state.finished:
            sequences = self.sequences(self.learner.context)
            self._check_same(state, sequences)
            start = start_of(self.base)
            optimizer = restore(state, self.learner, self.trainer, self.seed, start)
            batches = self._batches(len(sequences))
            for step in range(state.iteration, len(batches)):
                self.lab.step(self.name, step, len(batches))
                for group in optimizer.param_groups:
                    group["lr"] = self.settings.learning_rate * (1 - step / len(batches))
                self.where = f"{self.name}, step {step + 1}"
                state.records.append(self._step(optimizer, [sequences[i] for i in batches[step]]))
                state.iteration = step + 1
                state.finished = state.iteration == len(batches)
                if state.finished:
                    version, how = self.folder / f"{state.iteration:04d}", vars(self.trainer)
                    write_adapter(version, self.learner.layers, how, self.base.model)
                state.save(self.folder, self.learner, optimizer)
                self.lab.metric(phase="fine-tuning", step=step, **state.records[step])
        tokens = sum(r["tokens"] for r in state.records)
        self.lab.log(
            f"{self.name}: {state.iteration} steps on {tokens:,} tokens, without a rollout; "
            f"{self.lab.budget_left()} rollouts are left"
        )
        if not stepped(state.records):
            self.lab.log(f"{self.name}: no step had a gradient, so there is no adapter")
            return self.base
        return with_version(self.base, self.name, self.folder / f"{state.iteration:04d}")

    def _check_same(self, state: State, sequences: Sequence[Tokens]) -> None:
        """Raises UserError if the steps before a stop were on other sequences."""
        digest = hashlib.sha256()
        for each in sequences:
            digest.update(each.ids.tobytes() + each.sampled.tobytes())
        shown = digest.hexdigest()[:16]
        if state.shown not in ("", shown):
            raise UserError(
                f"{self.folder} was begun with other conversations than there are now. Put the "
                "files of `method.data` back as they were, or change the setting `run_dir`."
            )
        state.shown = shown

    def _batches(self, count: int) -> list[Sequence[int]]:
        """All epochs' batches, each epoch in an order of its own."""
        orders = (epoch(count, self.seed, n) for n in range(self.settings.epochs))
        return [batch for order in orders for batch in in_groups(order, self.settings.batch)]

    def _step(self, optimizer: Any, batch: Sequence[Tokens]) -> dict[str, float]:
        """One optimizer step on the mean of -log p over the batch's agent tokens."""
        import torch

        from trace_bench.trainers.adapters import largest_update
        from trace_bench.trainers.tree import build, parts

        optimizer.zero_grad(set_to_none=True)
        every = sum(len(s.sampled) for s in batch)
        value = 0.0
        for part in parts(batch, self.trainer.batch_tokens, self.learner.memory_budget):
            share = sum(len(s.sampled) for s in part) / every
            loss = -self.learner.logprobs(build(part)).mean() * share
            torch.autograd.backward(loss)
            value += float(loss.detach())
        limit = self.trainer.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.learner.parameters, limit))
        if finite := math.isfinite(value + norm):
            optimizer.step()
        largest = largest_update(self.learner.layers)
        check_finite(self.where, norm if finite else math.nan, largest, "method.learning_rate")
        tokens = sum(len(s.ids) for s in batch)
        found = {"loss": value, "grad_norm": norm, "update_norm": largest[0]}
        return {**found, "steps": int(norm > 0), "tokens": tokens}

    def _identity(self) -> str:
        return fingerprint(
            {
                "model": Path(self.base.model).name,
                "agent": self.base.version,
                "seed": self.seed,
                "settings": dataclasses.asdict(self.settings),
                "given": self.given,
                "trainer": self.trainer.trained(),
            }
        )
