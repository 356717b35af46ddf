"""Fine-tuning of one adapter on tokens, for the methods that train without a reward. After every
step what is needed to go on is on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trace_bench.core.checked import identifying
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Need, Trainer
from trace_bench.core.store import fingerprint, stable_seed
from trace_bench.core.text import file_name
from trace_bench.core.types import AgentSpec, NotNegative, Positive
from trace_bench.trainers.algorithms import GRADIENT
from trace_bench.trainers.course import epoch
from trace_bench.trainers.job import in_groups, start_of
from trace_bench.trainers.loop import Record, Training, check_finite, stepped, with_version

if TYPE_CHECKING:
    import torch

    from trace_bench.trainers.model import Learner, State
    from trace_bench.trainers.tree import Tokens

HERE = Need(
    "trainer", Trainer.learner, "docs/trainers.md",
    "This method fine-tunes in this process. Set `trainer` to local.",
)  # fmt: skip


@dataclass(frozen=True)
class TuningSettings:
    """The steps of a fine-tuning. The adapter's rank and layers are the trainer's."""

    epochs: Positive = 1
    """Passes over the conversations."""
    batch: Positive = 32
    """Conversations in one optimizer step."""
    learning_rate: NotNegative = 0.001
    """At the first step; it falls linearly to 0."""


class Tuning(Training["Sequence[Tokens]"]):
    """Fine-tuning of one adapter, `<name>@<steps>`; an iteration is an optimizer step. `tokenize`
    gives the conversations as tokens when they are needed: it is told how many the model takes."""

    state: State
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        name: str,
        base: AgentSpec,
        lab: Lab,
        settings: TuningSettings,
        tokenize: Callable[[int], Sequence[Tokens]],
    ) -> None:
        trainer = lab.trainer
        self.name, self.base, self.lab, self.settings = name, base, lab, settings
        self.tokenize = tokenize
        self.learner: Learner = trainer.learner(base.model)
        rate = settings.learning_rate
        self.trainer = dataclasses.replace(trainer.settings, learning_rate=rate)
        self.seed = stable_seed(lab.seed, name)
        self.folder = lab.folder / "adapters" / file_name(name)

    def play(self, iteration: int) -> Sequence[Tokens]:
        """Nothing is played: the conversations of the step."""
        return [self.sequences[i] for i in self.batches[iteration]]

    def learn(self, iteration: int, played: Sequence[Tokens]) -> Record:
        """One optimizer step on the mean of -log p over the agent's tokens."""
        import torch

        from trace_bench.trainers.adapters import largest_update
        from trace_bench.trainers.tree import build, parts

        self.lab.step(self.name, iteration, len(self.batches))
        for options in self.optimizer.param_groups:
            options["lr"] = self.settings.learning_rate * (1 - iteration / len(self.batches))
        self.optimizer.zero_grad(set_to_none=True)
        every = sum(len(s.sampled) for s in played)
        value = 0.0
        for part in parts(played, self.trainer.batch_tokens, self.learner.memory_budget):
            share = sum(len(s.sampled) for s in part) / every
            loss = -self.learner.logprobs(build(part)).mean() * share
            torch.autograd.backward(loss)
            value += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self.learner.parameters, GRADIENT))
        if finite := math.isfinite(value + norm):
            self.optimizer.step()
        largest = largest_update(self.learner.layers)
        where = f"{self.name}, step {iteration + 1}"
        check_finite(where, norm if finite else math.nan, largest, "method.learning_rate")
        return {
            "loss": value,
            "grad_norm": norm,
            "update_norm": largest[0],
            "steps": int(norm > 0),
            "tokens": sum(len(s.ids) for s in played),
        }

    def goes_on(self, records: Sequence[Record]) -> bool:
        return not self.state.finished and len(records) < len(self.batches)

    def save(self, records: Sequence[Record]) -> None:
        from trace_bench.trainers.adapters import write_adapter

        self.state.finished = len(records) == len(self.batches)
        if self.state.finished:
            version, how = self.folder / f"{len(records):04d}", vars(self.trainer)
            write_adapter(version, self.learner.layers, how, self.base.model)
        self.state.save(self.folder, self.learner, self.optimizer)

    def publish(self, iteration: int, record: Record) -> None:
        self.lab.metric(phase="fine-tuning", step=iteration, **record)

    def load(self) -> list[Record]:
        from trace_bench.trainers.model import State

        self.state = State.load(self.folder, self.identity(), self.lab.log)
        return self.state.records

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Raises UserError if the steps before a stop were on other conversations."""
        from trace_bench.trainers.model import restore

        digest = hashlib.sha256()
        for each in self.sequences:
            digest.update(each.ids.tobytes() + each.sampled.tobytes())
        data = digest.hexdigest()[:16]
        if self.state.data not in ("", data):
            raise UserError(
                f"{self.folder} was begun with other conversations than there are now. Put the "
                "files of `method.data` back as they were, or change the setting `run_dir`."
            )
        self.state.data = data
        start = start_of(self.base)
        self.optimizer = restore(self.state, self.learner, self.trainer, self.seed, start)
        yield

    def result(self, records: Sequence[Record]) -> AgentSpec:
        """The agent with the adapter; the base agent if no step had a gradient."""
        tokens = sum(record["tokens"] for record in records)
        self.lab.log(
            f"{self.name}: {len(records)} steps on {tokens:,} tokens, without a rollout; "
            f"{self.lab.budget_left()} rollouts are left"
        )
        if not stepped(records):
            self.lab.log(f"{self.name}: no step had a gradient, so there is no adapter")
            return self.base
        return with_version(self.base, self.name, self.folder / f"{len(records):04d}")

    @cached_property
    def sequences(self) -> Sequence[Tokens]:
        return self.tokenize(self.learner.context)

    @cached_property
    def batches(self) -> list[Sequence[int]]:
        """Those of all epochs, each in an order of its own."""
        count = len(self.sequences)
        orders = (epoch(count, self.seed, n) for n in range(self.settings.epochs))
        return [batch for order in orders for batch in in_groups(order, self.settings.batch)]

    def identity(self) -> str:
        return fingerprint(
            {
                "model": Path(self.base.model).name,
                "agent": self.base.version,
                "seed": self.seed,
                "settings": dataclasses.asdict(self.settings),
                "trainer": identifying(self.trainer),
            }
        )
