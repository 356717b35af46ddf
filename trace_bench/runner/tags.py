"""Writes what the held-out tasks need, for readers of the run: tasks.json."""

from __future__ import annotations

from trace_bench.core.protocols import Tagged
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import write_json
from trace_bench.runner.bench import Bench, wanted


def write_tags(bench: Bench) -> None:
    """{task id: [words]} of every held-out task, if the suite's class says where they stand."""
    path, suite = bench.place.folder / TASKS, bench.parts["env"].declared
    if isinstance(suite, Tagged) and not path.exists():
        keys = suite.tag_keys
        write_json(
            path,
            {t.id: [str(w) for k in keys for w in t.data.get(k, ())] for t in wanted(bench).tasks},
        )
