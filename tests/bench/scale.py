"""What a large run folder costs: seconds and memory to open a ledger, to take an episode back in
it, to answer all calls from stored episodes and to list them, for N and for 10 N.

    python tests/bench/scale.py [--lines 100000] [--episodes 100] [--tokens 20000]

Each figure is of a process of its own; its memory is the highest that it had, Python's included.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from trace_bench.core.types import Purpose, Score, StopReason, Trajectory, Turn
from trace_bench.results.folder import episodes_in
from trace_bench.runner.ledger import EpisodeFile, Ledger, entry

CALL = 64  # episodes


def episode(tokens: int, seed: int) -> Trajectory:
    """Turns of 400 tokens in and 100 out; log-probabilities are float32, as models give them."""
    draw = random.Random(seed)
    turns = tuple(
        Turn(
            ({"role": "user", "content": "".join(draw.choices("etaoin shrdlu", k=1000))},),
            {"role": "assistant", "content": "".join(draw.choices("etaoin shrdlu", k=300))},
            tuple(draw.randrange(32000) for _ in range(400)),
            tuple(draw.randrange(32000) for _ in range(100)),
            tuple(-draw.randrange(2**24) / 2**22 for _ in range(100)),
        )
        for _ in range(tokens // 500)
    )
    score = Score(0.5, False)
    return Trajectory("toy/train/1", seed, "base", (), turns, (), StopReason.DONE, score)


def written(folder: Path, lines: int, episodes: int, tokens: int) -> None:
    ledger, stored = Ledger(folder / "ledger.jsonl", lines), EpisodeFile(folder / "episodes.jsonl")
    some = [episode(tokens, seed) for seed in range(8)]
    for n in range(lines):
        ledger.record(entry(f"grpo/{n // CALL:06d}", n % CALL, Purpose.TRAINING, some[n % 8]))
    for n in range(episodes):
        stored.add(f"grpo/{n // CALL:06d}", n % CALL, some[n % 8])


def resumed(folder: Path) -> int:
    stored = EpisodeFile(folder / "episodes.jsonl")
    return sum(len(stored.of(f"grpo/{n:06d}")) for n in range(10**4))


WHAT = {
    "open the ledger": lambda folder: Ledger(folder / "ledger.jsonl", 10**9),
    "take one back": lambda folder: Ledger(folder / "ledger.jsonl", 10**9).take_back(
        "grpo/000000", [0]
    ),
    "open the episodes": lambda folder: EpisodeFile(folder / "episodes.jsonl"),
    "read them by calls": resumed,
    "list them": lambda folder: [*episodes_in(folder / "episodes.jsonl")],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, least in (("lines", 100_000), ("episodes", 100), ("tokens", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=least)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        begun = time.perf_counter()
        WHAT[options.measure[0]](Path(options.measure[1]))
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([time.perf_counter() - begun, used]))
        return
    figures = []
    for times in (1, 10):
        with TemporaryDirectory() as made:
            folder = Path(made)
            written(folder, times * options.lines, times * options.episodes, options.tokens)
            size = (folder / "episodes.jsonl").stat().st_size / times / options.episodes
            command = [sys.executable, __file__, "--measure"]
            said = [subprocess.check_output([*command, what, made]) for what in WHAT]
            figures.append([json.loads(text) for text in said])
    print(f"bytes per episode: {size:.0f}")
    print(
        f"{'':<20}{'s, N':>10}{'s, 10 N':>10}{'ratio':>7}{'MB, N':>10}{'MB, 10 N':>10}{'ratio':>7}"
    )
    for what, (s, mb), (s10, mb10) in zip(WHAT, *figures, strict=True):
        print(f"{what:<20}{s:10.2f}{s10:10.2f}{s10 / s:7.1f}{mb:10.0f}{mb10:10.0f}{mb10 / mb:7.1f}")


if __name__ == "__main__":
    main()
