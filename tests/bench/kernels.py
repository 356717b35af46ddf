"""How far the same runs differ under two choices of torch's kernels, as a table.

    ATEN_CPU_CAPABILITY=avx2 python -m trace_bench.sweep tests/bench/kernels.yaml  # ONE
    ATEN_CPU_CAPABILITY=default python -m trace_bench.sweep tests/bench/kernels.yaml  # TWO
    python tests/bench/kernels.py ONE/runs TWO/runs

For each run that is finished in both folders: training rollouts with another token, the largest
difference of a sampled token's log-probability before the first of these, held-out episodes with
another score, whether the adapters are the same bytes, and held-out success in each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.store import read_lines
from trace_bench.core.summary import read_summary
from trace_bench.core.types import Stored, Trajectory

HEAD = (
    "run", "rollouts", "with another token", "largest difference of a log-probability",
    "held-out episodes with another score", "adapters", "success",
)  # fmt: skip


def played(run: Path) -> list[Trajectory]:
    """The rollouts of the budget, in the order of their calls."""
    lines = read_lines(run / "trajectories.jsonl", Stored)
    return [line.trajectory for line in sorted(lines, key=lambda n: (n.call, n.index))]


def sampled(trajectory: Trajectory) -> Iterator[tuple[int, float]]:
    """The tokens of all turns, each with its log-probability."""
    for turn in trajectory.turns:
        yield from zip(turn.token_ids, turn.logprobs, strict=True)


def gaps(one: Trajectory, two: Trajectory) -> Iterator[float]:
    """Of log-probabilities, up to the first token that is another."""
    for (token, logprob), (other, elsewhere) in zip(sampled(one), sampled(two), strict=False):
        if token != other:
            return
        yield abs(logprob - elsewhere)


def scores(run: Path) -> dict[tuple[str, ...], Any]:
    lines = read_lines(run / "evaluation.jsonl")
    return {(n["agent"], n["task"], str(n["trial"])): n["score"] for n in lines}


def weights(run: Path) -> dict[str, bytes]:
    files = run.rglob("adapter_model.safetensors")
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def compared(one: Path, two: Path) -> list[str]:
    """A row of the table."""
    about, other = read_summary(one), read_summary(two)
    assert about is not None and other is not None
    pairs = list(zip(played(one), played(two), strict=False))
    others = [[t.token_ids for t in a.turns] != [t.token_ids for t in b.turns] for a, b in pairs]
    first = others.index(True) if any(others) else len(pairs)
    gap = max((g for a, b in pairs[: first + 1] for g in gaps(a, b)), default=0.0)
    found, theirs = scores(one), scores(two)
    moved = sum(found[key] != theirs.get(key) for key in found)
    return [
        f"{about.method}, seed {about.seed}", str(len(pairs)), str(sum(others)), f"{gap:.1e}",
        f"{moved} of {len(found)}", "equal" if weights(one) == weights(two) else "differ",
        f"{about.score.success:.3f}, {other.score.success:.3f}",
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("one", type=Path)
    parser.add_argument("two", type=Path)
    given = parser.parse_args(arguments)
    runs = sorted(path.parent.relative_to(given.one) for path in given.one.rglob("summary.json"))
    rows = [
        compared(given.one / run, given.two / run)
        for run in runs if (given.two / run / "summary.json").is_file()
    ]  # fmt: skip
    for row in [list(HEAD), ["---"] * len(HEAD), *sorted(rows)]:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
