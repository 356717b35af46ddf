"""A job's folder: what it says, and whether it is this job's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, TrainingJob
from trace_bench.core.store import fingerprint, write_text
from trace_bench.core.types import AgentSpec, Task, to_json
from trace_bench.trainers.schedule import task_of_group
from trace_bench.trainers.settings import VerlSettings, full_iterations
from trace_bench.trainers.verl.spec import TRAIN, VALIDATION, JobSpec, row

ELSEWHERE = ("ray_address", "stall", "restarts", "deadline", "workers")
"""Settings that do not change what is trained."""


@dataclass(frozen=True)
class RunFacts:
    """What a job takes over from its run. `settings`, `suites`: see `JobSpec`; `validation`: the
    development tasks, for verl's own validation; `sweep`: removes what its processes leave."""

    mark: str
    settings: Mapping[str, Any]
    suites: str
    context: int
    max_turns: int
    max_tokens: int
    validation: Callable[[Lab], Sequence[Task]]
    sweep: Callable[[], None] = lambda: None


def spec_of(job: TrainingJob, lab: Lab, settings: VerlSettings, facts: RunFacts) -> JobSpec:
    """What verl's processes are told of a job."""
    used = {task.env for task in job.tasks}
    return described(
        settings,
        facts,
        name=job.name,
        seed=lab.seed,
        reward=job.reward,
        agent=job.agent,
        shape=full_iterations(job.rollouts, settings, job.name),
        sources=[to_json(s) for s in lab.sources() if f"generated/{s.name}" in used],
    )


def described(
    settings: VerlSettings,
    facts: RunFacts,
    *,
    name: str,
    seed: int,
    reward: str,
    agent: AgentSpec,
    shape: tuple[int, int],
    sources: Sequence[Mapping[str, Any]] = (),
) -> JobSpec:
    """A job of the run. `shape`: iterations, and groups of each."""
    return JobSpec(
        name=name,
        run=facts.mark,
        seed=seed,
        reward=reward,
        model=agent.model,
        agent=to_json(agent),
        trainer=dataclasses.asdict(settings),
        settings=facts.settings,
        suites=facts.suites,
        iterations=shape[0],
        groups=shape[1],
        group_size=settings.group_size,
        decay=settings.decay,
        context=facts.context,
        deadline=settings.deadline,
        max_turns=facts.max_turns,
        max_tokens=facts.max_tokens,
        sources=sources,
    )


def claim(folder: Path, job: TrainingJob, spec: JobSpec, settings: VerlSettings) -> None:
    """Marks the folder of an adapter's versions as this job's. Raises UserError when it is
    another's."""
    recipe = dataclasses.asdict(settings)
    for key in ELSEWHERE:
        del recipe[key]
    data = {**to_json(spec), "settings": recipe, "tasks": [t.id for t in job.tasks]}
    for key in ("deadline", "trainer", "suites"):
        del data[key]
    data |= {"model": Path(spec.model).name, "agent": job.agent.version}  # folders may move
    mark, path = fingerprint({**data, "job seed": job.seed}), folder / "job"
    if path.exists() and path.read_text() != mark:
        raise UserError(
            f"{path} belongs to a training job with other settings, tasks or seed. Change the "
            "setting `run_dir`, or remove the folder."
        )
    write_text(path, mark)


def prepare(
    folder: Path,
    job: TrainingJob,
    spec: JobSpec,
    settings: VerlSettings,
    validation: Sequence[Task],
) -> None:
    """Everything that verl's processes read. Written again at every start: it follows from the job
    alone."""
    from trace_bench.trainers.adapters import fresh, write_adapter

    spec.write(folder)
    groups = range(spec.iterations * spec.groups)
    table(folder / "tasks.parquet", TRAIN, [task_of(job, g) for g in groups])
    if validation:
        table(folder / "validation.parquet", VALIDATION, validation)
    loop = "trace_bench.trainers.verl.episodes.EpisodeLoop"
    write_text(folder / "agent_loop.yaml", f"- name: trace_bench\n  _target_: {loop}\n")
    layers = fresh(spec.model, settings.target_modules, settings.rank, job.seed)
    write_adapter(folder / "start", layers, lora(settings), spec.model)


def task_of(job: TrainingJob, group: int) -> Task:
    """The task of the job's group of that number."""
    return task_of_group(group, job.tasks, job.seed)


def lora(settings: VerlSettings) -> dict[str, Any]:
    """What an adapter's configuration says."""
    s = settings
    return {"rank": s.rank, "alpha": s.alpha, "target_modules": s.target_modules}


def table(path: Path, split: str, tasks: Sequence[Task]) -> None:
    """The parquet file that verl reads its tasks from, replaced in one step."""
    import pyarrow
    from pyarrow import parquet

    rows = [row(i, split, task, json.dumps(to_json(task))) for i, task in enumerate(tasks)]
    temporary = path.with_name(f".{path.name}.tmp")
    parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
    temporary.replace(path)
