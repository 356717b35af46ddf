"""The settings that go with a model: those that are null in what was composed come from the first
recipe for its size and family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_if_there
from trace_bench.settings.identity import model_path, parts_of, served_name, weights_count
from trace_bench.settings.registry import Part, find
from trace_bench.settings.schema import Settings, parse

_SIZE = re.compile(r"(?i)(?<![\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])")  # 8B, 8x7b, 0.5B


@dataclass(frozen=True)
class ModelRecipe:
    """For models of up to so many `billions` of parameters whose name has `family` in it. None: the
    setting's own default, which suits a model of a million parameters."""

    billions: float
    family: str
    learning_rate: float | None = None
    max_tokens: int | None = None
    context: int | None = None
    thinking: bool | None = None

    @property
    def settings(self) -> dict[tuple[str, str], Any]:
        return {
            ("trainer", "learning_rate"): self.learning_rate,
            **{("policy", n): vars(self)[n] for n in ("max_tokens", "context", "thinking")},
        }


# By TRACE's training script for Qwen3-30B-A3B, and its paper.
_LARGE = ModelRecipe(float("inf"), "", 1e-5, 2048, 32000)
RECIPES = (
    ModelRecipe(0.05, ""),  # by the search on development tasks with the tiny agent
    ModelRecipe(1.0, "", 1e-4),  # SmolLM2-135M, results/smollm2
    # Qwen3's later models either always think or never do, and have no switch.
    replace(_LARGE, family=r"qwen3-.*(2507|coder|next)"),
    # The script's agent does not think: its turns have no room for it.
    replace(_LARGE, family=r"qwen3([-_.]|$)", thinking=False),
    _LARGE,
)
"""The first that fits holds."""


def settled(data: Mapping[str, Any]) -> Settings:
    """Checked settings; null becomes what suits the model or the policy. Raises UserError."""
    left = [
        (group, key)
        for group, key in RECIPES[0].settings
        if isinstance(data.get(group), Mapping) and data[group].get(key, 0) is None
    ]
    rest = {
        group: {k: v for k, v in data[group].items() if (group, k) not in left}
        for group in dict.fromkeys(group for group, _ in left)
    }
    settings = _for_policy(parse({**data, **rest}))
    parts = parts_of(settings)
    try:  # as a dry run asks: what is composed makes no model
        recipe = recipe_of(replace(settings, dry_run=True), parts) if left else None
    except UserError:  # a model that is not there is refused by what needs it
        recipe = None
    usual = recipe.settings if recipe else {}
    chosen: dict[str, dict[str, Any]] = {"policy": {}, "trainer": {}}
    for group, key in left:
        declared = vars(settings.policy) if group == "policy" else parts[group].options
        if key in declared:
            value = usual.get((group, key))
            chosen[group][key] = declared[key] if value is None else value
    policy = replace(settings.policy, **chosen["policy"])
    options = {**settings.trainer.options, **chosen["trainer"]}
    settings = replace(settings, policy=policy, trainer=replace(settings.trainer, options=options))
    parts_of(settings)
    return settings


def _for_policy(settings: Settings) -> Settings:
    """With the method's settings that go with a policy in the place of nulls: what is the default
    at servers, or the setting's own default."""
    method = settings.method
    left = {key: value for key, value in method.options.items() if value is not None}
    takes = find("method", replace(method, options=left)).factory.parameters()
    nulls = method.options.keys() - left.keys()
    at_servers = {
        key: takes[key].metadata["at_servers"]
        for key in nulls & takes.keys()
        if "at_servers" in takes[key].metadata
    }
    served = find("policy", settings.policy).declared.at_servers
    options = {key: value for key, value in method.options.items() if key not in at_servers}
    options |= at_servers if served else {}
    return replace(settings, method=replace(method, options=options))


def recipe_of(settings: Settings, parts: Mapping[str, Part]) -> ModelRecipe | None:
    """The base model's recipe, its context as its folder says; None for an unknown size."""
    if (billions := billions_of(settings, parts)) is None:
        return None
    place = model_path(settings, parts)
    name = f"{served_name(settings.model)} {place.rpartition('/')[2]}"
    recipe = next(
        r for r in RECIPES if billions <= r.billions and re.search(r.family, name, re.IGNORECASE)
    )
    limit = read_if_there(Path(place) / "config.json").get("max_position_embeddings")
    if recipe.context is not None and type(limit) is int and limit > 1:
        return replace(recipe, context=min(recipe.context, limit))
    return recipe


def billions_of(settings: Settings, parts: Mapping[str, Part]) -> float | None:
    """The base model's parameters, from its weights or else from its name; None if neither says."""
    if parts["policy"].declared.scripted:
        return None
    place = model_path(settings, parts)
    if (count := weights_count(place)) is not None:
        return count / 1e9
    for name in (served_name(settings.model), place):
        if size := _SIZE.search(name.rpartition("/")[2]):
            return int(size[1] or 1) * float(size[2])
    return None
