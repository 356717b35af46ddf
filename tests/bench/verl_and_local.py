"""trainer=verl against trainer=local: the same tasks, seeds, recipe and budget. Learning curves in
one figure, a table of what comes out.

    python tests/bench/verl_and_local.py --seeds 0 1 2 --budget 640 --out results/verl
    python tests/bench/verl_and_local.py --redraw      # the figure again from the curves there

Needs verl (`pip install -e '.[verl,plots]'`); about two minutes a seed on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from trace_bench.core.store import read_json, read_lines
from trace_bench.results import figures
from trace_bench.results.statistics import paired_difference

WINDOW = 8  # iterations of a running mean
TRAINERS = {
    "local": ["trainer=local"],
    "verl": ["trainer=verl", "trainer.device=cpu", "trainer.gpus=2"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget", type=int, default=640)
    parser.add_argument("--runs", type=Path, default=Path("runs/verl_and_local"))
    parser.add_argument("--out", type=Path, default=Path("results/verl"))
    parser.add_argument("--redraw", action="store_true", help="the figure from the curves in --out")
    chosen = parser.parse_args()
    kept = chosen.out / "verl_and_local.json"
    if chosen.redraw:
        figure(read_json(kept), chosen.budget, chosen.out / "verl_and_local")
        return
    folders = {
        (name, seed): run(chosen.runs / f"{name}-{seed}", name, seed, chosen.budget)
        for seed in chosen.seeds
        for name in TRAINERS
    }
    chosen.out.mkdir(parents=True, exist_ok=True)
    text = table(folders, chosen.seeds, chosen.budget)
    print(text)
    (chosen.out / "verl_and_local.md").write_text(text)
    curves = {f"{n}-{s}": curve(f) for (n, s), f in folders.items()}
    kept.write_text(json.dumps(curves, indent=1) + "\n")
    figure(curves, chosen.budget, chosen.out / "verl_and_local")


def run(folder: Path, name: str, seed: int, budget: int) -> Path:
    """The run, resumed or answered at once if it is there."""
    command = [sys.executable, "-m", "trace_bench", "method=grpo", "env=toolsandbox"]
    command += [*TRAINERS[name], f"budget={budget}", f"seed={seed}", "checkpoints=[]"]
    subprocess.run([*command, f"run_dir={folder}"], check=True, stdout=subprocess.DEVNULL)
    return folder


def curve(folder: Path) -> list[dict[str, Any]]:
    """Metrics by iteration."""
    keys = ("spent", "reward", "success", "constant_share", "logprob_difference_mean", "kl")
    lines = [m for m in read_lines(folder / "metrics.jsonl") if m.get("phase") == "training"]
    return [{key: line[key] for key in keys} for line in lines]


def successes(folder: Path) -> dict[str, float]:
    """Of the final agent, by task."""
    lines = [r for r in read_lines(folder / "evaluation.jsonl") if r["agent"] == "final"]
    return {str(r["task"]): float(r["score"]["success"]) for r in lines}


def table(folders: dict[tuple[str, int], Path], seeds: list[int], budget: int) -> str:
    lines = [
        f"GRPO on the embedded suite, {budget} rollouts, test split; verl: two processes on a CPU.",
        "",
        "| seed | base | local | verl | verl - local | p | training reward, last quarter: local | "
        "verl | largest mean difference of log-probabilities, verl |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for seed in seeds:
        a, b = folders["local", seed], folders["verl", seed]
        base = read_json(a / "summary.json")["base_score"]["success"]
        left, right = successes(a), successes(b)
        gap = paired_difference(right, left)
        late = [_late([m["reward"] for m in curve(f)]) for f in (a, b)]
        apart = max(m["logprob_difference_mean"] or 0.0 for m in curve(b))
        lines.append(
            f"| {seed} | {base:.3f} | {fmean(left.values()):.3f} | {fmean(right.values()):.3f} "
            f"| {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] | {gap.p_value:.2f} "
            f"| {late[0]:.3f} | {late[1]:.3f} | {apart:.1e} |"
        )
    return "\n".join(lines) + "\n"


def _late(values: list[float]) -> float:
    return fmean(values[-max(1, len(values) // 4) :])


def figure(curves: dict[str, list[dict[str, Any]]], budget: int, path: Path) -> None:
    """Mean and range over seeds of the training reward, a line a trainer."""
    drawn, ((axes,),) = figures.panels(1, 1, (5.4, 3.6))
    for name, colour, dashes in (("local", "#0072B2", "-"), ("verl", "#D55E00", "--")):
        each = [c for key, c in curves.items() if key.rpartition("-")[0] == name]
        least = min(len(c) for c in each)
        values = np.array([running([m["reward"] for m in c[:least]]) for c in each])
        x = [m["spent"] for m in each[0][:least]]
        axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        axes.plot(x, values.mean(0), color=colour, linestyle=dashes, label=f"trainer {name}")
    axes.set_xlabel("rollouts")
    axes.set_ylabel("mean reward")
    axes.set_ylim(0, 1.05)
    axes.legend(loc="lower right")
    caption = (
        f"GRPO on the embedded phone world, {budget} rollouts. Lines are means over {len(each)} "
        f"seeds of running means over {WINDOW} iterations; bands are the range over seeds."
    )
    figures.finish(drawn, "The same training by two trainers", caption, path)


def running(values: Sequence[float]) -> list[float]:
    return [fmean(values[max(0, n - WINDOW + 1) : n + 1]) for n in range(len(values))]


if __name__ == "__main__":
    main()
