"""Held-out tasks that a run's suite borrows from another suite, such as the real tasks on which
training on recordings is evaluated.

What tables may put together is decided by the held-out tasks: their suite, its code and its data.
So the summary names the lender and its settings as a run of its own would have them, and which of
the run's settings are about training alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.core.protocols import Borrows, Suite
from trace_bench.llm.roles import IN_EPISODES
from trace_bench.play.suites import about_of, asks_user, name_of
from trace_bench.settings.identity import suite_identity

SPLITS = ("train_split", "dev_split", "eval_split", "train_tasks")  # settings of env, of training


def facts_of(suite: Suite, split: str) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """(`name/variant` of the suite whose tasks the held-out `split` has, its own facts, what the
    summary says about borrowed tasks).

    The last is None for a suite with tasks of its own, else {env: the lender's settings, split: its
    name there, training: {suite, data: facts of the run's own suite}, training_settings: the groups
    of the run's settings that held-out episodes do not depend on}."""
    lender = suite.lender(split) if isinstance(suite, Borrows) else None
    if lender is None:
        return name_of(suite), about_of(suite), None
    env = suite_identity(lender.env, lender.variant)
    roles = () if asks_user(lender.suite) else IN_EPISODES
    borrowed: Mapping[str, Any] = {
        "env": {key: value for key, value in env.items() if key not in SPLITS},
        "split": lender.split,
        "training": {"suite": name_of(suite), "data": about_of(suite)},
        "training_settings": ["env", *(f"llm.{role}" for role in roles)],
    }
    return name_of(lender.suite), about_of(lender.suite), dict(borrowed)
