"""Making a tiny agent: demonstrations, tokenizer, training, figures, card, and last the folder's
name. Agents differ in their `Source`: what they are shown, what they begin with, and what is said
of it."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trace_bench.core import store
from trace_bench.core.checked import identifying
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import DEMONSTRATED
from trace_bench.core.types import AgentSpec, Task, Trajectory, to_json
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites, about_of, name_of, tasks_of
from trace_bench.policies.local import LocalPolicy
from trace_bench.tiny import Log, MadeSettings, World
from trace_bench.tiny.train import Corpus, Talk, TinyRecipe, corpus_of, train

LOOKED_AT = 128  # development tasks


Lessons = tuple[Any, Iterable[Talk], dict[str, Any]]
"""A tokenizer, the demonstrations for which it was made, and facts about them."""


class Source(ABC):
    """Where an agent's demonstrations come from, and what is said of them: all that differs between
    agents. Making one raises UserError where nothing can be demonstrated."""

    identity: Mapping[str, str] = MappingProxyType({})
    """What tells agents of this source from those that are shown tasks of the same world."""
    demonstrated: Mapping[str, Any] | None = None
    """The tasks that are demonstrated, as `DEMONSTRATED` has them; None: of no task."""
    start: Path | None = None
    """The model that the training begins with; None: one of random weights."""

    def __init__(self, world: World, settings: MadeSettings) -> None:
        self.world, self.settings = world, settings

    @abstractmethod
    def lessons(self, log: Log) -> Lessons: ...

    @abstractmethod
    def recipe(self, corpus: Corpus) -> TinyRecipe: ...

    @abstractmethod
    def described(self, folder: Path, training: Mapping[str, Any]) -> tuple[Any, str]:
        """The figures of the finished agent and its card; `training`: what training.json holds."""


def card(
    command: str, world: World, settings: MadeSettings, training: Mapping[str, Any],
    learned: str, rates: Mapping[str, Any], begun: str = "nothing",
) -> str:  # fmt: skip
    """What every card says. `learned`: of demonstrations; `rates`: on tasks; `begun`: with what."""
    recipe, report = training["recipe"], training["report"]
    planned = TinyRecipe(**recipe).steps
    steps = report.get("steps", planned)
    ended = "all passes were done" if steps >= planned else "`minutes` were over"
    words = " ".join(f"{k}={v}" for k, v in identifying(settings).items() if v not in (None, []))
    return f"""# A tiny agent for {name_of(world.suite)}

A Qwen3-architecture language model of {report["parameters"]:,} parameters (vocabulary
{report["vocabulary"]:,}, context {recipe["context"]:,}) that knows this world and nothing else,
made from {begun} in {report["seconds_in_all"] / 60:.1f} minutes by
`python -m trace_bench.tiny {command}`.

## Training

{learned}

{report["tokens"]:,} tokens in {steps:,} steps, until {ended}; last loss
{report["loss"]:.4f} on the agent's own tokens. Settings: `{words}`.

## What it can do

{table(world.dev, rates)}

95 % intervals (Wilson); "sampled" at temperature 1.
"""


@dataclass(frozen=True)
class ModelBench:
    """A model and the world that it is measured in."""

    policy: LocalPolicy
    world: World
    model: str

    def play(
        self, tasks: Sequence[Task], label: str, *, temperature: float, guidance: str = ""
    ) -> list[Trajectory]:
        """One episode of each task; `label` names the stream of seeds."""
        agent = AgentSpec(model=self.model, prompt=guidance)
        seeds = [store.stable_seed("measure", label, t.id, n) for n, t in enumerate(tasks)]
        batch = EpisodeBatch(agent, tuple(tasks), tuple(seeds), temperature)
        world = self.world
        player = Player(self.policy, Suites(world.suite), world.max_turns, world.max_tokens)
        return player.play(batch)


def on_development_tasks(folder: Path, world: World) -> dict[str, Any]:
    """The agent's rates on the first development tasks, greedy and at temperature 1."""
    tasks = tasks_of(world.suite, world.dev)[:LOOKED_AT]
    with closing(LocalPolicy(folder)) as policy:
        bench = ModelBench(policy, world, str(folder))
        return {
            name: rate(bench.play(tasks, "dev", temperature=temperature))
            for name, temperature in (("greedy", 0.0), ("sampled", 1.0))
        }


def rate(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Share of successes with its 95 % interval (Wilson)."""
    from scipy.stats import binomtest  # a second to import

    wins = sum(t.score is not None and t.score.success for t in episodes)
    interval = binomtest(wins, len(episodes)).proportion_ci(method="wilson")
    ends = [round(float(end), 4) for end in interval]
    return {"success": round(wins / len(episodes), 4), "interval": ends, "n": len(episodes)}


def table(of: str, rates: Mapping[str, Any]) -> str:
    """Rates by name as Markdown; `of`: what the names are of."""
    lines = [f"| {of} | success | interval | tasks |", "|---|---|---|---|"]
    for name, one in rates.items():
        low, high = one["interval"]
        lines.append(f"| {name} | {one['success']:.3f} | {low:.3f} to {high:.3f} | {one['n']} |")
    return "\n".join(lines)


def make_in(
    world: World,
    facts: Mapping[str, Any] | None,
    settings: MadeSettings,
    log: Log,
    *,
    source: type[Source],
    look: bool = False,
) -> Path:
    """The folder of the agent, made if it is not there. `facts`: what identifies the suite (None:
    its name and facts); `look`: only if it is there. Raises UserError for a folder that holds
    something else."""
    suite = world.suite
    of = {"suite": name_of(suite), "about": about_of(suite)} if facts is None else facts
    limits = {k: v for k, v in vars(world).items() if k != "suite"}
    of = {**of, **source.identity}
    wanted = to_json({"world": of, "settings": identifying(settings), **limits})
    out = settings.path or _cached(f"{world.suite.name}-{store.fingerprint(wanted)}")
    out = out.expanduser().absolute()
    if look and not out.exists():
        raise UserError(
            f"the agent of model=made is not made yet, which takes up to {settings.minutes:g} "
            "minutes; dry_run makes none, and counts training tasks that it may be shown. Start "
            "the run, or make it by `python -m trace_bench.tiny make`."
        )
    work = out.with_name(f".{out.name}.making")
    with store.locked(work):  # waits until no other process makes this agent
        try:
            if not out.exists():
                origin = source(world, settings)
                log(f"making a tiny agent for {name_of(world.suite)} in {out}, "
                    f"{settings.minutes:g} minutes at most")  # fmt: skip
                with store.whole(out) as building:
                    _make(building, origin, wanted, log)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    there = out / "training.json"
    if not there.is_file() or store.read_object(there).get("asked") != wanted:
        raise UserError(
            f"{out} is there already and was not made by this command with these settings. "
            "Change `out` (`model.path`), or remove the folder."
        )
    return out


def _make(work: Path, source: Source, asked: Mapping[str, Any], log: Log) -> None:
    begun, settings = time.monotonic(), source.settings
    tokenizer, talks, facts = source.lessons(log)
    corpus = corpus_of(tokenizer.backend_tokenizer, talks)
    recipe = source.recipe(corpus)
    tokenizer.model_max_length = recipe.context
    tokenizer.save_pretrained(str(work))
    taken = round(time.monotonic() - begun, 1)
    facts |= {"seconds": taken, "steps": recipe.steps}
    log(f"{facts['demonstrations']} demonstrations, {len(corpus.ids):,} tokens, "
        f"{len(tokenizer)} words, {taken:.0f} s")  # fmt: skip
    report = train(work, corpus, recipe, log, max(settings.minutes * 60 - taken, 1.0), source.start)
    report["seconds_in_all"] = round(taken + report["seconds"], 1)
    training = {"recipe": to_json(recipe), "report": report, "asked": asked, "shown": facts}
    figures, text = source.described(work, training)
    if source.demonstrated is not None:
        store.write_json(work / DEMONSTRATED, source.demonstrated)
    store.write_json(work / "training.json", training)
    store.write_json(work / "measured.json", figures)
    store.write_text(work / "README.md", text)


def _cached(name: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "trace_bench" / "made" / name
