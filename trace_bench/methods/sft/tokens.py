"""The demonstrations of `method=sft` as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.sft.data import Conversation, World, others, own
from trace_bench.methods.sft.settings import SftSettings
from trace_bench.play.steps import with_guidance

if TYPE_CHECKING:
    from trace_bench.policies.chat import Chat
    from trace_bench.trainers.tree import Tokens


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
