"""Supervised fine-tuning on demonstrations: a LoRA adapter without any rollout.

The idea of training on a broad collection of demonstrations (the paper's baseline from the Agent
Data Protocol). By default these are general ones of the mixture that the tiny agent knows already,
in which capabilities are lacking as often as in life; so little is to be expected of them, and a
gain of a method over this one is not a gain from demonstrations alone. The budget stays unspent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import FineTunes, Lab, Method, MethodPlan, Need, PlannedRun
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.sft.data import Conversation, World, others, own
from trace_bench.methods.tuning import HERE, PAGE, Tuning, TuningSettings
from trace_bench.play.steps import with_guidance

if TYPE_CHECKING:
    from trace_bench.policies.chat import Chat
    from trace_bench.trainers.tree import Tokens

MARK = "demonstrations from method.data, whose rollouts no budget here has paid for"


@dataclass(frozen=True)
class SftSettings(TuningSettings):
    """`method.*` of `method=sft`."""

    data: str | None = None
    """A file, or a folder of files, in one of these formats: ATIF, logs of Inspect as JSON, and the
    chat format of OpenAI or that of the Agent Data Protocol, one JSON object a line; None: the
    project's own demonstrations, drawn from the mixture that the tiny agent was trained on."""
    demonstrations: int = field(default=1024, metadata={"low": 1})
    """How many of them are used, the first ones that fit."""


class Sft(Method):
    """A LoRA adapter fine-tuned on demonstrations; no rollout is spent.

    The training tasks are only looked at to see whether demonstrations of others (`method.data`)
    fit the suite."""

    def __init__(self, settings: SftSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with the adapter `sft`, used for every task; it goes on from the adapter
        that the base agent has, if any, and demonstrations are read under its prompt."""

        def sequences(context: int) -> list[Tokens]:
            return demonstrations(base, tasks, self.settings, seed, context, lab)

        seed = stable_seed(lab.seed, "sft")
        return Tuning("sft", base, lab, self.settings, {}, sequences).run()

    def plan(self, run: PlannedRun) -> MethodPlan:
        need = Need("trainer", FineTunes, PAGE, HERE)
        marks = () if self.settings.data is None else (MARK,)
        return MethodPlan(
            needs=(need,),
            adapters=1,
            trains=True,
            demonstrations=self.settings.demonstrations,
            marks=marks,
        )


def demonstrations(
    base: AgentSpec,
    tasks: Sequence[Task],
    settings: SftSettings,
    seed: int,
    context: int,
    lab: Lab,
) -> list[Tokens]:
    """The demonstrations as tokens, under the base agent's prompt. Those longer than `context`
    tokens are left out, and counted in the log. Raises UserError if none is left."""
    from trace_bench.policies.chat import Chat
    from trace_bench.policies.local import load_tokenizer

    chat = Chat(load_tokenizer(base.model), base.model)
    every = [
        tokens_of(chat, (with_guidance(messages, base.prompt), tools))
        for messages, tools in _conversations(tasks, settings, seed, lab)
    ]
    fitting = [s for s in every if len(s.ids) <= context]
    if len(fitting) < len(every):
        lab.log(
            f"sft: {len(every) - len(fitting)} of {len(every)} demonstrations are longer than "
            f"the context of {context} tokens and left out"
        )
    if not fitting:
        raise UserError("method=sft has no demonstration that fits. Change `method.data`.")
    return fitting


def _conversations(
    tasks: Sequence[Task], settings: SftSettings, seed: int, lab: Lab
) -> Iterable[Conversation]:
    if settings.data is None:
        return own(settings.demonstrations, seed)
    return others(
        Path(settings.data),
        settings.demonstrations,
        lambda: World(lab.suite, tasks),
        lab.log,
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
