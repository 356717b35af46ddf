"""How often trained agents show each skill in held-out tasks that need it, by TRACE's labels.

    python shown.py RUN...

Of finished runs with one `env.needs`: per skill the share of episodes, among those that came to
where it is called for, in which it was exercised; and how many came there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from trace_bench.core.command import command
from trace_bench.core.decode import decode
from trace_bench.core.errors import UserError
from trace_bench.core.summary import read_settings
from trace_bench.core.types import Stored
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.methods.looking.capabilities import Label
from trace_bench.methods.looking.evidence import heard_of
from trace_bench.methods.looking.rules import label


@command()
def main(folders: Sequence[str]) -> int:
    needs = {read_settings(Path(folder) / "config.yaml")["env"]["needs"] for folder in folders}
    if len(needs) != 1:
        raise UserError(f"runs with env.needs {sorted(map(str, needs))} given; allowed: one value.")
    suite = EmbeddedSuite(needs=needs.pop())
    tasks = {task.id: task for task in suite.tasks("test")}
    facts = {name: heard_of(suite, task) for name, task in tasks.items()}
    counts: Counter[tuple[str, Label]] = Counter()
    for folder in folders:
        for line in (Path(folder) / "evaluation_trajectories.jsonl").open("rb"):
            stored = decode(line, Stored)
            played = stored.trajectory
            if stored.call == "evaluation/final" and played.score is not None:
                labels = label(facts[played.task], played)
                counts.update(
                    (skill, labels[skill]) for skill in tasks[played.task].data["requires"]
                )
    for skill in sorted({skill for skill, _ in counts}):
        shown, came = (
            counts[skill, Label.PRESENT],
            counts[skill, Label.PRESENT] + counts[skill, Label.LACKING],
        )
        print(f"{skill:<36}{shown / max(1, came):5.2f} of {came}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
