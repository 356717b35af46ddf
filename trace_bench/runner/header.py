"""What a run is about to do, in a few lines at its start."""

from __future__ import annotations

from trace_bench.play.suites import asks_user
from trace_bench.runner.bench import Bench, acting_model, wanted


def header(bench: Bench) -> list[str]:
    """Method, environment, agent, budget and folder of a run, and what is known to add nothing."""
    settings, parts, held_out = bench.settings, bench.parts, wanted(bench)
    suite, policy = bench.suite, settings.policy
    trained = f", trainer={parts['trainer'].label}" if bench.plan.trains else ""
    trials = f", {held_out.trials} trials each" if held_out.trials > 1 else ""
    learned = f"{len(bench.train)} training tasks, " if bench.plan.learns else ""
    lines = [
        f"method={parts['method'].label} on {suite.name}/{suite.variant}: {learned}"
        f"{len(held_out.tasks)} held-out tasks ({settings.evaluation.split}{trials}), "
        f"protocol {settings.protocol}",
        f"agent: {acting_model(bench)}, policy={parts['policy'].label}{trained}",
        *([f"begins with: {settings.agent}"] if settings.agent else []),
        f"budget: {settings.budget} rollouts, seed {settings.seed}",
        f"folder: {bench.place.folder}",
    ]
    greedy = policy.eval_temperature == 0 and bench.policy.repeatable
    if greedy and held_out.trials > 1 and not asks_user(suite):
        lines.append(
            f"note: evaluation.trials={held_out.trials} with policy.eval_temperature=0 runs the "
            "same episodes again: this policy repeats itself"
        )
    return lines
