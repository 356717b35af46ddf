"""Tiny agents: Qwen3-architecture transformers that the project trains itself. The phone world's is
shipped; `make` makes one for any suite whose solutions are known.

    trace_bench.tiny.make(suite, "models/desk")
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.core.checked import PLACE, build
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, Suite
from trace_bench.core.store import read_object
from trace_bench.core.types import NotNegative, Positive, Share
from trace_bench.settings.schema import parse
from trace_bench.tiny.train import SIZES

MODEL_FOLDER = Path(__file__).parent / "model"

Log = Callable[[str], None]


@dataclass(frozen=True)
class MadeSettings:
    """`model.*` of `model=made`, and what `python -m trace_bench.tiny make` takes."""

    path: Path | None = field(default=None, metadata=PLACE)
    """The folder of an agent that is there (`out=` of the command); null: one in the user's cache
    folder, made before the run."""
    split: str | None = None
    """The split of the tasks that are demonstrated; null: demo, or without one every second task of
    `env.train_split`."""
    synthetic: bool = False
    """Every second demonstration is of a task that the suite makes, of all its capabilities
    in turn."""
    size: float = 1.0
    """Millions of parameters: 1, the shipped agent's weights to begin with, which copy names and
    numbers already; 0.3 or 4.3, random ones, which need more `passes`."""
    hasty: Share = 0.7
    """The share of demonstrations that leave a call of the solution out, always the same one where
    the same tools are called in the same order: habits that RL can put right. An agent without any
    is shown successes only."""
    minutes: NotNegative = 25.0
    """The most that it may take."""
    rare: Share = 0.0
    """Of `build`: the share of demonstrations that exercise each of the phone agent's seven
    capabilities; 0: the shipped agent's shares."""
    demonstrations: Positive = 2000
    """How many."""
    passes: Positive = 1
    """Over all of them, at most."""
    seed: int = 0
    """Of the demonstrations and the weights."""

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            offered = ", ".join(f"{size:g}" for size in SIZES)
            raise UserError(f"`model.size` is {self.size:g}; allowed: {offered}.")


@dataclass(frozen=True)
class World:
    """A suite, the names of its splits, and the limits of an episode."""

    suite: Suite
    train: str = "train"
    dev: str = "dev"
    test: str = "test"
    max_turns: int = 20
    max_tokens: int = 96


def shipped(path: str | None = None) -> str:
    """`model=tiny`: the tiny Qwen3-architecture agent that ships with the package.

    `path`: another build of it; null: the shipped one."""
    return path or str(MODEL_FOLDER)


def shipped_babyai() -> str:
    """`model=tiny_babyai`: the agent for BabyAI's default levels that ships with the package, and
    env=babyai's own choice (docs/babyai.md)."""
    return str(MODEL_FOLDER.with_name("babyai"))


def shipped_textarena() -> str:
    """`model=tiny_textarena`: likewise for TextArena's frozen lakes (docs/textarena.md)."""
    return str(MODEL_FOLDER.with_name("textarena"))


def for_world(settings: MadeSettings, run: RunContext) -> str:
    """`model=made`: a tiny agent for the run's world, made before the run if it is not there.

    docs/own_world.md says what it learns from, and what a suite needs. Raises UserError for a
    `model.path` without an agent: whoever names one means one that is there."""
    if (path := settings.path) is not None:
        if not (path / "config.json").is_file():
            raise UserError(
                f"there is no agent in {path}. Make one there (python -m trace_bench.tiny make ... "
                f"out={path}), or leave `model.path` out: then one is made before the run. Change "
                "`model.path`."
            )
        return str(path)
    from trace_bench.tiny.tasks import make_for

    return str(make_for(parse(run.settings), settings, _say, look=bool(run.settings["dry_run"])))


def make(suite: Suite, out: str | Path, log: Log | None = None, **options: Any) -> dict[str, Any]:
    """Makes a tiny agent for a suite in the folder `out`, and returns its figures; UserError.
    `options`: those of `MadeSettings`; and `train`, `dev`, `test` (names of splits), `max_turns`,
    `max_tokens`."""
    from trace_bench.tiny.making import make_in
    from trace_bench.tiny.tasks import Tasks

    splits = {key: options.pop(key) for key in World.__annotations__ if key in options}
    settings = build(MadeSettings, {**options, "path": out}, "model")
    folder = make_in(World(suite, **splits), None, settings, log or _say, source=Tasks)
    return read_object(folder / "measured.json")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
