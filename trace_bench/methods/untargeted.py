"""GRPO on synthetic environments that no analysis chose: one adapter for all of them.

The paper's baseline from Agent World Model: no analysis, no calibration, no routing; every
environment that the suite's generator can make has the same share of the tasks. Against TRACE it
tells what targeting brings, against GRPO what the target's own tasks bring. `pool=broad` adds
environments of other tools and domains, since several of the suite's own are the very deficits that
TRACE looks for.

With `environments`, a folder in the AgentWorldModel format, the tasks are those of `scenarios`
environments drawn from it. Their programs are not this project's and run in a sandbox; tasks that
cannot be started, or that are solved by doing nothing, are left out and counted in the log. A line
of its files is a scenario, and of the last one a task of a scenario:

    gen_tasks.jsonl                {"scenario", "tasks": [text, ...]}
    gen_db.jsonl                   {"scenario", "db_schema": {"tables": [{"ddl", "indexes"}]}}
    gen_sample.jsonl               {"scenario", "sample_data": {"tables": [{"insert_statements"}]}}
    gen_spec.jsonl                 {"scenario", "api_spec": {"api_groups": [{"endpoints": [...]}]}}
    gen_envs.jsonl                 {"scenario", "full_code": a FastAPI program}
    gen_verifier.pure_code.jsonl   {"scenario", "task_idx", "verification": {"code"}}
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.checked import number
from trace_bench.core.errors import EpisodeError, SourceError, UserError
from trace_bench.core.protocols import (
    Lab,
    Method,
    MethodPlan,
    Need,
    PlannedRun,
    Synthesizes,
    SynthesizesDomains,
)
from trace_bench.core.store import bounded_lines, stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.grpo import one_training, train_once
from trace_bench.methods.making import (
    FULL,
    IDLE,
    Mix,
    TaskSettings,
    draw,
    generator,
    interleave,
    play,
    seeded,
)

SUITE, IMAGE = "awm", "awm"
SOURCE = """
from trace_bench.envs.awm import world
make_task, reference, Env = world(SCENARIOS)
"""
GENERATOR = Need(
    "env",
    Synthesizes,
    "docs/environments.md",
    "With method.environments, a folder in the AgentWorldModel format, its environments are "
    "trained on instead.",
)

DOMAINS = Need(
    "env",
    SynthesizesDomains,
    "docs/environments.md",
    "With method.pool=suite the suite's own environments are trained on alone.",
)


@dataclass(frozen=True)
class UntargetedSettings(TaskSettings):
    """`method.*` of `method=untargeted`."""

    environments: str | None = None
    """A folder in the AgentWorldModel format; None: the suite's own environments."""
    scenarios: int = field(default=16, metadata=number(1))
    """How many environments of that folder."""
    pool: Literal["suite", "broad"] = "suite"
    """Which kinds of environments the tasks are drawn from: one for each capability that the suite
    can generate tasks for, or also those of other domains."""
    breadth: int | None = field(default=None, metadata=number(1))
    """How many kinds of the pool; which, the run's seed says, and of a smaller breadth all are
    among those of a larger one. None: all."""

    def __post_init__(self) -> None:
        if self.environments is not None and (self.pool != "suite" or self.breadth is not None):
            raise UserError(
                f"method.environments={self.environments} is a pool of its own. Leave out "
                "`method.pool` and `method.breadth`; `method.scenarios` is how many are drawn."
            )


class Untargeted(Method):
    """GRPO on synthetic environments that were not chosen by the agent's failures: one adapter on
    all.

    The target's training tasks are not looked at."""

    def __init__(self, settings: UntargetedSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        settings = self.settings
        if settings.environments:
            made = _from_files(lab, settings.environments, settings.scenarios)
        else:
            count = settings.synthetic_tasks
            kinds = _kinds(lab, settings).items()
            made = interleave(
                [draw(lab.suite, n, count, Mix(), lab.seed, "train", make) for n, make in kinds]
            )
        return train_once("untargeted", base, made, lab, reward=settings.reward)

    def plan(self, run: PlannedRun) -> MethodPlan:
        broad = (DOMAINS,) if self.settings.pool == "broad" else ()
        needs = () if self.settings.environments else (GENERATOR, *broad)
        return replace(one_training(run, "untargeted"), needs=needs)


def _kinds(lab: Lab, settings: UntargetedSettings) -> dict[str, Callable[[int], Task]]:
    """What makes the tasks of each kind of the pool (or of `breadth` of them), by its name."""
    suite = generator(lab.suite)
    kinds: dict[str, Callable[[int], Task]] = {
        name: partial(suite.synthetic, name) for name in suite.capabilities()
    }
    if settings.pool == "broad":
        others = lab.suite
        if not isinstance(others, SynthesizesDomains):
            raise UserError(
                f"{others.name}/{others.variant} has no environments of other domains. Set "
                "`method.pool` to suite, or change `env`."
            )
        kinds |= {name: partial(others.synthetic_in, name) for name in others.domains()}
    if settings.breadth is None:
        return kinds
    if settings.breadth > len(kinds):
        raise UserError(
            f"method.breadth={settings.breadth}, and method.pool={settings.pool} has {len(kinds)} "
            f"kinds of environments: {', '.join(kinds)}. Lower `method.breadth`."
        )
    names = list(kinds)
    random.Random(stable_seed(lab.seed, "untargeted", "kinds")).shuffle(names)
    chosen = names[: settings.breadth]
    lab.log(f"{len(chosen)} of {len(kinds)} kinds of environments: {', '.join(chosen)}")
    return {name: kinds[name] for name in chosen}


def _from_files(lab: Lab, folder: str, count: int) -> tuple[Task, ...]:
    """The tasks of the drawn scenarios that can be run and are not solved by doing nothing."""
    scenarios = read(folder, count, stable_seed(lab.seed, "untargeted", "scenarios"))
    suite = lab.generated_suite(SUITE, SOURCE, {"SCENARIOS": scenarios}, image=IMAGE)
    total = int(seeded(suite, 0).data["of"])
    kept: list[Task] = []
    faults: list[str] = []
    for seed in range(total):
        name = f"task {seed}"
        try:
            task = seeded(suite, seed)
            name = f"{task.data['scenario']}/{task.data['task']}"
            idle = play(suite, task, (), IDLE)
        except (EpisodeError, SourceError) as error:
            faults.append(f"{name}: {error}")
            continue
        if idle is not None and idle.similarity < FULL:
            kept.append(task)
    lab.log(
        f"{len(kept)} of {total} tasks of {len(scenarios)} scenarios can be trained on; "
        f"{len(faults)} cannot be run" + (f", such as {faults[0]}" if faults else "")
    )
    if not kept:
        raise UserError(
            f"no task of method.environments={folder} can be trained on. Raise `method.scenarios`."
        )
    random.Random(stable_seed(lab.seed, "untargeted", "order")).shuffle(kept)
    return tuple(kept)


# -- a folder in the AgentWorldModel format ---------------------------------------------------

TASKS, VERIFIERS = "gen_tasks.jsonl", "gen_verifier.pure_code.jsonl"
PARTS = {
    "db_schema": ("gen_db.jsonl", "db_schema"),
    "sample_data": ("gen_sample.jsonl", "sample_data"),
    "api_spec": ("gen_spec.jsonl", "api_spec"),
    "code": ("gen_envs.jsonl", "full_code"),
}
LONGEST = 64 * 2**20  # bytes of a line
MOST = 12 * 2**20  # characters that one worker is sent


def read(folder: str, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` scenarios, drawn with the seed, each whole; the files are read once and not kept.
    Raises UserError for a folder without them, and when fewer whole scenarios are there."""
    place = Path(folder)
    names = sorted(str(line["scenario"]) for line in _lines(place / TASKS))
    random.Random(seed).shuffle(names)
    chosen: dict[str, dict[str, Any]] = {n: {"name": n, "verifiers": {}} for n in names}
    for line in _lines(place / TASKS):
        chosen[str(line["scenario"])]["tasks"] = line.get("tasks")
    for key, (file, inside) in PARTS.items():
        for line in _lines(place / file):
            if (found := chosen.get(str(line["scenario"]))) is not None:
                found[key] = line.get(inside)
    for line in _lines(place / VERIFIERS):
        code = (line.get("verification") or {}).get("code")
        found = chosen.get(str(line["scenario"]))
        if found is not None and code and str(line.get("task_idx", "")).isdigit():
            found["verifiers"][str(line["task_idx"])] = code
    whole = [s for s in map(_usable, chosen.values()) if s is not None]
    if len(whole) < count:
        raise UserError(
            f"method.environments={folder} has {len(whole)} whole scenarios; asked for: {count}. "
            "Change `method.scenarios`."
        )
    drawn = whole[:count]
    if (size := len(json.dumps(drawn))) > MOST:
        raise UserError(
            f"method.scenarios={count} are {size} characters; allowed: {MOST}. Ask for fewer."
        )
    return drawn


def _usable(scenario: dict[str, Any]) -> dict[str, Any] | None:
    """The scenario without tasks that cannot be verified; None when a part is missing."""
    tasks = scenario.get("tasks")
    if not isinstance(tasks, list) or not all(scenario.get(key) for key in PARTS):
        return None
    verifiers = {n: code for n, code in scenario["verifiers"].items() if int(n) < len(tasks)}
    return {**scenario, "verifiers": verifiers} if verifiers else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise UserError(
            f"method.environments={path.parent} has no {path.name}; needed: a folder in the "
            f"AgentWorldModel format, with {TASKS}, {VERIFIERS} and "
            f"{', '.join(file for file, _ in PARTS.values())}. Change `method.environments`."
        )
    for n, text in bounded_lines(path, LONGEST, "Change `method.environments`."):
        try:
            line = json.loads(text)
            line["scenario"] = line.get("scenario") or line["name"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}, line {n} is no scenario: {type(error).__name__}: {error}."
            ) from error
        yield line
