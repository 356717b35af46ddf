"""Settings that go with a model's size. The defaults are those of a model of a million parameters;
what is far from a larger model's is said before the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trace_bench.settings.identity import model_path, served_name, weights_count
from trace_bench.settings.registry import Part
from trace_bench.settings.schema import Settings

FAR = 10.0  # times
_SIZE = re.compile(r"(?i)(?<![\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])")  # 8B, 8x7b, 0.5B


@dataclass(frozen=True)
class Recipe:
    """For models of up to so many `billions` of parameters: the learning rate of LoRA, the tokens
    of a turn, and where they come from."""

    billions: float
    learning_rate: float
    max_tokens: int
    source: str


RECIPES = (
    Recipe(0.05, 3e-3, 96, "the search on development tasks with the tiny agent"),
    Recipe(1.0, 1e-4, 256, "SmolLM2-135M, results/smollm2.md"),
    Recipe(float("inf"), 1e-5, 2048, "TRACE's training script for 30B"),
)


def billions_of(settings: Settings, parts: Mapping[str, Part]) -> float | None:
    """The base model's parameters, from its weights or else from its name; None if neither says."""
    if parts["policy"].declared.scripted:
        return None
    place = model_path(settings, parts)
    if (count := weights_count(place)) is not None:
        return count / 1e9
    for name in (served_name(settings.model), place):
        if found := _SIZE.search(name.rpartition("/")[2]):
            return int(found[1] or 1) * float(found[2])
    return None


def far_off(settings: Settings, parts: Mapping[str, Part], trains: bool) -> list[str]:
    """A line for each setting that is far from what suits a model of this size."""
    billions = billions_of(settings, parts)
    if billions is None:
        return []
    recipe = next(r for r in RECIPES if billions <= r.billions)
    given: list[tuple[str, Any, float]] = [
        ("policy.max_tokens", settings.policy.max_tokens, recipe.max_tokens)
    ]
    if trains and "learning_rate" in parts["trainer"].options:
        rate = parts["trainer"].options["learning_rate"]
        given.append(("trainer.learning_rate", rate, recipe.learning_rate))
    return [
        f"{name}={value:g} is far from what suits a model of {billions:.3g}B parameters, "
        f"{usual:g} ({recipe.source})"
        for name, value, usual in given
        if value > 0 and not usual / FAR < value < usual * FAR
    ]
