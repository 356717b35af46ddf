"""Making a tiny agent for any world, and that of the phone world.

    python -m trace_bench.tiny make env.factory=desk:Suite out=models/desk [size=0.3] [hasty=0.5]
    python -m trace_bench.tiny demonstrate env=babyai count=400 out=shown/babyai.jsonl
    python -m trace_bench.tiny build out=FOLDER [size=0.3] [rare=0.05]

`make` takes the settings of a run (`env`, `env.*`, `policy.max_turns`, ...) and its own: `out`,
`split`, `size`, `hasty`, `minutes`, `synthetic`, `demonstrations`, `passes`, `seed`
(docs/own_world.md). `demonstrate` writes what such an agent learns from to a file, to fine-tune
another model on (docs/models.md): `out`, `count`, `split`, `synthetic`, `seed`; `method=sft` reads
them.

`build` is `make` for the agent of the phone world, from demonstrations of no task, as many as the
shipped one's, which `trace_bench/tiny/model` holds: in about twenty minutes on two CPU cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from trace_bench.core.checked import build as build_settings
from trace_bench.core.command import command, take, told, whole_number
from trace_bench.core.errors import UserError
from trace_bench.core.store import write_text
from trace_bench.settings.compose import compose, word
from trace_bench.settings.identity import parts_of
from trace_bench.tiny import MadeSettings

if TYPE_CHECKING:
    from trace_bench.tiny.making import Source

SAY = partial(print, flush=True)


def make(words: list[str], source: type[Source] | None = None, **options: str) -> None:
    """Makes an agent for the world that the settings name, and prints its card. `options`: its own
    settings where they are not among the words."""
    from trace_bench.tiny.tasks import Tasks, make_for

    for name in (field.name for field in fields(MadeSettings)):
        if (value := take(words, "out" if name == "path" else name)) is not None:
            options[name] = value
    if "path" not in options:
        raise UserError("`out` is missing: the folder of the agent, such as out=models/desk.")
    options["path"] = word(Path(options["path"]))
    words_of_model = [f"model.{name}={value}" for name, value in options.items()]
    settings = compose(["method=base", "model=made", *words_of_model, *words])
    asked = build_settings(MadeSettings, parts_of(settings)["model"].options, "model")
    folder = make_for(settings, asked, SAY, source=source or Tasks)
    print((folder / "README.md").read_text())


def demonstrate(words: list[str]) -> None:
    """Writes demonstrations of the world that the settings name to a file, replacing one that is
    there. A line is a conversation in OpenAI's format for fine-tuning: `messages`, of which an
    assistant's with `weight` 0 is not learned (a mistake), and `tools`."""
    from trace_bench.tiny.tasks import Tasks, world_of

    if (out := take(words, "out")) is None:
        raise UserError("`out` is missing: the file to write, such as out=shown/desk.jsonl.")
    count = whole_number("count", take(words, "count") or 400)
    texts = {name: take(words, name) for name in ("split", "synthetic", "seed")}
    options = {name: yaml.safe_load(text) for name, text in texts.items() if text is not None}
    settings = build_settings(MadeSettings, {**options, "demonstrations": count, "hasty": 0.0}, "")
    with world_of(compose(["method=base", *words])) as world:
        lines = []
        for shown in Tasks(world, settings).in_turn("written"):
            line = {"messages": shown.weighted(), "tools": shown.tools}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(Path(out), "".join(lines))
    SAY(
        f"{len(lines)} demonstrations in {out}; {count - len(lines)} episodes did not end in "
        "success and are left out"
    )


def build(words: list[str]) -> None:
    """Makes the phone world's agent and prints its card: `make`, from other demonstrations."""
    from trace_bench.tiny.phone import SHIPPED, Phone

    preset = {name: json.dumps(value) for name, value in SHIPPED.items()}
    make(words, Phone, **preset)


COMMANDS = {"make": make, "demonstrate": demonstrate, "build": build}


@command("interrupted; nothing is left of it")
def main(words: Sequence[str]) -> int:
    if told(words, __doc__):
        return 0
    name = words[0] if words else ""
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}; allowed: {', '.join(COMMANDS)}.")
    COMMANDS[name](list(words[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
