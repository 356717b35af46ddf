"""What share of a rollout of a recorded dialogue is its checklist by program.

    python tests/bench/checklists.py [--dialogues 40] [--rounds 5]

A rollout is the tiny agent's: its turns are generated and the real environment answers. CPU seconds
of the judge's part are measured inside these rollouts. Bar: 10 % of a rollout.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recordings import recorded, suite, write

from trace_bench.checklists.judges import ChecklistProgress
from trace_bench.core.types import AgentSpec
from trace_bench.envs.recorded import suite as played
from trace_bench.envs.recorded.suite import RecordedEnv
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.play.suites import Suites
from trace_bench.policies.local import LocalPolicy
from trace_bench.tiny import shipped

MOST = 0.10


def share(dialogues: int, rounds: int) -> tuple[float, int]:
    """(the judge's share of the CPU time of rollouts, the number of rollouts)."""
    spent = [0.0]

    def timed(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            begin = time.process_time()
            try:
                return real(*arguments)
            finally:
                spent[0] += time.process_time() - begin

        setattr(owner, name, call)

    parts = ((ChecklistProgress, "judge"), (ChecklistProgress, "goes_on"), (RecordedEnv, "score"))
    for owner, name in (*parts, (played, "checklists_of")):
        timed(owner, name)
    with tempfile.TemporaryDirectory() as place:
        made = suite(write(Path(place) / "phone", recorded(dialogues)), tools="real")
        tasks = tuple(made.tasks("train"))
        policy = LocalPolicy(Path(shipped()), batch=32, threads=1)
        player = Player(policy, Suites(made))
        begin = time.process_time()
        for number in range(rounds):
            seeds = tuple(range(number * len(tasks), (number + 1) * len(tasks)))
            player.play(EpisodeBatch(AgentSpec(str(shipped())), tasks, seeds))
        total = time.process_time() - begin
    return spent[0] / total, rounds * len(tasks)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dialogues", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    found, rollouts = share(given.dialogues, given.rounds)
    what = f"of the CPU time of {rollouts} rollouts (bar: {MOST:.0%})"
    print(f"checklists by program: {found:.2%} {what}")
    return 0 if found <= MOST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
