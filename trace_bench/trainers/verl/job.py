"""A job's folder: writes the files for verl's processes, and checks that no other job owns it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, RunContext, TrainingJob
from trace_bench.core.store import fingerprint, read_bytes, write_text
from trace_bench.core.types import AgentSpec, Task, to_json
from trace_bench.play.suites import generated_key
from trace_bench.trainers.adapters import begin_with
from trace_bench.trainers.course import hint, reference
from trace_bench.trainers.record import start_of
from trace_bench.trainers.settings import VerlSettings, full_iterations
from trace_bench.trainers.verl.spec import HINT, REFERENCE, TRAIN, VALIDATION, JobSpec, row


def spec_of(job: TrainingJob, lab: Lab, settings: VerlSettings, run: RunContext) -> JobSpec:
    """The job description for verl's processes."""
    used = {task.env for task in job.tasks}
    return described(
        settings,
        run,
        name=job.name,
        seed=lab.seed,
        reward=job.reward,
        agent=job.agent,
        shape=full_iterations(job.rollouts, settings, job.name),
        sources=tuple(to_json(s) for s in lab.sources() if generated_key(s.name) in used),
        assignment=job.assignment,
        job_seed=job.seed,
    )


def described(
    settings: VerlSettings,
    run: RunContext,
    *,
    name: str,
    seed: int,
    reward: str,
    agent: AgentSpec,
    shape: tuple[int, int],
    sources: tuple[Mapping[str, Any], ...] = (),
    assignment: Mapping[str, Any] | None = None,
    job_seed: int = 0,
) -> JobSpec:
    """Describes a job of the run. `shape`: (iterations, groups of each)."""
    return JobSpec(
        name=name,
        run=run.fingerprint,
        seed=seed,
        reward=reward,
        agent=agent,
        trainer=settings,
        settings=run.settings,
        suites=run.elsewhere,
        iterations=shape[0],
        groups=shape[1],
        context=context(run),
        max_turns=run.max_turns,
        max_tokens=run.max_tokens,
        thinking=run.thinking,
        thoughts=run.thoughts,
        sources=sources,
        assignment=assignment,
        job_seed=job_seed,
    )


def context(run: RunContext) -> int:
    """Tokens of an episode: with servers, `policy.context`, which must be set; else the limit of
    the local policy. Raises UserError."""
    if run.at_servers:
        if run.context is None:
            raise UserError(
                "trainer=verl needs a limit on an episode's tokens when servers generate the "
                "turns. Set policy.context to the servers' limit (--max-model-len)."
            )
        return run.context
    from trace_bench.policies.loading import load_config
    from trace_bench.policies.local import context_of

    return context_of(load_config(run.model), run.context)


def claim(folder: Path, job: TrainingJob, spec: JobSpec) -> None:
    """Claims the folder of an adapter's versions for this job. Raises UserError if it belongs to
    another job."""
    own = {"settings": spec.trainer.trained(), "tasks": [t.id for t in job.tasks]}
    data = {**to_json(spec), **own}
    for key in ("trainer", "suites", "job_seed"):
        del data[key]
    for key, default in (("assignment", None), ("thoughts", "own")):  # jobs of before have none
        if data[key] == default:
            del data[key]
    data |= {"model": Path(spec.agent.model).name, "agent": job.agent.version}  # folders may move
    digest, path = fingerprint({**data, "job seed": job.seed}), folder / "job"
    if path.exists() and read_bytes(path) != digest.encode():
        raise UserError(
            f"{path} belongs to a training job with other settings, tasks or seed. Change the "
            "setting `run_dir`, or remove the folder."
        )
    write_text(path, digest)


def prepare(
    folder: Path, job: TrainingJob, spec: JobSpec, lab: Lab, validation: Sequence[Task]
) -> None:
    """Writes all files that verl's processes read. Done at every start, since they depend on the
    job alone. Raises UserError where a hint is asked for and the suite has no references."""
    from trace_bench.trainers.adapters import fresh, write_adapter

    spec.write(folder)
    settings, model = spec.trainer, spec.agent.model
    table(folder / "tasks.parquet", TRAIN, job.tasks, [given(settings, lab, t) for t in job.tasks])
    if validation:
        table(folder / "validation.parquet", VALIDATION, validation, [{}] * len(validation))
    loop = "trace_bench.trainers.verl.episodes.EpisodeLoop"
    write_text(folder / "agent_loop.yaml", f"- name: trace_bench\n  _target_: {loop}\n")
    layers = fresh(model, settings.target_modules, settings.rank, job.seed)
    if (start := start_of(job.agent)) is not None:
        begin_with(layers, start, settings)
    write_adapter(folder / "start", layers, lora(settings), model)


def given(settings: VerlSettings, lab: Lab, task: Task) -> dict[str, str]:
    """What verl's processes are told of a task besides the task. Raises UserError for a suite
    without the references that this needs."""
    suite = lab.suite_of(task)
    known = reference(suite, task) if settings.algorithm.references else ()
    return {
        HINT: hint(suite, task) if settings.hinted else "",
        REFERENCE: json.dumps(list(known)),
    }


def lora(settings: VerlSettings) -> dict[str, Any]:
    """The LoRA settings for an adapter's configuration file."""
    s = settings
    return {"rank": s.rank, "alpha": s.alpha, "target_modules": s.target_modules}


def table(path: Path, split: str, tasks: Sequence[Task], own: Sequence[Mapping[str, str]]) -> None:
    """Writes the parquet file from which verl reads its tasks, atomically. `own`: more fields."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        row(n, split, task, json.dumps(to_json(task)), **more)
        for n, (task, more) in enumerate(zip(tasks, own, strict=True))
    ]
    temporary = path.with_name(f".{path.name}.tmp")
    parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
    temporary.replace(path)
