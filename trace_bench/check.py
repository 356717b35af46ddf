"""Checks that an environment satisfies the protocol. Start here with your own environment.

    python -m trace_bench.check env.factory=my_module:my_suite env.options.size=40
    python -m trace_bench.check env=tau2 env.domain=retail sandbox=docker split=test limit=40

Settings are those of a run (`env`, `env.*`, `sandbox`, ...); `split` (default: the run's training
split) and `limit` (default 16 tasks) are this command's own. Every task goes through every check,
and the run's splits for training, development and evaluation may share no task (unless
protocol=paper); the exit status is 1 when a check fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import combinations

from trace_bench.core.command import command, told, whole_number
from trace_bench.core.errors import outlasting
from trace_bench.core.protocols import Suite
from trace_bench.envs.check import Checked, check
from trace_bench.play.suites import DEMO, chosen_of, in_both, splits_of, tasks_of
from trace_bench.runner.build import make_suite, run_context
from trace_bench.settings.compose import compose, take
from trace_bench.settings.identity import parts_of
from trace_bench.settings.schema import Settings

LIMIT = 16


@command()
@outlasting()
def main(arguments: Sequence[str]) -> int:
    if told(arguments, __doc__):
        return 0
    words = list(arguments)
    split = take(words, "split")
    limit = whole_number("limit", take(words, "limit") or LIMIT)
    settings = compose(["method=base", *words])
    parts = parts_of(settings)
    with closing(make_suite(settings, parts, run_context(settings, parts))) as suite:
        chosen = chosen_of(suite, split or settings.env.train_split)
        tasks = tasks_of(suite, chosen)[:limit]
        report = check(suite, tasks)
        if settings.protocol == "held_out":
            report.lines.append(_apart(suite, settings))
        where = f"sandbox={settings.sandbox.name}"
        print(f"{suite.name}/{suite.variant} {chosen}, {where}: {len(tasks)} tasks")
        print(report)
        return 0 if report.ok else 1


def _apart(suite: Suite, settings: Settings) -> Checked:
    """Whether the run's splits share no task, each pair once, of those that the suite has."""
    env, there = settings.env, splits_of(suite)
    used = dict.fromkeys((env.train_split, env.dev_split, settings.evaluation.split, DEMO))
    pairs = list(combinations([name for name in used if name in there], 2))
    faults = [
        f"{len(shared)} tasks of {second} are in {first} too, such as {shared[0]}"
        for first, second in pairs
        if (shared := in_both(suite, first, second))
    ]
    return Checked("the splits share no task (pairs of splits)", len(pairs), faults)


if __name__ == "__main__":
    sys.exit(main())
