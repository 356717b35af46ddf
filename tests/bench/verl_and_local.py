"""trainer=verl against trainer=local: the same tasks, seeds, recipe and budget. Learning curves in
one figure, a table of what comes out.

    python tests/bench/verl_and_local.py --seeds 0 1 2 --budget 640 --out results/verl

Needs verl (`pip install -e '.[verl,plots]'`); about two minutes a seed on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trace_bench.core.store import read_json, read_lines
from trace_bench.results.statistics import paired_difference

TRAINERS = {
    "local": ["trainer=local", "trainer.patience=100000"],
    "verl": ["trainer=verl", "trainer.device=cpu", "trainer.gpus=2"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget", type=int, default=640)
    parser.add_argument("--runs", type=Path, default=Path("runs/verl_and_local"))
    parser.add_argument("--out", type=Path, default=Path("results/verl"))
    given = parser.parse_args()
    folders = {
        (name, seed): run(given.runs / f"{name}-{seed}", name, seed, given.budget)
        for seed in given.seeds
        for name in TRAINERS
    }
    given.out.mkdir(parents=True, exist_ok=True)
    text = table(folders, given.seeds, given.budget)
    print(text)
    (given.out / "verl_and_local.md").write_text(text)
    (given.out / "verl_and_local.json").write_text(
        json.dumps({f"{n}-{s}": curve(f) for (n, s), f in folders.items()}, indent=1) + "\n"
    )
    figure(folders, given.seeds, given.out / "verl_and_local")


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
            f"| {seed} | {base:.3f} | {_mean(left.values()):.3f} | {_mean(right.values()):.3f} "
            f"| {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] | {gap.p_value:.2f} "
            f"| {late[0]:.3f} | {late[1]:.3f} | {apart:.1e} |"
        )
    return "\n".join(lines) + "\n"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _late(values: list[float]) -> float:
    return _mean(values[-max(1, len(values) // 4) :])


def figure(folders: dict[tuple[str, int], Path], seeds: list[int], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "trace_bench"
    fig, axes = pyplot.subplots(1, len(seeds), figsize=(3.2 * len(seeds), 2.8), sharey=True)
    for ax, seed in zip([axes] if len(seeds) == 1 else axes, seeds, strict=True):
        for name, colour, style in (("local", "#0072B2", "-"), ("verl", "#D55E00", "--")):
            points = curve(folders[name, seed])
            ax.plot(
                [m["spent"] for m in points],
                [m["reward"] for m in points],
                style,
                color=colour,
                label=f"trainer={name}",
            )
        ax.set_title(f"seed {seed}")
        ax.set_xlabel("training rollouts")
    first = axes if len(seeds) == 1 else axes[0]
    first.set_ylabel("mean reward of an iteration")
    handles, labels = first.get_legend_handles_labels()
    fig.legend(handles, labels, frameon=False, ncols=2, loc="upper center")
    fig.tight_layout(rect=(0, 0, 1, 0.92))
    for ending in ("svg", "png"):
        fig.savefig(path.with_suffix(f".{ending}"), dpi=150)


if __name__ == "__main__":
    main()
