"""Makes the summary of a finished run."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

from trace_bench.core import summary
from trace_bench.core.beginning import totals
from trace_bench.core.protocols import Suite
from trace_bench.core.run_files import CODE, FLOORS, HASHED
from trace_bench.core.store import Lines, file_hash, fingerprint, read_json
from trace_bench.core.types import IN_EPISODES, AgentSpec, Outcome, to_json
from trace_bench.play.suites import about_of, name_of
from trace_bench.runner.bench import Bench
from trace_bench.runner.build import models_in_roles
from trace_bench.runner.evaluation import Evaluation, difference, row, score
from trace_bench.runner.lab import RunLab
from trace_bench.settings.identity import model_path, suite_identity, weights_count

VERSIONS = (
    "inspect-evals", "inspect-ai", "bfcl-eval", "trace-bench", "torch", "transformers", "peft",
    "numpy", "scipy", "hydra-core",
)  # fmt: skip
ROW_NAMES = {"idle": "idle floor", "random": "random floor", "reference": "reference ceiling"}


def summarize(
    bench: Bench,
    evaluation: Evaluation,
    lab: RunLab,
    agent: AgentSpec,
    yardsticks: Mapping[str, summary.TrainedApart],
    seconds: Mapping[str, float],
) -> summary.Summary:
    """The summary for the closing table and later comparisons. `seconds`: wall time by phase."""
    settings, parts, place, plan = bench.settings, bench.parts, bench.place, bench.plan
    suite, about, borrowed = _facts_of(bench.suite, settings.evaluation.split)
    final, base = evaluation.outcomes["final"], evaluation.outcomes["base"]
    routed = evaluation.routed
    weights = None if parts["policy"].declared.scripted else model_path(settings, parts)
    # The scripted bounds may lack a score.
    agents = {name: some for name, some in evaluation.outcomes.items() if name not in FLOORS}
    unscored = [name for name, some in agents.items() if all(o.lost for o in some)]
    method, algorithm = parts["method"].label, _algorithm(bench, lab)
    (unspent, why), began = lab.unspent(), bench.beginning
    return summary.Summary(
        complete=not unscored,
        unscored=tuple(unscored),
        method=method,
        learns=plan.learns,
        marks=tuple(plan.marks),
        env=parts["env"].label,
        suite=settings.env.suite or "",
        suite_name="" if suite == f"{parts['env'].label}/{settings.env.suite}" else suite,
        suite_data=about,
        borrowed=borrowed,
        models={
            name: {k: getattr(how, k) for k in summary.SHOWN}
            for name, how in models_in_roles(settings).items()
        },
        split=settings.evaluation.split,
        train_split=settings.env.train_split,
        dev_split=settings.env.dev_split,
        protocol=settings.protocol,
        accounting=settings.accounting,
        policy=parts["policy"].label,
        model=settings.model.name,
        algorithm=algorithm,
        parameters=None if weights is None else weights_count(weights),
        experiment=settings.experiment,
        rehearsal=settings.rehearsal,
        seed=settings.seed,
        budget=settings.budget,
        rollouts={**lab.ledger.by_purpose(), "evaluation": evaluation.count},
        spent=lab.ledger.spent,
        unspent=unspent,
        why_unspent=why,
        demonstrations=plan.demonstrations,
        beginning=None
        if began is None
        else summary.Began(began.sha256, began.runs, *totals(began.runs, settings.accounting)),
        yardsticks=yardsticks,
        **_scores(final, base),
        worlds=_by_world(bench, final, base),
        table=_rows(bench, summary.titled(method, algorithm), evaluation, agent, yardsticks),
        routing=None if routed is None else routed.figures,
        usage=_usage(bench),
        health=summary.Health(
            **vars(lab.training), method=lab.episodes, evaluation=evaluation.health()
        ),
        curve=tuple(evaluation.points),
        curve_caveat=plan.caveat,
        capabilities=selected_capabilities(place.folder),
        adapters=tuple(adapter.name for adapter in agent.adapters),
        wall_s={name: round(spent, 2) for name, spent in seconds.items()},
        versions=versions(),
        machine=machine(),
        git=git_state(),
        code=code_of(place.folder),
        origins={g: to_json(p.origin) for g, p in parts.items() if p.origin is not None},
        fingerprint=place.fingerprint,
        hashes={name: file_hash(place.folder / name) for name in HASHED},
    )


def _algorithm(bench: Bench, lab: RunLab) -> str:
    """Which algorithm trained, or which class for a trainer without one; "" without training."""
    part = bench.parts["trainer"]
    trained = part.options.get("algorithm") or {"name": part.origin and part.origin.attribute}
    return str(trained["name"] or "") if lab.ledger.by_purpose().get("training") else ""


def _scores(final: Sequence[Outcome], base: Sequence[Outcome]) -> dict[str, Any]:
    return {"score": score(final), "base_score": score(base), "difference": difference(final, base)}


def _usage(bench: Bench) -> dict[str, Any]:
    counts = bench.policy.usage()
    return {**bench.roles.usage(), **({"policy": counts} if counts else {})}


def _by_world(
    bench: Bench, final: Sequence[Outcome], base: Sequence[Outcome]
) -> dict[str, summary.Compared]:
    """The scores in each of several worlds; {} where there is one."""
    key = bench.parts["env"].declared.world_key
    world_of = {t.id: str(t.data.get(key)) for t in bench.held_out} if key else {}
    worlds = {}
    for world in dict.fromkeys(world_of.values()):
        there = ([o for o in some if world_of.get(o.task) == world] for some in (final, base))
        tasks = tuple(sorted(task for task in world_of if world_of[task] == world))
        worlds[world] = summary.Compared(**_scores(*there), tasks=tasks)
    return worlds


def _rows(
    bench: Bench,
    title: str,
    evaluation: Evaluation,
    agent: AgentSpec,
    yardsticks: Mapping[str, summary.TrainedApart],
) -> tuple[summary.AgentRow, ...]:
    """The closing table: base and the method, by its `title`, then what bounds them."""
    outcomes, routed = evaluation.outcomes, evaluation.routed
    base = outcomes["base"]
    rows = [row("base", base, None)]
    if bench.plan.learns or agent.version != base[0].version:
        rows.append(row(title, outcomes["final"], base))
    if routed is not None:
        rows.append(row("oracle route", routed.oracle, base))
        rows.append(row(f"only {routed.figures.single}", routed.single_outcomes, base))
    for name, yardstick in yardsticks.items():
        rows.append(row(yardstick.title, outcomes[name], base))
    there = [name for name in ROW_NAMES if name in outcomes]
    rows += [row(ROW_NAMES[name], outcomes[name], base) for name in there]
    return tuple(row for row in rows if row is not None)


def selected_capabilities(folder: Path) -> tuple[str, ...] | None:
    """Names of the selected capabilities, no untrained controls; None without an analysis."""
    path = folder / "capabilities.json"
    if not path.exists():
        return None
    report = read_json(path)
    trained = report.get("outcome", {}).get("trained", ())
    selected = [c for c in report.get("candidates", ()) if c["selected"]]
    return tuple(c["name"] for c in selected if not c.get("control") or c["name"] in trained)


def versions() -> dict[str, str | None]:
    """Versions of the packages that compute the results; None for one that is not installed."""
    version_of: dict[str, str | None] = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            version_of[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            version_of[name] = None
    return version_of


def machine() -> dict[str, Any]:
    """The kind of machine, which decides the order of sums and so the last digits: its processor,
    and where torch is used the kernels that it chose (`ATEN_CPU_CAPABILITY`) and its threads."""
    cpus = Path("/proc/cpuinfo")  # of Linux
    named = re.search(r"model name\s*:\s*(.+)", cpus.read_text() if cpus.exists() else "")
    processor = named[1] if named else platform.processor() or platform.machine()
    kind: dict[str, Any] = {"processor": processor}
    if (torch := sys.modules.get("torch")) is not None:
        kind["kernels"] = torch.backends.cpu.get_cpu_capability()
        kind["threads"] = torch.get_num_threads()
    return kind


def git_state() -> summary.Commit | None:
    """The checkout's commit, and whether it has changed since; None outside a checkout."""
    home = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(home), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", "__main__.py"):
            return None
        changed = git("status", "--porcelain", "--", ".", "../conf", "../pyproject.toml")
        return summary.Commit(git("rev-parse", "HEAD"), bool(changed))
    except (OSError, subprocess.CalledProcessError):
        return None


def code_of(folder: Path) -> tuple[str, ...]:
    """Hashes of the package that has computed the run of a folder, in which this one's is kept."""
    home = Path(__file__).resolve().parents[1]
    files = {str(p.relative_to(home)): file_hash(p) for p in sorted(home.rglob("*.py"))}
    with closing(Lines(folder / CODE, str)) as hashes:
        if (here := fingerprint(files)) not in hashes:
            hashes.append(here)
        return tuple(dict.fromkeys(hashes))


SPLITS = ("train_split", "dev_split", "eval_split", "train_tasks")  # settings of env, of training


def _facts_of(suite: Suite, split: str) -> tuple[str, dict[str, Any], summary.Borrowed | None]:
    """(`name/variant` of the suite whose tasks the held-out `split` has, its own facts, what the
    summary says about borrowed tasks: None for a suite with tasks of its own)."""
    lender = suite.lender(split)
    if lender is None:
        return name_of(suite), about_of(suite), None
    env = suite_identity(lender.env, lender.variant)
    roles = () if lender.suite.asks_user() else IN_EPISODES
    borrowed = summary.Borrowed(
        env={key: value for key, value in env.items() if key not in SPLITS},
        split=lender.split,
        training=summary.TrainingSuite(name_of(suite), about_of(suite)),
        training_settings=("env", *(f"llm.{role}" for role in roles)),
    )
    return name_of(lender.suite), about_of(lender.suite), borrowed
