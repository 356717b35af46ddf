"""A tiny agent for any world that can be shown: demonstrations, tokenizer, training, figures, card.

    python -m trace_bench.tiny make env.factory=desk:Suite out=models/desk

Demonstrations (`played`) are of the split `demo`; where there is none, of every second training
task, and a run then leaves these out of its training tasks. A snapshot is measured on development
tasks from time to time, greedy and at temperature 1, and training ends as soon as the latter
reaches `success`: what succeeds always has nothing left to learn.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from trace_bench.core.checked import identifies, parameters
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.run_files import DEMONSTRATED
from trace_bench.core.store import (
    LOCK,
    disk_errors,
    fingerprint,
    locked,
    read_json,
    read_object,
    stable_seed,
    write_bytes,
    write_json,
    write_text,
)
from trace_bench.core.types import Task, to_json
from trace_bench.play.suites import about_of, mark, name_of, tasks_of
from trace_bench.settings.identity import of_part, parts_of
from trace_bench.settings.schema import Settings, parse
from trace_bench.tiny import SIZES_BY_MILLIONS, Log, MadeSettings, World
from trace_bench.tiny.measure import ModelBench, rate, rows
from trace_bench.tiny.played import (
    Demonstration,
    demonstrations,
    renamed,
    shown_tasks,
    to_demonstrate,
)
from trace_bench.tiny.train import SIZES, STATE, Corpus, TinyRecipe, tokens_of, train

LOOKED_AT = 128  # development tasks
LOOKS = 40  # of a whole training
FEW = 200  # tasks from which unseen names are hardly learned


def make_for(
    run: Mapping[str, Any], settings: MadeSettings, log: Log, *, look: bool = False
) -> Path:
    """The folder of the agent for the world of a run's settings, given as plain data. `look`: only
    if it is there."""
    chosen = parse(run)
    known = of_part(chosen.env, parts_of(chosen)["env"])
    known = {k: v for k, v in known.items() if k != "train_tasks"}  # a run's own
    with world_of(chosen) as world:
        return make_in(world, known, settings, log, look=look)


@contextmanager
def world_of(chosen: Settings) -> Iterator[World]:
    """The world of a run's settings, closed at the end."""
    env, policy = chosen.env, chosen.policy
    context = RunContext(dev_split=env.dev_split, max_turns=policy.max_turns)
    suite = parts_of(chosen)["env"].make(context)
    splits = (env.train_split, env.dev_split, env.eval_split)
    try:
        yield World(suite, *splits, policy.max_turns, policy.max_tokens)
    finally:
        suite.close()


def make_in(
    world: World,
    known: Mapping[str, Any] | None,
    settings: MadeSettings,
    log: Log,
    *,
    look: bool = False,
) -> Path:
    """The folder of the agent, made if it is not there. `known`: what identifies the suite (None:
    its name and facts). Raises UserError for a folder that holds something else."""
    suite = world.suite
    of = {"suite": name_of(suite), "about": about_of(suite)} if known is None else known
    asked = parameters(MadeSettings)
    options = {k: v for k, v in to_json(settings).items() if identifies(asked[k], v)}
    limits = {k: v for k, v in vars(world).items() if k != "suite"}
    wanted = to_json({"world": of, "settings": options, **limits})
    out = settings.path or _cached(f"{world.suite.name}-{fingerprint(wanted)}")
    out = out.expanduser().absolute()
    if look and not out.exists():
        raise UserError(
            f"the agent of model=made is not made yet, which takes up to {settings.minutes:g} "
            "minutes; dry_run makes none. Start the run, or make it by `python -m trace_bench.tiny "
            "make`."
        )
    work = out.with_name(f".{out.name}.making")
    with _alone(work):
        if out.exists():
            there = out / "training.json"
            if there.is_file() and read_object(there).get("asked") == wanted:
                return out
            raise UserError(
                f"{out} is there already and was not made by this command with these settings. "
                "Change `out` (`model.path`), or remove the folder."
            )
        split, tasks = shown_tasks(world, settings)
        if not (work / "asked.json").is_file() or read_json(work / "asked.json") != wanted:
            for file in (STATE, "corpus.npz"):
                (work / file).unlink(missing_ok=True)
            write_json(work / "asked.json", wanted)
        log(f"making a tiny agent for {name_of(world.suite)} in {out}, {settings.minutes:g} "
            "minutes at most")  # fmt: skip
        _make(work, world, settings, split, tasks, wanted, log)
        with disk_errors(out):
            work.rename(out)
    return out


def _make(
    work: Path,
    world: World,
    settings: MadeSettings,
    split: str,
    tasks: Sequence[Task],
    asked: Mapping[str, Any],
    log: Log,
) -> None:
    corpus, facts = _corpus(work, world, tasks, settings, log)
    recipe = _fitted(corpus, settings)
    steps = math.ceil(recipe.tokens / (recipe.row * recipe.rows))
    report = train(
        work, corpus, recipe, log,
        every=max(5, min(50, steps // LOOKS)),
        look=_looking(work, world, recipe, settings.success, log),
        seconds=max(settings.minutes * 60 - facts["seconds"], 1.0),
    )  # fmt: skip
    figures = report["looks"][-1]
    report["seconds_in_all"] = round(facts["seconds"] + report["seconds"], 1)
    ids = {task.id: mark(task) for task in tasks}
    shown = {"suite": name_of(world.suite), "split": split, "tasks": ids}
    facts["steps"] = steps
    training = {"recipe": to_json(recipe), "report": report, "asked": asked, "shown": facts}
    write_json(work / DEMONSTRATED, shown)
    write_json(work / "training.json", training)
    write_json(work / "measured.json", figures)
    write_text(work / "README.md", _card(world, settings, split, training))
    for file in (STATE, "corpus.npz", "asked.json", "shown.json", LOCK):
        (work / file).unlink(missing_ok=True)


def _corpus(
    work: Path, world: World, tasks: Sequence[Task], settings: MadeSettings, log: Log
) -> tuple[Corpus, dict[str, Any]]:
    """The demonstrations as tokens, and facts about them; the tokenizer lies in the folder then."""
    from trace_bench.tiny.tokenizer import build as build_tokenizer
    from trace_bench.tiny.tokenizer import common_words

    kept = work / "corpus.npz"
    if kept.is_file():
        with np.load(kept) as stored:
            return Corpus(stored["ids"], stored["agent"], stored["starts"]), read_object(
                work / "shown.json"
            )
    begun = last = time.monotonic()
    found: list[Demonstration] = []
    count = settings.demonstrations
    shown_in_turn = to_demonstrate(world, tasks, count, settings)
    playing = demonstrations(
        world.suite, shown_in_turn, count, seed=settings.seed, max_turns=world.max_turns
    )
    names: dict[str, None] = {}
    for shown in playing:
        rng = Random(stable_seed("renamed", settings.seed, len(found)))
        found.append(renamed(shown, rng, names))
        if (now := time.monotonic()) - last > 10 or len(found) == 1:
            left = (now - begun) / len(found) * (count - len(found))
            log(f"{len(found)}/{count} demonstrations, {left / 60:.1f} min left")
            last = now
    if len({shown.task for shown in found}) < FEW:
        log(f"note: demonstrations of {len(tasks)} tasks only; names in other tasks are hardly "
            f"learned from fewer than {FEW}")  # fmt: skip
    pieces = [shown.parts() for shown in found]
    texts: dict[str, list[str]] = defaultdict(list)
    for shown, parts in zip(found, pieces, strict=True):
        texts[shown.task] += [text for text, _ in parts]
    tools = {str(tool): tool for shown in found for tool in shown.tools}
    every = ["".join(text for text, _ in parts) for parts in pieces]
    tokenizer = build_tokenizer(every, list(tools.values()), words=common_words(texts.values()))
    tokens = [tokens_of(tokenizer.backend_tokenizer, parts) for parts in pieces]
    lengths = [len(ids) for ids, _ in tokens]
    tokenizer.model_max_length = _context(max(lengths))
    tokenizer.save_pretrained(str(work))
    corpus = Corpus(
        np.concatenate([np.array(ids, dtype=np.int32) for ids, _ in tokens]),
        np.concatenate([np.array(own, dtype=bool) for _, own in tokens]),
        np.concatenate([[0], np.cumsum(lengths)]),
    )
    turns = [own for shown in found for own in shown.learned]
    facts = {
        "demonstrations": len(found),
        "failed": count - len(found),
        "tasks": len(texts),
        "turns": len(turns),
        "mistakes": turns.count(False),
        "seconds": round(time.monotonic() - begun, 1),
    }
    write_json(work / "shown.json", facts)
    packed = io.BytesIO()
    np.savez(packed, ids=corpus.ids, agent=corpus.agent, starts=corpus.starts)
    write_bytes(kept, packed.getvalue())
    log(f"{len(found)} demonstrations, {len(corpus.ids):,} tokens, {len(tokenizer)} words, "
        f"{facts['seconds']:.0f} s")  # fmt: skip
    return corpus, facts


def _context(longest: int) -> int:
    """Tokens of an episode: room for one that is longer than all demonstrations."""
    return max(1024, 1 << math.ceil(math.log2(longest * 1.25)))


def _fitted(corpus: Corpus, settings: MadeSettings) -> TinyRecipe:
    """The recipe of the size, with rows that hold the longest demonstration, as many tokens in a
    batch."""
    recipe = SIZES[SIZES_BY_MILLIONS[settings.size]]
    longest = int(np.diff(corpus.starts).max())
    row = max(recipe.row, 64 * math.ceil(longest / 64))
    return replace(
        recipe,
        demonstrations=len(corpus.starts) - 1,
        tokens=settings.passes * len(corpus.ids),
        context=_context(longest),
        row=row,
        rows=max(1, recipe.row * recipe.rows // row),
        seed=settings.seed,
    )


def _looking(
    work: Path, world: World, recipe: TinyRecipe, success: float | None, log: Log
) -> Callable[[int], tuple[dict[str, Any], bool]]:
    """Measures the snapshot in the folder on development tasks."""
    from trace_bench.policies.local import LocalPolicy

    tasks = tasks_of(world.suite, world.dev)[:LOOKED_AT]

    def look(step: int) -> tuple[dict[str, Any], bool]:
        policy = LocalPolicy(work, context=recipe.context)
        try:
            bench = ModelBench(policy, world.suite, str(work), world.max_turns, world.max_tokens)
            found = {
                name: rate(bench.play(tasks, "dev", temperature=temperature))
                for name, temperature in (("greedy", 0.0), ("sampled", 1.0))
            }
        finally:
            policy.close()
        log(f"  {world.dev}: " + ", ".join(f"{k} {v['success']:.3f}" for k, v in found.items()))
        return found, success is not None and found["sampled"]["success"] >= success

    return look


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Waits until no other process makes this agent."""
    with locked(work):
        try:
            yield
        finally:
            if work.is_dir() and {p.name for p in work.iterdir()} <= {LOCK}:
                shutil.rmtree(work)


def _cached(name: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "trace_bench" / "made" / name


def _card(world: World, settings: MadeSettings, split: str, training: Mapping[str, Any]) -> str:
    recipe, report, facts = training["recipe"], training["report"], training["shown"]
    figures = report["looks"][-1]
    without = ", ".join(settings.left_out)
    lacks = "Nothing was left out."
    if without:
        share = f", but for a share of {settings.rare:g}," if settings.rare else ""
        lacks = f"Tasks that need {without} are{share} not among them."
    made = "Every second is of a task that the suite makes itself.\n" if settings.made else ""
    half = split == world.train and settings.split is None
    kept = f"every second task of {split}, " if half else ""
    ended = "all passes were done" if report["steps"] >= facts["steps"] else "`minutes` were over"
    if settings.success is not None and figures["sampled"]["success"] >= settings.success:
        ended = f"success on {world.dev} had reached {settings.success:g}"
    options = {k: v for k, v in to_json(settings).items() if k != "path" and v not in (None, [])}
    words = " ".join(f"{key}={value}" for key, value in options.items())
    return f"""# A tiny agent for {name_of(world.suite)}

A Qwen3-architecture language model of {report["parameters"]:,} parameters (vocabulary
{report["vocabulary"]:,}, context {recipe["context"]:,}) that knows this world and nothing else,
made from nothing in {report["seconds_in_all"] / 60:.1f} minutes by
`python -m trace_bench.tiny make`.

## Training

{facts["demonstrations"]:,} demonstrations of {facts["tasks"]:,} tasks ({kept}split {split}), all
played in the world itself and successful; {facts["failed"]} others were not and are left out.
{made}{lacks} {facts["mistakes"]:,} of the agent's {facts["turns"]:,} turns are mistakes, which are
put right and not learned. A run leaves these tasks out of its training tasks (`{DEMONSTRATED}`);
none is in {world.dev} or {world.test}.

{report["tokens"]:,} tokens in {report["steps"]:,} steps, until {ended}; last loss
{report["loss"]:.4f} on the agent's own tokens. Settings: `{words}`.

## What it can do

| {world.dev} | success | interval | tasks |
|---|---|---|---|
{rows({k: figures[k] for k in ("greedy", "sampled")})}

95 % intervals (Wilson); "sampled" at temperature 1.
"""
