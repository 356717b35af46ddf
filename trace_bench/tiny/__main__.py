"""Making a tiny agent for any world, and building and measuring that of the phone world.

    python -m trace_bench.tiny make env.factory=desk:Suite out=models/desk [size=0.3] [success=0.3]
    python -m trace_bench.tiny demonstrate env=babyai count=400 varied=true out=shown/babyai.jsonl
    python -m trace_bench.tiny build [folder] [--size small|medium|large]
    python -m trace_bench.tiny measure [folder]

`make` takes the settings of a run (`env`, `env.*`, `policy.max_turns`, ...) and its own: `out`,
`split`, `size`, `success`, `minutes`, `without`, `rare`, `demonstrations`, `passes`, `seed`
(docs/own_world.md); the same command goes on after an interruption. `demonstrate` writes what such
an agent learns from to a file, to fine-tune another model on (docs/models.md): `out`, `count`,
`split`, `varied`, `seed`. `build` makes the phone
world's agent from scratch, `measure` prints its card with new figures. Without a folder it is the
one from which the package loads its model, whose size is medium: a million parameters; small has
0.3 and large 4.3 million (`model.path=FOLDER` runs them). Building medium takes about twenty
minutes on two CPU cores, measuring it half a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import yaml

from trace_bench.core.checked import build as build_settings
from trace_bench.core.command import command, told
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_json, write_json, write_text
from trace_bench.tiny import MODEL_FOLDER, MadeSettings
from trace_bench.tiny.train import SHIPPED, SIZES, STATE, encode, make_tokenizer, train

OPTIONS = fields(MadeSettings)


def build(folder: Path, size: str = SHIPPED) -> None:
    """Runs the whole recipe of a size and prints its progress."""
    from trace_bench.core.types import to_json

    recipe = SIZES[size]
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    print(f"tokenizer from demonstrations, into {folder}", flush=True)
    make_tokenizer(folder, recipe)
    print(f"{recipe.demonstrations} demonstrations as tokens", flush=True)
    corpus = encode(folder, recipe)
    agent = int(corpus.agent.sum())
    print(f"{len(corpus.ids):,} tokens, {agent:,} of them the agent's", flush=True)
    report = train(folder, corpus, recipe, lambda line: print(line, flush=True))
    report["seconds_in_all"] = round(time.monotonic() - begun, 1)
    write_json(folder / "training.json", {"recipe": to_json(recipe), "report": report})
    print(f"trained in {report['seconds_in_all'] / 60:.1f} minutes: {folder}")
    (folder / STATE).unlink()
    describe(folder)


def describe(folder: Path, write: bool = True) -> None:
    """Measures the model and prints its card. `write`: figures and card to the folder as well."""
    from trace_bench.tiny.measure import card, measure

    figures = measure(folder)
    text = card(read_json(folder / "training.json"), figures)
    print(text)
    if write:
        write_json(folder / "measured.json", figures)
        write_text(folder / "README.md", text)


def make(arguments: list[str]) -> None:
    """Makes an agent for the world that the settings name, and prints its card."""
    from trace_bench.settings.compose import compose, take
    from trace_bench.settings.identity import parts_of, plain
    from trace_bench.tiny.making import make_for

    config_dir = take(arguments, "--config-dir")
    own = {f.name: take(arguments, "out" if f.name == "path" else f.name) for f in OPTIONS}
    if own["path"] is None:
        raise UserError("`out` is missing: the folder of the agent, such as out=models/desk.")
    given = [f"model.{name}={value}" for name, value in own.items() if value is not None]
    chosen = ["method=base", "model=made", *given, *arguments]
    settings = compose(chosen, Path(config_dir) if config_dir else None)
    asked = build_settings(MadeSettings, parts_of(settings)["model"].options, "model")
    folder = make_for(plain(settings), asked, lambda line: print(line, flush=True))
    print((folder / "README.md").read_text())


def demonstrate(arguments: list[str]) -> None:
    """Writes demonstrations of the world that the settings name."""
    from trace_bench.settings.compose import compose, take
    from trace_bench.tiny.making import world_of
    from trace_bench.tiny.written import WrittenSettings, write

    config_dir = take(arguments, "--config-dir")
    given = {f.name: take(arguments, f.name) for f in fields(WrittenSettings)}
    own = {name: yaml.safe_load(value) for name, value in given.items() if value is not None}
    settings = build_settings(WrittenSettings, own, "")
    chosen = compose(["method=base", *arguments], Path(config_dir) if config_dir else None)
    with world_of(chosen) as world:
        write(world, settings, lambda line: print(line, flush=True))


@command("interrupted; the same command goes on")
def main(arguments: Sequence[str]) -> int:
    if told(arguments, __doc__):
        return 0
    by_settings = {"make": make, "demonstrate": demonstrate}
    if arguments and arguments[0] in by_settings:
        by_settings[arguments[0]](list(arguments[1:]))
        return 0
    parser = parser_of("tiny", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make")
    commands.add_parser("demonstrate")
    building = commands.add_parser("build")
    building.add_argument("--size", choices=list(SIZES), default=SHIPPED)
    for each in (building, commands.add_parser("measure")):
        each.add_argument("folder", nargs="?", type=Path, default=MODEL_FOLDER)
    given = parser.parse_args(arguments)
    if given.command == "measure":
        describe(given.folder, write=False)
    elif given.folder.resolve() == MODEL_FOLDER.resolve() and given.size != SHIPPED:
        raise UserError(
            f"--size {given.size} into {MODEL_FOLDER}; the package's own model is {SHIPPED}. "
            "Name another folder."
        )
    else:
        build(given.folder, given.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
