"""The choices of every group, and the settings of each with their defaults, which stand in the
settings' dataclasses and in the parameters of the parts' factories. A file in conf/ adds a choice,
or holds what differs from those defaults."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from trace_bench.core.checked import Parameter, choices, parameters
from trace_bench.core.errors import UserError
from trace_bench.core.factory import Factory, load
from trace_bench.core.roles import LLMSettings
from trace_bench.core.store import plain_file
from trace_bench.core.types import to_json
from trace_bench.settings.registry import CUSTOM, OWN, PRESETS, names
from trace_bench.settings.schema import PARTS, SandboxSettings, Settings

GROUPS: Mapping[str, type] = {**PARTS, "sandbox": SandboxSettings, "llm": LLMSettings}
"""The groups and the dataclasses of their settings; of a part, those that all parts have."""
PROVIDER = "trace_bench"


def conf_dir() -> Path:
    """The folder of Hydra files: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "conf", package.parent / "conf"):
        if (place / "config.yaml").is_file():
            return place
    raise UserError(
        f"the settings files are missing: no conf/config.yaml in {package} or {package.parent}. "
        "Install trace_bench again."
    )


def files(group: str) -> dict[str, Path]:
    return {p.stem: p for p in (conf_dir() / group).glob("*.yaml")}


def check_folder(folder: Path) -> None:
    """Raises UserError for a folder of `--config-dir` that is none or has no plain files."""
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder} is not a folder.")
    for path in folder.glob("**/*.yaml"):
        with plain_file(path, "Change `--config-dir`."):
            pass


def offered(group: str) -> list[str]:
    """The choices of a group that need no file."""
    if group in PARTS:
        return [*names(group), CUSTOM]
    if group == "sandbox":
        return list(get_args(parameters(SandboxSettings)["name"].hint))
    return ["programs"]


def of(group: str) -> list[str]:
    return sorted({*files(group), *(offered(group) if group in GROUPS else ())})


def parameters_of(group: str, factories: Sequence[Factory]) -> dict[str, Parameter]:
    """The settings of a part (of all its suites), then those of its group."""
    out: dict[str, Parameter] = {}
    for part in reversed(factories):
        out |= part.parameters()
    return {**out, **parameters(GROUPS[group])}


def parts(group: str, name: str) -> list[Factory]:
    """The package's own parts of a name: several where it has several suites."""
    texts = [t for n, t in OWN.get(group, {}).items() if n.partition("/")[0] == name]
    return [load(text, group) for text in dict.fromkeys(texts)]


def defaults(group: str, name: str, named: bool = True) -> dict[str, Any]:
    """The settings of a choice as plain data. What a name chooses is the name alone, and only a
    part of your own has `factory` and `options`. `named`: with the choice's own name."""
    suites = [n.partition("/")[2] or None for n in OWN.get(group, {}) if n.startswith(f"{name}/")]
    first = {"suite": suites[0]} if suites else {}
    apart = () if group in PARTS and name == CUSTOM else ("factory", "options")
    declared = parameters_of(group, parts(group, name))
    data = {key: plain(p) for key, p in declared.items() if key not in apart}
    data |= PRESETS.get(group, {}).get(name, {})
    return data | first | ({"name": name} if named and "name" in data else {})


def plain(parameter: Parameter) -> Any:
    """A setting's default as plain data; null where the model or the policy
    decides."""
    if parameter.required:
        return "???"  # Hydra's word for a setting that must be given
    if parameter.metadata.keys() & {"by_model", "at_servers"}:
        return None
    value = to_json(parameter.default)
    return {"name": value["name"]} if value and choices(parameter.hint) else value


@functools.cache
def nested(group: str) -> frozenset[str]:
    """The settings in a group whose name chooses further ones: method.route=linear."""
    return frozenset(name for name, p in _own(group) if choices(p.hint))


def open_ended(group: str) -> frozenset[str]:
    """Those that take keys of any name: env.args.difficulty=2, or 'env.args={difficulty: 2}'."""
    return frozenset(name for name, p in _own(group) if get_origin(p.hint) is Mapping)


def _own(group: str) -> Iterator[tuple[str, Parameter]]:
    for text in OWN.get(group, {}).values():
        yield from load(text, group).parameters().items()


def fill() -> None:
    """Offers Hydra every choice that has no file, and all of them as `part/NAME`, on which the file
    of that name rests, which says its own name. Filling its store twice changes nothing."""
    from hydra.core.config_store import ConfigNode, ConfigStore
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver(
        "joined", lambda v: v if isinstance(v, str) else "+".join(map(str, v)), replace=True
    )

    class Choice(ConfigNode):
        """Only when Hydra copies a chosen node is the part imported that has the settings."""

        def __init__(self, group: str, choice: str, named: bool) -> None:
            super().__init__(f"{choice}.yaml", OmegaConf.create(), group, group, PROVIDER)
            self.key, self.named = (group, choice), named

        def __copy__(self) -> ConfigNode:
            node = OmegaConf.create(defaults(*self.key, named=self.named))
            return ConfigNode(self.name, node, self.group, self.package, self.provider)

    store = ConfigStore.instance()
    of_the_run = {n: plain(p) for n, p in parameters(Settings).items() if n not in GROUPS}
    store.store(name="settings", node=of_the_run, provider=PROVIDER)
    for group in GROUPS:
        taken, there = files(group), offered(group)
        store.repo[group] = {
            **{f"{c}.yaml": Choice(group, c, named=True) for c in there if c not in taken},
            "part": {f"{c}.yaml": Choice(group, c, named=False) for c in there},
        }
