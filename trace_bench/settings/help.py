"""`--help`: what can be set, from the comments of the files in conf/ and in --config-dir.

--help               the groups with their choices, and the settings of a run
--help GROUP         every choice of a group and every setting of each, with what it is
--help GROUP=CHOICE  the file of a choice
--help KEY           a setting of the run
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from trace_bench.core.errors import UserError, unknown
from trace_bench.settings.registry import ENTRY_POINTS, OWN, entry_points

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


@dataclass(frozen=True)
class Entry:
    """A setting as it stands in its file: its value there, and the comment above or beside it."""

    name: str
    value: str
    comment: str


def text(about: str | None, conf: Path, more: Path | None = None) -> str:
    """The help. `more`: a folder like conf, whose files are further choices. UserError for
    something that does not exist."""
    if more is not None and not more.is_dir():
        raise UserError(f"--config-dir {more} is not a folder.")
    places = [conf, *([] if more is None else [more])]
    found: dict[str, list[Path]] = {}
    for folder in (p for place in places for p in place.iterdir() if [*p.glob("*.yaml")]):
        if folder.name != "hydra":
            found.setdefault(folder.name, []).append(folder)
    groups = {name: found[name] for name in sorted(found)}  # ours first, as Hydra takes them
    settings = {e.name: e for e in entries(conf / "config.yaml") if e.name not in groups}
    if about is None:
        return _overview(groups, settings, conf)
    group, _, choice = about.partition("=")
    if group in groups and not choice:
        comments = {
            name: text for place in reversed(places) for name, text in descriptions(place).items()
        }
        return _group(group, groups[group], comments)
    if group in groups:
        return _choice(group, choice, groups[group])
    if group in settings:
        return _setting(settings[group])
    raise unknown("help", about, (*groups, *settings), "--help")


def entries(path: Path) -> Iterator[Entry]:
    """The keys at the top of a settings file, in order."""
    return (entry for entry in keys(path) if "." not in entry.name)


def keys(path: Path) -> list[Entry]:
    """Every key of a settings file, in order, those below others with dots: "evaluation.trials". A
    key's comment is what stands in its line, and goes on right below, or the block right above it.
    What Hydra reads for itself is left out."""
    found: list[Entry] = []
    above: list[str] = []
    within: list[str] = []
    column = -1  # of the comment beside the key just read
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip()
        if text.startswith("#") and len(line) - len(text) == column:
            found[-1] = replace(found[-1], comment=f"{found[-1].comment} {text.lstrip('# ')}")
        elif text.startswith("#"):
            above.append(text.lstrip("# ").rstrip())
        elif key := re.match(r"( *)([a-zA-Z_]+):\s*([^#]*)(?:#\s*(.*))?$", line):
            within = [*within[: len(key[1]) // 2], key[2]]
            comment = key[4] or " ".join(above)
            found.append(Entry(".".join(within), key[3].strip(), comment))
            above, column = [], line.find("#")
        elif not text:
            above, column = [], -1
    return [e for e in found if e.name.partition(".")[0] not in ("defaults", "hydra")]


def descriptions(conf: Path) -> dict[str, str]:
    """What every setting is, by its whole name ("env.domain"). Each is described once: a key
    without a comment has that of its name in another file of conf, or of a key of the same name in
    its group ("llm.judge.seed": that of "llm.user.seed")."""
    every = [e for path in sorted(conf.rglob("*.yaml")) for e in whole_names(path, conf)]
    comments: dict[str, str] = {}
    alike: dict[tuple[str, str], str] = {}
    for entry in every:
        if entry.comment and entry.name not in comments:
            comments[entry.name] = entry.comment
            alike.setdefault(_group_and_key(entry.name), entry.comment)
    return {e.name: comments.get(e.name) or alike.get(_group_and_key(e.name), "") for e in every}


def _group_and_key(name: str) -> tuple[str, str]:
    return name.partition(".")[0], name.rpartition(".")[2]


def whole_names(path: Path, conf: Path) -> Iterator[Entry]:
    """The keys of a file as they are set on the command line. Heads that only name a group are left
    out, and the name of a part, which the choice sets."""
    text = path.read_text(encoding="utf-8")
    own = path.parent == conf or text.startswith("# @package _global_")
    heads = {p.name for p in conf.iterdir() if p.is_dir()}
    for entry in keys(path):
        name = entry.name if own else f"{path.parent.name}.{entry.name}"
        if name not in heads and not (name.endswith(".name") and name.count(".") == 1):
            yield Entry(name, entry.value, entry.comment)


def _overview(
    groups: Mapping[str, Sequence[Path]], settings: Mapping[str, Entry], conf: Path
) -> str:
    lines = [INTRODUCTION, "", "Groups (group=choice):"]
    about = _comments_of_defaults(conf / "config.yaml")
    for name, folders in groups.items():
        lines += _item(name, f"{about.get(name, '')} {', '.join(_choices(name, folders))}")
    lines += ["", "Settings of the run:"]
    for entry in settings.values():
        lines += _item(f"{entry.name}={entry.value}".rstrip("="), _first(entry.comment))
    return "\n".join([*lines, "", *textwrap.wrap(MORE, WIDTH)])


def _comments_of_defaults(path: Path) -> dict[str, str]:
    """What stands beside each group in the list of defaults."""
    rows = re.findall(r"^  - ([a-z]+): [^#\n]*#\s*(.*)$", path.read_text(encoding="utf-8"), re.M)
    return {name: comment.rstrip(".") + ":" for name, comment in rows}


def _choices(group: str, folders: Sequence[Path]) -> list[str]:
    others = entry_points(group).keys() - OWN[group].keys() if group in ENTRY_POINTS else ()
    return sorted({p.stem for folder in folders for p in folder.glob("*.yaml")} | set(others))


def _file(choice: str, folders: Sequence[Path]) -> Path | None:
    """A choice's file; None for a part of another package."""
    found = [path for folder in folders if (path := folder / f"{choice}.yaml").exists()]
    return found[0] if found else None


def _group(group: str, folders: Sequence[Path], comments: Mapping[str, str]) -> str:
    """Every choice, and below it its settings. One that an earlier choice has, too, is described
    there."""
    lines = [f"{group}=..."]
    shown: set[str] = set()
    for name in _choices(group, folders):
        path = _file(name, folders)
        about = _package(group, name) if path is None else _first(_header(path))
        lines += ["", *_item(name, about)]
        every = () if path is None else whole_names(path, path.parents[1])
        own = [e for e in every if e.name.startswith(f"{group}.")]
        for entry in own:
            if entry.name not in shown:
                lines += _item(f"  {entry.name}={entry.value}".rstrip("="), comments[entry.name])
        again = [e.name.partition(".")[2] for e in own if e.name in shown]
        lines += textwrap.wrap(
            f"as above: {', '.join(again)}", WIDTH, initial_indent=" " * 4,
            subsequent_indent=" " * 6, break_on_hyphens=False,
        ) if again else []  # fmt: skip
        shown |= {e.name for e in own}
    return "\n".join([*lines, "", f"--help {group}=CHOICE shows the file of one."])


def _package(group: str, name: str) -> str:
    point = entry_points(group)[name]
    version = "" if point.dist is None else metadata.version(point.dist.name)
    package = "another package" if point.dist is None else f"{point.dist.name} {version}"
    return f"{point.value}, from {package}"


def _choice(group: str, choice: str, folders: Sequence[Path]) -> str:
    """A choice's own file: its comments are the description."""
    path = _file(choice, folders)
    if path is None:
        raise unknown(group, choice, _choices(group, folders), group)
    own = path.read_text(encoding="utf-8").replace("# @package _global_\n", "")
    return f"{group}={choice}\n\n{own.rstrip()}"


def _setting(entry: Entry) -> str:
    shown = f"{entry.name}: {entry.value}" if entry.value else entry.name
    return "\n".join([shown, "", *textwrap.wrap(entry.comment, WIDTH)])


def _header(path: Path) -> str:
    """The comment at the top of a file."""
    lines = path.read_text(encoding="utf-8").replace("# @package _global_\n", "").splitlines()
    first = [i for i, line in enumerate(lines) if not line.startswith("#")]
    return " ".join(line.lstrip("# ").rstrip() for line in lines[: first[0] if first else None])


def _first(comment: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=\w[.])\s+|(?<=[:;])\s+(?=[A-Z`\[])", comment, maxsplit=1)[0].rstrip(":;")


def _item(name: str, about: str) -> list[str]:
    """A name with its description beside it, or below it where the name is long."""
    indent = " " * 20
    body = textwrap.wrap(" ".join(about.split()), WIDTH - len(indent))
    if len(name) + 4 > len(indent):
        return [f"  {name}", *(indent + line for line in body)]
    head = f"  {name}".ljust(len(indent))
    return [head + (body[0] if body else ""), *(indent + line for line in body[1:])]
