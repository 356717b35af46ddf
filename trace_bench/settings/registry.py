"""Parts by name: suites, methods, trainers, policies, trackers and agent models.

A name is looked up in this order:

    1. the setting `factory` of the group: "module:attribute", or an object given in Python
    2. the package's own names (`OWN`)
    3. entry points of installed packages, in the groups `trace_bench.suites`, `.methods`,
       `.trainers`, `.algorithms`, `.policies`, `.trackers` and `.models`

All parts are treated alike from here on: a part's settings are the parameters of its factory
(`core.factory`), and a part from outside the package has an `Origin`, which belongs to the run's
identity.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.factory import Factory, load
from trace_bench.core.protocols import Method, Policy, RunContext, Suite, Tracker, Trainer
from trace_bench.core.protocols.episodes import overrides
from trace_bench.core.types import to_json
from trace_bench.settings.origin import Origin, name_of, origin_of
from trace_bench.settings.schema import PartSettings

OWN: Mapping[str, Mapping[str, str]] = {
    "env": {
        "toolsandbox/embedded": "trace_bench.envs.toolsandbox.scenarios.suite:EmbeddedSuite",
        "toolsandbox/official": "trace_bench.envs.toolsandbox_official.suite:OfficialSuite",
        **dict.fromkeys(
            ("tau2/airline", "tau2/retail", "tau2/telecom", "tau2/banking_knowledge"),
            "trace_bench.envs.tau2.suite:Tau2Suite",
        ),
        "tau2/airline+retail": "trace_bench.envs.tau2.suite:Tau2Domains",
        "recorded": "trace_bench.envs.recorded.suite:RecordedSuite",
        "babyai": "trace_bench.envs.babyai:BabyAISuite",
        "mcp": "trace_bench.envs.mcp:McpSuite",
        "openenv": "trace_bench.envs.openenv:OpenEnvSuite",
        "verifiers": "trace_bench.envs.verifiers:VerifiersSuite",
        "textarena": "trace_bench.envs.textarena:TextArenaSuite",
        **dict.fromkeys(
            ("bfcl/all", "bfcl/base", "bfcl/miss_func", "bfcl/miss_param", "bfcl/long_context"),
            "trace_bench.envs.bfcl.suite:BfclSuite",
        ),
    },
    "method": {
        "base": "trace_bench.methods.grpo:Base",
        "grpo": "trace_bench.methods.grpo:Grpo",
        "rl": "trace_bench.methods.grpo:Rl",
        "placebo": "trace_bench.methods.grpo:Grpo",
        "cm2": "trace_bench.methods.grpo:Cm2",
        "gepa": "trace_bench.methods.gepa:Gepa",
        "ace": "trace_bench.methods.memory:Ace",
        "sft": "trace_bench.methods.sft:Sft",
        "trace": "trace_bench.methods.trace:Trace",
        "joint": "trace_bench.methods.trace:Trace",
        "rft": "trace_bench.methods.rft:Rft",
        "single_capability": "trace_bench.methods.trace:Trace",
        "prompt_only": "trace_bench.methods.rft:PromptOnly",
        "untargeted": "trace_bench.methods.grpo:Untargeted",
    },
    "trainer": {
        "local": "trace_bench.trainers.local:LocalTrainer",
        "verl": "trace_bench.trainers.verl.trainer:VerlTrainer",
    },
    "trainer.algorithm": {
        "grpo": "trace_bench.trainers.algorithms:Algorithm",
        "dapo": "trace_bench.trainers.algorithms.dapo:Dapo",
        "gspo": "trace_bench.trainers.algorithms.gspo:Gspo",
        "cispo": "trace_bench.trainers.algorithms.cispo:Cispo",
        "dr_grpo": "trace_bench.trainers.algorithms.dr_grpo:DrGrpo",
        "rloo": "trace_bench.trainers.algorithms.rloo:Rloo",
        "reinforce_pp": "trace_bench.trainers.algorithms.reinforce_pp:ReinforcePlusPlus",
        "gigpo": "trace_bench.trainers.algorithms.gigpo:Gigpo",
    },
    "policy": {
        "local": "trace_bench.policies:local_policy",
        "openai": "trace_bench.policies.openai:served",
        "idle": "trace_bench.policies.scripted:IdlePolicy",
        "random": "trace_bench.policies.scripted:RandomPolicy",
        "reference": "trace_bench.policies.scripted:reference",
    },
    "tracker": {
        "jsonl": "trace_bench.runner.trackers:Silent",
        "wandb": "trace_bench.runner.trackers:WandbTracker",
    },
    "model": {
        "tiny": "trace_bench.tiny:shipped",
        "tiny_babyai": "trace_bench.tiny:shipped_babyai",
        "tiny_textarena": "trace_bench.tiny:shipped_textarena",
        "made": "trace_bench.tiny:for_world",
        "smollm2": "trace_bench.models:smollm2",
        "hf": "trace_bench.policies.hub:at",
        "served": "trace_bench.policies.hub:named",
    },
}
"""group -> name -> "module:attribute". A suite's name is `env.name/env.suite`."""

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "method": {
        "joint": {"adapters": "joint"},
        "single_capability": {"max_capabilities": 1},
        "placebo": {"reward": "drawn"},
    }
}
"""group -> name -> settings that the name stands for: two of TRACE, and GRPO."""

KINDS: Mapping[str, type] = {
    "env": Suite, "method": Method, "trainer": Trainer, "policy": Policy, "tracker": Tracker,
    "model": str,
}  # fmt: skip
ENTRY_POINTS: Mapping[str, str] = {
    **{group: f"trace_bench.{group}s" for group in KINDS},
    "env": "trace_bench.suites",
    "policy": "trace_bench.policies",
    "trainer.algorithm": "trace_bench.algorithms",
}
"""Of the groups, and of settings within a part that a name chooses (`Offered`)."""
CUSTOM = "custom"  # the name of a part that is given by `factory` alone


@dataclass(frozen=True)
class Part:
    """A chosen part with its checked settings. `origin`: None for the package's own."""

    group: str
    name: str
    factory: Factory
    options: Mapping[str, Any]
    origin: Origin | None

    @property
    def label(self) -> str:
        """Its name in tables and folders; for a custom part, its factory."""
        return self.factory.text if self.name == CUSTOM else self.name

    @property
    def declared(self) -> Any:
        """Its class, or for a function that does not name one, that of its kind."""
        cls, kind = self.factory.declared, KINDS[self.group]
        return cls if isinstance(cls, type) and issubclass(cls, kind) else kind

    def may(self, ability: Callable[..., Any]) -> bool:
        """Whether its class overrides this method of its kind, or is not known."""
        return self.declared is KINDS[self.group] or overrides(self.declared, ability)

    def make(self, run: RunContext) -> Any:
        """Builds the part. Raises UserError, also if it lacks members of the group's protocol."""
        kind = KINDS[self.group]
        part = self.factory.make(self.options, run, self.group, object if kind is str else kind)
        if kind is not str:
            return part
        if not isinstance(part, str | Path) or not str(part):
            raise UserError(
                f"{self.factory.where}={self.factory.text} gives {part!r}; needed: the folder of "
                f"the model's weights, or a hub name. Change `{self.factory.where}`."
            )
        return str(part)


def find(group: str, chosen: PartSettings, variant: str | None = None) -> Part:
    """The part of a group's settings. `variant`: second half of a suite's name. UserError."""
    factory, distribution = _factory(group, chosen, variant)
    return factory.asked(lambda: _part(group, chosen, factory, distribution))


def _part(
    group: str, chosen: PartSettings, factory: Factory, distribution: metadata.Distribution | None
) -> Part:
    if factory.finished and KINDS[group] is not str:
        factory.check(factory.target, KINDS[group])
    there = factory.parameters()  # a null for a setting that this part lacks counts as not given
    options = {k: v for k, v in chosen.options.items() if v is not None or k in there}
    options = factory.settings(_preset(group, chosen, options), group)
    ours = factory.text in OWN[group].values() and (factory.importable or not factory.finished)
    origin = None if ours else origin_of(factory, distribution)
    return Part(group, chosen.name, factory, MappingProxyType(options), origin)


def _preset(group: str, chosen: PartSettings, options: dict[str, Any]) -> dict[str, Any]:
    """The given settings and those that the name stands for, of which no other is allowed."""
    fixed = {} if chosen.factory is not None else PRESETS.get(group, {}).get(chosen.name, {})
    for key, value in fixed.items():
        if options.get(key, value) != value:
            raise UserError(
                f"{group}.{key}={options[key]} is not allowed with {group}={chosen.name}, which "
                f"stands for {group}.{key}={value}. Change `{group}` or leave `{group}.{key}` out."
            )
    return {**options, **fixed}


class Offered(Mapping[str, type]):
    """The classes that a setting such as `trainer.algorithm` lets a name choose: the package's own,
    those of installed packages, any module:attribute. Each is looked up when it is asked for."""

    def __init__(self, setting: str, kind: type) -> None:
        self.setting, self.kind = setting, kind

    def __iter__(self) -> Iterator[str]:
        return iter(names(self.setting))

    def __len__(self) -> int:
        return len(names(self.setting))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (":" in name or name in names(self.setting))

    def __getitem__(self, name: str) -> type:
        """Raises UserError for what is no class of that kind."""
        cls = self._factory(name)[0].target
        if not (isinstance(cls, type) and issubclass(cls, self.kind)):
            raise UserError(
                f"{self.setting}={name} gives {cls!r}; needed: a class that inherits "
                f"{self.kind.__name__}. Change `{self.setting}`."
            )
        return cls

    def origin(self, name: str) -> dict[str, Any]:
        """Where the code of a choice comes from, for a run's identity; empty for the package's."""
        if name in OWN[self.setting]:
            return {}
        return {"origin": to_json(origin_of(*self._factory(name)))}

    def _factory(self, name: str) -> tuple[Factory, metadata.Distribution | None]:
        return _factory(self.setting, PartSettings(name, name if ":" in name else None), None)


def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of installed packages for a group, by name."""
    return _installed(tuple(sys.path))[ENTRY_POINTS[group]]


@functools.lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> dict[str, dict[str, metadata.EntryPoint]]:
    """The entry points on the import path, by our groups. Slow: reads every package's metadata."""
    every = metadata.entry_points()
    return {ours: {e.name: e for e in every.select(group=ours)} for ours in ENTRY_POINTS.values()}


def names(group: str) -> list[str]:
    """All names in a group, the package's own first."""
    ours = dict.fromkeys(name.partition("/")[0] for name in OWN[group])
    return [*ours, *sorted(entry_points(group).keys() - ours.keys())]


def _factory(
    group: str, chosen: PartSettings, variant: str | None
) -> tuple[Factory, metadata.Distribution | None]:
    where = f"{group}.factory" if group in KINDS else group
    if chosen.factory is not None:
        if isinstance(chosen.factory, str):
            return load(chosen.factory, where), None
        return Factory(chosen.factory, where, name_of(chosen.factory), importable=False), None
    name = chosen.name if variant is None else f"{chosen.name}/{variant}"
    if name in OWN[group]:
        return load(OWN[group][name], group), None
    if (point := entry_points(group).get(chosen.name)) is not None:
        return load(point.value.partition("[")[0].replace(" ", ""), group), point.dist
    if chosen.name == CUSTOM:
        raise UserError(
            f"{group}=custom needs {where}: module:attribute of your own {KINDS[group].__name__}, "
            f"such as {where}=my_module:MyClass."
        )
    variants = [n.partition("/")[2] for n in OWN[group] if n.startswith(f"{chosen.name}/")]
    if variants:
        raise unknown(f"suite of {chosen.name}", variant, variants, f"{group}.suite")
    offered = [*names(group), f"custom (with {where}=module:attribute)"]
    raise unknown(group, chosen.name, offered, group)
