"""All tools by name, and as an agent sees them: ToolSandbox's eight augmentations.

The four scramblings come on top of three distractors, as in the benchmark.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, get_args

from trace_bench.core.types import Tool
from trace_bench.envs.toolsandbox.tools import records, search, utilities
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec

Augmentation = Literal[
    "none", "distractors_3", "distractors_10", "all_tools", "scrambled_names",
    "scrambled_descriptions", "scrambled_arg_descriptions", "scrambled_arg_types",
]  # fmt: skip
AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)
# Number of distractors, None for all tools; 3 beside every scrambling.
_DISTRACTORS: Mapping[str, int | None] = dict.fromkeys(AUGMENTATIONS, 3) | {
    "none": 0,
    "distractors_10": 10,
    "all_tools": None,
}
_DROPPED = {"scrambled_arg_descriptions": "description", "scrambled_arg_types": "type"}


def offer(
    tools: Sequence[str], augmentation: str, seed: int, withheld: Sequence[str] = ()
) -> tuple[tuple[Tool, ...], Mapping[str, str]]:
    """The schemas to show and the map from shown names to tools. `withheld` tools are never among
    the distractors: the scenario is about their absence. The schemas are shared between
    episodes: read them, never change them.

    Without distractors the tools keep their order; with distractors all are shuffled by `seed`, so
    that the order does not tell them apart."""
    if _DISTRACTORS[augmentation] == 0:
        return _offer(tuple(tools), augmentation, 0, ())  # the same for every seed
    return _offer(tuple(tools), augmentation, seed, tuple(withheld))


@lru_cache(maxsize=1024)
def _offer(
    tools: tuple[str, ...], augmentation: str, seed: int, withheld: tuple[str, ...]
) -> tuple[tuple[Tool, ...], Mapping[str, str]]:
    names = list(tools)
    extra = _DISTRACTORS[augmentation]
    if extra != 0:
        names += distractors(tools, extra, withheld)
        random.Random(seed).shuffle(names)
    aliases = {
        name: _shown_name(name) if augmentation == "scrambled_names" else name for name in names
    }
    schemas = tuple(
        _scramble(catalog()[name].schema, augmentation, aliases[name]) for name in names
    )
    return schemas, MappingProxyType({alias: name for name, alias in aliases.items()})


def distractors(tools: Sequence[str], count: int | None, withheld: Sequence[str] = ()) -> list[str]:
    """Tools that the task does not need: first those of the same modules, then by similar names.
    `count` None: all that are left."""
    from rapidfuzz import fuzz

    modules = {catalog()[name].module for name in tools}

    def rank(name: str) -> tuple[bool, float]:
        likeness = max((fuzz.ratio(name, other) for other in tools), default=0.0)
        return (catalog()[name].module not in modules, -likeness)

    rest = [name for name in catalog() if name not in tools and name not in withheld]
    return sorted(rest, key=rank)[:count]


def _shown_name(name: str) -> str:
    """Module and number of the tool in it: "setting_8"."""
    module = catalog()[name].module
    siblings = [other for other, spec in catalog().items() if spec.module == module]
    return f"{module}_{siblings.index(name)}"


def _scramble(schema: Tool, augmentation: str, shown_name: str) -> Tool:
    function = schema["function"]
    if augmentation == "scrambled_names":
        return {**schema, "function": {**function, "name": shown_name}}
    if augmentation == "scrambled_descriptions":
        return {**schema, "function": {**function, "description": ""}}
    if augmentation not in _DROPPED:
        return schema
    parameters, dropped = function["parameters"], _DROPPED[augmentation]
    left = {
        name: {key: value for key, value in about.items() if key != dropped}
        for name, about in parameters["properties"].items()
    }
    changed = {**parameters, "properties": left}
    return {**schema, "function": {**function, "parameters": changed}}


@lru_cache(maxsize=1)
def catalog() -> Mapping[str, ToolSpec]:
    """The agent's 33 tools, read-only, in a fixed order."""
    specs = (*records.TOOLS, *utilities.TOOLS, *search.TOOLS)
    return MappingProxyType({spec.name: spec for spec in specs})
