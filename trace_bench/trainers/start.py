"""What training begins with: the base model, or the one adapter that the agent already has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.engine.lora import read_adapter, read_weights
from trace_bench.trainers.settings import Recipe

if TYPE_CHECKING:
    from trace_bench.trainers.adapters import LoraLinear, Pair


def start_of(agent: AgentSpec) -> AdapterRef | None:
    """The adapter that training continues, and that the new one replaces: the agent's only one;
    None if it has none. Raises UserError for an agent that chooses among adapters: no single
    adapter stands for what it does."""
    if agent.router is None and len(agent.adapters) < 2:
        return agent.adapters[0] if agent.adapters else None
    names = ", ".join(a.name for a in agent.adapters) or "none"
    raise UserError(
        f"training continues one adapter, and the agent {agent.version!r} routes between several "
        f"(adapters: {names}). Change `agent` to a run that trained one adapter (such as grpo, "
        "sft, or trace with method.adapters=joint), or `method` to one that changes the prompt "
        "alone."
    )


def check_start(start: AdapterRef, recipe: Recipe) -> None:
    """Raises UserError for an adapter that the recipe's adapters cannot hold."""
    weights = read_weights(start)
    ranks = {value.shape[0] for name, value in weights.items() if ".lora_A" in name}
    if (most := max(ranks, default=0)) > recipe.rank:
        raise UserError(
            f"the adapter {start.name!r} that training begins with has rank {most}, more than "
            f"trainer.rank={recipe.rank}. Set `trainer.rank` to at least {most}."
        )
    modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in weights}
    if missing := sorted(modules - set(recipe.target_modules)):
        raise UserError(
            f"the adapter {start.name!r} that training begins with changes {', '.join(missing)}, "
            f"which trainer.target_modules={list(recipe.target_modules)} lacks. Add them to "
            "`trainer.target_modules`."
        )


def begin_with(
    layers: Mapping[str, LoraLinear] | Mapping[str, Pair], start: AdapterRef, recipe: Recipe
) -> None:
    """Puts an adapter's weights into freshly drawn layers, which then compute what it computes. If
    it has a smaller rank, or no weights for a layer, the rest stays as drawn, with zeros in B.
    Raises UserError for one that does not fit."""
    import torch

    check_start(start, recipe)
    shapes = {name: (x.b.shape[0], x.a.shape[1]) for name, x in layers.items()}
    scale = recipe.alpha / recipe.rank
    with torch.no_grad():
        for name, (a, scaled) in read_adapter(start, shapes).weights.items():
            own, layer = a.shape[0], layers[name]
            layer.a[:own] = a.to(layer.a)
            layer.b[:, :own] = (scaled / scale).to(layer.b)
