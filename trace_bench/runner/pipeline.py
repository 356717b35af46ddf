"""One run: base evaluation, the method within its budget, final evaluation, the closing table.

Everything a run does is in its folder, so the same command resumes an interrupted run and answers
at once for a finished one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Policy, Suite
from trace_bench.core.store import write_json
from trace_bench.core.types import CHARGED, AgentSpec, Task
from trace_bench.llm.roles import Roles
from trace_bench.runner import report
from trace_bench.runner.build import (
    check_budget,
    check_trainer,
    checkpoints,
    foreign_suites,
    make_method,
    make_policy,
    make_roles,
    make_suite,
    make_trainer,
    scripted,
)
from trace_bench.runner.clock import TIMING, Clock
from trace_bench.runner.evaluate import Evaluator, Outcome, Plan, Routing, only, routing
from trace_bench.runner.folder import (
    SUMMARY,
    claim,
    locate,
    only_writer,
    stored_summary,
)
from trace_bench.runner.lab import RunLab
from trace_bench.runner.progress import Progress
from trace_bench.runner.summary import FLOORS, summarize
from trace_bench.settings.compose import UNTRAINED, acting_model, identity
from trace_bench.settings.schema import Settings
from trace_bench.trackers.jsonl import JsonlTracker, Tracker, make_tracker


def run(settings: Settings) -> int:
    """Runs, resumes or answers; prints the closing table and `run: <folder>`. Returns 0.

    Raises UserError for a folder of other settings, a budget that is too small, a full disk, ...
    """
    if settings.dry_run:
        from trace_bench.runner.forecast import describe

        print(describe(settings), flush=True)
        return 0
    folder, who, mark = locate(settings)
    checkpoints(settings)  # refused now rather than late
    if stored_summary(folder) is None:
        check_trainer(settings, new=not folder.exists())
    with only_writer(folder):
        resumed = claim(folder, who, settings)
        summary = stored_summary(folder) if resumed else None
        if summary is not None:
            print("this run is finished; its stored result:", file=sys.stderr)
            _tell_agent(settings, folder, summary)
        else:
            summary = _execute(settings, folder, mark, resumed)
    print(report.closing(summary))
    if (large := _large(settings)) is not None:
        print(large)
    print(f"run: {folder}", flush=True)
    return 0


def _tell_agent(settings: Settings, folder: Path, summary: Mapping[str, Any]) -> None:
    """A W&B agent waits for the score of the run that it started, also where that was finished
    before."""
    if settings.tracker.name == "wandb" and "WANDB_RUN_ID" in os.environ:
        with closing(make_tracker(settings.tracker, folder, identity(settings))) as tracker:
            tracker.conclude(summary)


def _large(settings: Settings) -> str | None:
    """What the method is worth with many training tasks: the same settings with
    `env.train_split=train_large`, a run of its own. None where it would say nothing new."""
    env = settings.env
    if settings.method["name"] in UNTRAINED or env.train_split != "train" or env.train_tasks:
        return None
    other = replace(settings, env=replace(env, train_split="train_large"), run_dir=None)
    summary = stored_summary(locate(other)[0])
    if summary is None:
        return "with train_large: not run yet; add env.train_split=train_large to the command"
    return report.beside("with train_large", summary)


@dataclass
class _Run:
    """The parts of one run in progress."""

    settings: Settings
    folder: Path
    suite: Suite
    mark: str
    policy: Policy
    roles: Roles
    progress: Progress
    clock: Clock
    held_out: Evaluator
    curve: Evaluator
    validation: Evaluator
    plan: Plan
    points: list[dict[str, Any]] = field(default_factory=list)

    def checkpoint(self, spent: int, agent: AgentSpec, until: int) -> None:
        """Evaluates the agent, which has spent so many rollouts, on the dev split if a checkpoint
        lies before `until`, so that no point shows an agent that spent more than it says."""
        reached = {p["checkpoint"] for p in self.points}
        due = [c for c in checkpoints(self.settings) if c not in reached and c < until]
        if not due:
            return
        plan = Plan(tuple(self.suite.tasks(self.settings.env.dev_split)))
        outcomes = self.curve.evaluate(f"checkpoint {due[-1]}", agent, plan, self.policy)
        self.progress.phase("method")
        figures = report.score(outcomes)
        for c in due:
            self.points.append({"checkpoint": c, "rollouts": spent, **figures})


def _execute(settings: Settings, folder: Path, mark: str, resumed: bool) -> dict[str, Any]:
    """Plays whatever is not on disk yet and writes the summary."""
    started = time.monotonic()
    with ExitStack() as parts:
        roles = parts.enter_context(closing(make_roles(settings, folder / "llm.jsonl")))
        suite = make_suite(settings, mark, roles.ask)
        parts.callback(getattr(suite, "close", lambda: None))
        train = training_tasks(settings, suite)
        check_budget(settings, len(train))
        progress = Progress(settings.budget)
        parts.callback(progress.close)
        policy = parts.enter_context(closing(make_policy(settings, suite)))
        run = _assemble(settings, folder, mark, suite, policy, roles, progress)
        parts.callback(run.held_out.close)
        parts.callback(run.curve.close)
        parts.callback(run.validation.close)
        lab = parts.enter_context(closing(_lab(run)))
        if resumed:
            there = lab.ledger.spent
            progress.say(f"resuming {folder}: {there} of {settings.budget} rollouts are there")
        base = AgentSpec(model=acting_model(settings))
        agent, outcomes, routed = _play(run, lab, base, train)
        validated = _validated_routing(run, base, agent)
        joint = _joint(run, base, train, outcomes)
        run.clock.add("total", time.monotonic() - started)
        rollouts = lab.ledger.by_purpose()
        rollouts["evaluation"] = run.held_out.count + run.curve.count + run.validation.count
        summary = summarize(
            settings,
            folder,
            agent=agent,
            outcomes=outcomes,
            routed=routed,
            validated=validated,
            rollouts=rollouts,
            joint=joint,
            curve=run.points,
            seconds=run.clock.seconds,
            mark=mark,
            about=dict(getattr(suite, "about", dict)()),
            llm=costs(run, lab),
        )
        write_json(folder / SUMMARY, summary)
        lab.conclude(summary)
        return summary


def costs(run: _Run, lab: RunLab) -> dict[str, Any]:
    """What models were asked, by role, and how often the agent's tool calls could not be read."""
    usage: dict[str, Any] = dict(run.roles.usage())
    if (own := getattr(run.policy, "usage", None)) is not None:
        usage["policy"] = own()
    evaluated = run.held_out.everything()
    turns = {"method": lab.turns, "evaluation": sum(o.turns for o in evaluated)}
    bad = {"method": lab.malformed, "evaluation": sum(o.malformed for o in evaluated)}
    return {"usage": usage, "turns": turns, "malformed": bad}


def _play(
    run: _Run, lab: RunLab, base: AgentSpec, train: Sequence[Task]
) -> tuple[AgentSpec, dict[str, list[Outcome]], Routing | None]:
    """The phases in order: base agent, floors, method, final agent, every adapter alone."""
    method = make_method(run.settings)
    outcomes: dict[str, list[Outcome]] = {}
    with run.clock.phase("base evaluation"):
        outcomes["base"] = run.held_out.evaluate("base", base, run.plan, run.policy, keep=True)
    with run.clock.phase("floors"):
        for name in FLOORS:
            if name != "reference" or getattr(run.suite, "has_reference", True):
                outcomes[name] = _floor(run, name)
    with run.clock.phase("method"):
        run.progress.phase("method")
        lab.checkpoint(base)
        agent = method.fit(base, train, lab)
        run.checkpoint(lab.spent, agent, run.settings.budget + 1)
        write_json(run.folder / "agent.json", agent)
    for purpose, seconds in lab.seconds.items():
        run.clock.add(f"method/{purpose} rollouts", seconds)
    with run.clock.phase("final evaluation"):
        outcomes["final"] = _final(run, base, agent, outcomes["base"])
    with run.clock.phase("evaluation of every adapter"):
        routed = _routing(run, agent, outcomes)
    return agent, outcomes, routed


def _joint(
    run: _Run, base: AgentSpec, train: Sequence[Task], outcomes: dict[str, list[Outcome]]
) -> dict[str, int] | None:
    """TRACE's yardstick: one adapter on all its synthetic environments, which needs no router. The
    same analysis and calibration, then one training with all that the budget leaves. It is trained
    apart, in the folder `joint` with a ledger of its own, and adds `outcomes["joint"]`.

    Returns its rollouts by purpose; None when it was not asked for or there is nothing to join."""
    settings = run.settings
    separate = settings.method["name"] == "trace" and settings.method["adapters"] != "joint"
    if not (separate and settings.evaluation.joint):
        return None
    with run.clock.phase("one joint adapter"), closing(_lab(run, joint=True)) as lab:
        run.progress.phase("one joint adapter", total=settings.budget)
        agent = make_method(settings).fit(base, train, lab)
        rollouts = lab.ledger.by_purpose()
    with run.clock.phase("evaluation of the joint adapter"):
        if not agent.adapters:
            outcomes["joint"] = run.held_out.copy("joint", outcomes["base"])
        else:
            outcomes["joint"] = run.held_out.evaluate("joint", agent, run.plan, run.policy)
    return rollouts


def _lab(run: _Run, joint: bool = False) -> RunLab:
    settings = run.settings
    folder = run.folder / "joint" if joint else run.folder
    return RunLab(
        folder,
        seed=settings.seed,
        budget=settings.budget,
        suite=run.suite,
        settings={**settings.method, "adapters": "joint"} if joint else settings.method,
        trainer=make_trainer(settings, run.mark),
        policy=run.policy,
        tracker=_tracker(run, folder, joint),
        progress=run.progress,
        shown=not joint,
        max_turns=settings.policy.max_turns,
        max_tokens=settings.policy.max_tokens,
        charged=CHARGED[settings.accounting],
        on_checkpoint=None if joint else run.checkpoint,
        roles=run.roles,
        foreign=foreign_suites(settings, run.mark),
    )


def _tracker(run: _Run, folder: Path, joint: bool) -> Tracker:
    """The yardstick's metrics stay in its folder: the tracker's curves are the method's own."""
    if joint:
        return JsonlTracker(folder / "metrics.jsonl")
    return make_tracker(run.settings.tracker, folder, identity(run.settings))


def _assemble(
    settings: Settings,
    folder: Path,
    mark: str,
    suite: Suite,
    policy: Policy,
    roles: Roles,
    progress: Progress,
) -> _Run:
    def evaluator(name: str, trajectories: Path | None) -> Evaluator:
        return Evaluator(
            folder / name,
            suite=suite,
            seed=settings.seed,
            temperature=settings.policy.eval_temperature,
            max_turns=settings.policy.max_turns,
            max_tokens=settings.policy.max_tokens,
            retries=settings.evaluation.retries,
            progress=progress,
            trajectories=trajectories,
        )

    evaluation = settings.evaluation
    tasks = tuple(suite.tasks(evaluation.split))[: evaluation.limit]
    return _Run(
        settings=settings,
        folder=folder,
        suite=suite,
        mark=mark,
        policy=policy,
        roles=roles,
        progress=progress,
        clock=Clock(folder / TIMING),
        held_out=evaluator("evaluation.jsonl", folder / "evaluation_trajectories.jsonl"),
        curve=evaluator("curve.jsonl", None),
        validation=evaluator("routing.jsonl", None),
        plan=Plan(tasks, evaluation.trials),
    )


def training_tasks(settings: Settings, suite: Suite) -> Sequence[Task]:
    """What the method may train on; under the paper's protocol the tasks that are reported."""
    if settings.protocol == "paper":
        return suite.tasks(settings.evaluation.split)[: settings.evaluation.limit]
    tasks, wanted = suite.tasks(settings.env.train_split), settings.env.train_tasks
    if wanted is not None and wanted > len(tasks):
        raise UserError(
            f"env.train_tasks={wanted} is more than the split {settings.env.train_split} has; "
            f"allowed: 1 to {len(tasks)}, or null for all. Change `env.train_tasks`."
        )
    return tasks[:wanted]


def _floor(run: _Run, name: str) -> list[Outcome]:
    """A scripted agent, really played."""
    agent = AgentSpec(model=name, version=name)
    return run.held_out.evaluate(name, agent, run.plan, scripted(name, run.suite))


def _final(
    run: _Run, base: AgentSpec, agent: AgentSpec, base_outcomes: list[Outcome]
) -> list[Outcome]:
    if not agent.adapters and agent.prompt == base.prompt and agent.model == base.model:
        return run.held_out.copy("final", base_outcomes)
    return run.held_out.evaluate("final", agent, run.plan, run.policy, keep=True)


def _validated_routing(run: _Run, base: AgentSpec, agent: AgentSpec) -> Routing | None:
    """The router against the oracle on the development tasks, where it may be looked at while
    something is still to be decided."""
    if agent.router is None or not run.settings.evaluation.routing:
        return None
    evaluator = run.validation
    plan = Plan(tuple(run.suite.tasks(run.settings.env.dev_split)))
    with run.clock.phase("evaluation of routing"):
        choices: dict[str | None, Sequence[Outcome]] = {
            None: evaluator.evaluate("base", base, plan, run.policy)
        }
        for adapter in agent.adapters:
            spec = only(agent, adapter.name)
            choices[adapter.name] = evaluator.evaluate(adapter.name, spec, plan, run.policy)
        return routing(choices, evaluator.evaluate("routed", agent, plan, run.policy))


def _routing(run: _Run, agent: AgentSpec, outcomes: dict[str, list[Outcome]]) -> Routing | None:
    """Every adapter on every held-out task, where there is a choice to be made."""
    if not agent.adapters or (len(agent.adapters) == 1 and agent.router is None):
        return None
    choices: dict[str | None, Sequence[Outcome]] = {None: outcomes["base"]}
    for adapter in agent.adapters:
        spec = only(agent, adapter.name)
        label = f"adapter:{adapter.name}"
        choices[adapter.name] = run.held_out.evaluate(label, spec, run.plan, run.policy)
    return routing(choices, outcomes["final"])
