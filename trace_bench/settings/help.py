"""`--help`: what can be set, from the docstrings of the settings and the comments of files.

A field's docstring is the text below it; a parameter's stands in the docstring of its class or
function: `name`: text.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trace_bench.core import checked
from trace_bench.core.checked import Chosen, Parameter, parameters
from trace_bench.core.errors import unknown
from trace_bench.core.factory import load
from trace_bench.settings import choices
from trace_bench.settings.choices import GROUPS
from trace_bench.settings.compose import compose_plain
from trace_bench.settings.registry import CUSTOM, OWN, Offered, entry_points
from trace_bench.settings.schema import Settings

WIDTH = 79
INTRODUCTION = """\
trace_bench runs one method that trains an LLM agent within a budget of rollouts, evaluates the
agent on held-out tasks and writes everything to a run folder.

  python -m trace_bench                                 TRACE, 640 rollouts, no GPU needed
  python -m trace_bench method=grpo budget=1280 seed=1  another method, budget and seed
  python -m trace_bench experiment=smoke                a small run, to see that it works
  python -m trace_bench -m method=base,grpo seed=0,1    several runs, one after the other
  python -m trace_bench dry_run=true                    what it would do, and what is missing
  python -m trace_bench --cfg job                       print all settings and stop

The same command again resumes an interrupted run and returns at once on a finished one.
Everything is set as key=value, also what lies deeper: trainer.group_size=16."""
MORE = (
    "--help method lists a group's choices, --help method=trace the settings of one, --help budget "
    "tells more of a setting, --hydra-help the flags that Hydra adds."
)


GUIDES: Mapping[str, str] = {
    "env": "docs/environments.md; `python -m trace_bench.check env.factory=...` tests it",
    "method": "docs/methods.md",
    "policy": "docs/policies.md",
    "trainer": "docs/trainers.md",
    "trainer.algorithm": "docs/algorithms.md",
    "tracker": "docs/python.md",
    "model": "docs/models.md",
}
"""What explains how to write a part of one's own."""


@dataclass(frozen=True)
class Setting:
    """A setting: its whole name, its value by default, and what it is."""

    name: str
    value: Any
    about: str

    @property
    def text(self) -> str:
        return f"{self.name}={_word(self.value)}".removesuffix("=")


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def text(about: str | None) -> str:
    """The help. UserError for what does not exist."""
    folders = {p.name for p in choices.conf_dir().iterdir() if [*p.glob("*.yaml")]}
    groups = {name: choices.of(name) for name in sorted({*folders, *GROUPS} - {"hydra"})}
    known_of_run = {n: p for n, p in parameters(Settings).items() if n not in GROUPS}
    run = [*_entries(known_of_run, documented(Settings))]
    if about is None:
        return _overview(groups, run)
    group, _, choice = about.partition("=")
    if group in groups:
        if choice and choice not in groups[group]:
            raise unknown(group, choice, groups[group], group)
        return _choice(group, choice) if choice else _group(group, groups[group])
    if about in OWN:
        return _within(about)
    if entries := [e for e in run if e.name.partition(".")[0] == about]:
        return "\n\n".join("\n".join(_item(e.text, e.about)) for e in entries)
    raise unknown("help", about, (*groups, *(e.name for e in run if "." not in e.name)), "--help")


def documented(target: Any) -> dict[str, str]:
    about = dict(_said(inspect.getdoc(target) or ""))
    for cls in reversed(inspect.getmro(target) if inspect.isclass(target) else ()):
        if dataclasses.is_dataclass(cls):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            assert isinstance(tree, ast.ClassDef)
            for field, text in pairwise(tree.body):
                match field, text:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(said))),
                    ):
                        about[name] = " ".join(said.split())
    return about


def _said(text: str) -> Iterator[tuple[str, str]]:
    """Each `name`: text within a docstring."""
    for name, said in re.findall(r"`(\w+)`: (.+?)(?=\s+`\w+`: |\n\n|\Z)", text, re.S):
        yield name, " ".join(said.split())


def settings_of(group: str, choice: str) -> list[Setting]:
    """Every setting of a choice, with its value there."""
    if group not in GROUPS:
        return []
    if (path := choices.files(group).get(choice)) is None:
        values, about = choices.defaults(group, choice), {}
    else:
        (settings,) = compose_plain([[f"{group}={choice}"]], finished=False)
        values = settings.get(group) or {}
        about = dict(re.findall(r"^ *(\w+):[^#\n]*# *(.+)$", path.read_text(), re.M))
    name, factory = str(values.get("name", "")), values.get("factory")
    parts = [load(factory, group)] if factory else choices.parts(group, name)
    declared = choices.parameters_of(group, parts)
    for target in (GROUPS[group], *(part.declares for part in parts)):
        about |= documented(target)
    declared |= {key: Parameter(Any) for key in values if key not in declared}
    there = {key: p for key, p in declared.items() if key in values and key != "name"}
    return [*_entries(there, about, f"{group}.", values)]


def _entries(
    declared: Mapping[str, Parameter],
    about: Mapping[str, str],
    prefix: str = "",
    values: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Setting]:
    """The settings, and below each those within it. `values`: in place of the defaults."""
    for key, parameter in declared.items():
        name, value = prefix + key, values[key] if key in values else choices.plain(parameter)
        named = checked.choices(parameter.hint)
        if named and isinstance(value, Mapping):
            yield Setting(name, value["name"], about.get(key, ""))
            if isinstance(named, Offered):  # a table of its own
                continue
            for cls in dict.fromkeys(named.values()):
                more = {n: p for n, p in parameters(cls).items() if n != "name"}
                when = " or ".join(n for n, c in named.items() if c is cls)
                said = {n: f"{when}: {text}" for n, text in documented(cls).items()}
                yield from _entries(more, said, f"{name}.")
        elif dataclasses.is_dataclass(parameter.hint) and isinstance(value, Mapping):
            yield Setting(name, "", about.get(key, ""))
            within = parameters(parameter.hint)  # type: ignore[arg-type]
            yield from _entries(within, documented(parameter.hint), f"{name}.", value)
        else:
            yield Setting(name, value, about.get(key, ""))


def _overview(groups: Mapping[str, Sequence[str]], run: Iterable[Setting]) -> str:
    lines = [INTRODUCTION, "", "Groups (group=choice):"]
    about = documented(Settings)
    for name, names in groups.items():
        lines += _item(name, f"{_first(about.get(name, '')).rstrip('.')}: {', '.join(names)}")
    lines += ["", "Settings of the run:"]
    for entry in run:
        if "." not in entry.name and entry.name not in groups:
            lines += _item(entry.text, _first(entry.about))
    return "\n".join([*lines, "", *textwrap.wrap(MORE, WIDTH)])


def _group(group: str, names: Sequence[str]) -> str:
    listed = [line for name in names for line in _item(name, _first(_about(group, name)))]
    end = f"--help {group}=CHOICE shows the settings of one, with its file if it has one."
    return "\n".join([f"{group}=...", "", *listed, "", end])


def _within(setting: str) -> str:
    """The table of what a setting such as `trainer.algorithm` may name, and what each can set."""
    classes: dict[str, Any] = dict(Offered(setting, Chosen))
    width = max(map(len, classes)) + 2
    lines = [f"{name:{width}}{cls.source}" for name, cls in classes.items()]
    first, *_ = classes.values()
    shared = {n: p for n, p in parameters(first).items() if n != "name"}
    for name, cls in classes.items():
        more = {n: p for n, p in parameters(cls).items() if shared.get(n) != p and n != "name"}
        lines += ["", *_item(name, (inspect.getdoc(cls) or "").partition("\n\n")[0])]
        lines += _items(_entries(more, documented(cls), f"{setting}."))
    lines += ["", "all of them"]
    lines += [*_items(_entries(shared, documented(first), f"{setting}.")), ""]
    return "\n".join([*lines, f"One of your own: {setting}=module:attribute ({GUIDES[setting]})."])


def _items(entries: Iterable[Setting], indent: str = "  ") -> Iterator[str]:
    for entry in entries:
        yield from _item(indent + entry.text, entry.about)


def _choice(group: str, choice: str) -> str:
    """One choice: its file as it is, or what its docstring says, and its settings."""
    path = choices.files(group).get(choice)
    said = _about(group, choice) if path is None else _text(path)
    lines = [f"{group}={choice}", "", *(textwrap.wrap(said, WIDTH) if path is None else [said]), ""]
    lines += _items(settings_of(group, choice), "")
    return "\n".join(lines).rstrip()


def _about(group: str, choice: str) -> str:
    """What a choice is: the comment at the top of its file, or the first part of its docstring."""
    if (path := choices.files(group).get(choice)) is not None:
        lines = _text(path).splitlines()
        first = [i for i, line in enumerate(lines) if not line.startswith("#")]
        return " ".join(line.lstrip("# ").rstrip() for line in lines[: first[0] if first else None])
    if choice == CUSTOM:
        example = f"{group}={CUSTOM} {group}.factory=module:attribute {group}.options.size=40"
        return f"One of your own: {example} ({GUIDES[group]})."
    if group == "sandbox":
        return dict(_said(inspect.getdoc(GROUPS[group]) or ""))[choice]
    parts = choices.parts(group, choice)
    if group in GUIDES and not parts:
        point = entry_points(group)[choice]
        of = "another package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        return f"{point.value}, from {of}"
    said = inspect.getdoc(parts[0].target if parts else GROUPS[group]) or ""
    return " ".join(said.partition("\n\n")[0].removeprefix(f"`{group}={choice}`: ").split())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("# @package _global_\n", "").rstrip()


def _first(comment: str) -> str:
    return re.split(r"(?<=\w[.])\s+|(?<=[:;])\s+(?=[A-Z`\[])", comment, maxsplit=1)[0].rstrip(":;")


def _item(name: str, about: str) -> list[str]:
    """A name with its description beside it, or below it where the name is long."""
    indent = " " * 20
    body = textwrap.wrap(" ".join(about.split()), WIDTH - len(indent))
    if len(name) + 4 > len(indent):
        return [f"  {name}", *(indent + line for line in body)]
    head = f"  {name}".ljust(len(indent))
    return [head + (body[0] if body else ""), *(indent + line for line in body[1:])]
