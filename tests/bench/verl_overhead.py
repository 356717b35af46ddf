"""What our agent loop adds to a step of verl: the same model, batch, trainer and server of tokens,
with our loop over the embedded suite, and with verl's stock tool agent and a trivial tool.

    python tests/bench/verl_overhead.py [STEPS]

Needs verl (`pip install -e ".[verl]"`), no GPU; three minutes. Prints the medians of what verl
says of its steps after the first three, and of their parts per token. The stock loop is given the
first messages and tools of the same episodes; what follows differs (its tools say "None"), so
times are compared per token as well.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "trainers"))

import pyarrow
import verl_job as jobs
from pyarrow import parquet

from trace_bench.store import read_lines
from trace_bench.trainers.verl.job import prepare, spec_of, task_of
from trace_bench.trainers.verl.process import Process
from trace_bench.trainers.verl.trainer import VerlTrainer
from trace_bench.types import Step, Task

TOOL = '''

@function_tool
def {name}({signature}) -> str:
    """{name}

    Args:
{arguments}
    """
    return "None"
'''
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return (len(solution_str) % 7) / 7
"""
WARM = 3


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    with tempfile.TemporaryDirectory() as place:
        found = {
            name: measured(Path(place) / name, steps, plain)
            for name, plain in (("stock loop", True), ("our loop", False))
        }
    print(f"{'':<12}{'start-up':>10}{'step':>8}{'rollouts':>10}{'tokens':>8}{'step/kT':>9}")
    for name, values in found.items():
        print(
            f"{name:<12}{values['start']:>8.0f} s{values['step']:>6.2f} s{values['gen']:>8.2f} s"
            f"{values['tokens']:>8.0f}{values['step'] / values['tokens'] * 1000:>7.2f} s"
        )
    ours, stock = found["our loop"], found["stock loop"]
    per_token = (ours["step"] / ours["tokens"]) / (stock["step"] / stock["tokens"])
    print(f"step, ours / stock: {ours['step'] / stock['step']:.2f}; per token: {per_token:.2f}")


def measured(folder: Path, steps: int, plain: bool) -> dict[str, float]:
    """One run of so many steps."""
    chosen = jobs.settings(
        f"budget={32 * steps}", "trainer.restarts=0", "trainer.gpus=2", "trainer.save_every=1000"
    )
    lab = jobs.make_lab(folder, chosen)
    trainer = lab.trainer
    assert isinstance(trainer, VerlTrainer)
    tasks = list(lab.suite.tasks("train"))
    job = jobs.job("bench", chosen, tasks)
    settings = trainer.settings
    if plain:
        settings = replace(settings, verl=stock(folder, trivial(tasks, lab.suite)))
    place = folder / "verl"
    prepare(place, job, spec_of(job, lab, settings, trainer.facts), settings, ())
    if plain:
        rows = [first_messages(lab.suite, task_of(job, g), g) for g in range(4 * steps)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), place / "tasks.parquet")
    process = Process(place, settings, print)
    began = time.time()
    process.start()
    first = None
    while not process.finished:
        process.watch()
        if first is None and _lines(place):
            first = time.time()
        time.sleep(0.2)
    lab.close()
    lines = _lines(place)
    kept = lines[WARM:]
    assert first is not None

    def median(key: str) -> float:
        return statistics.median(float(x[key]) for x in kept)

    return {
        "start": first - began - float(lines[0]["timing_s/step"]),
        "step": median("timing_s/step"),
        "gen": median("timing_s/gen"),
        "tokens": median("perf/total_num_tokens"),
    }


def _lines(folder: Path) -> list[dict[str, Any]]:
    found = [x for path in sorted(folder.glob("metrics-*.jsonl")) for x in read_lines(path)]
    return [x["data"] for x in found if "timing_s/step" in x["data"]]


def trivial(tasks: Sequence[Task], suite: Any) -> str:
    """The episodes' tools by name, each of which answers "None"."""
    known: dict[str, list[str]] = {}
    for task in tasks:
        for tool in _first(suite, task).tools:
            properties = tool["function"]["parameters"].get("properties", {})
            known[tool["function"]["name"]] = list(properties)
    text = "from verl.tools.function_tool import function_tool\n"
    for name, given in known.items():
        signature = ", ".join(f'{p}: str = ""' for p in given)
        arguments = "\n".join(f"        {p}: {p}" for p in given)
        text += TOOL.format(name=name, signature=signature, arguments=arguments)
    return text


def stock(folder: Path, tools: str) -> tuple[str, ...]:
    """verl's own loop and reward."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tools.py").write_text(tools)
    (folder / "reward.py").write_text(REWARD)
    turns = "actor_rollout_ref.rollout.multi_turn"
    return (
        f"{turns}.enable=true",
        f"{turns}.max_assistant_turns=4",
        f"{turns}.function_tool_path={folder / 'tools.py'}",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
    )


def first_messages(suite: Any, task: Task, index: int) -> Mapping[str, Any]:
    """A row whose prompt is how the episode begins."""
    first = _first(suite, task)
    messages = [dict(m) for m in first.messages]
    names = [tool["function"]["name"] for tool in first.tools]
    return {
        "data_source": "bench",
        "prompt": [{"role": m["role"], "content": str(m["content"])} for m in messages],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "tool_selection": names},
        "agent_name": "tool_agent",
    }


def _first(suite: Any, task: Task) -> Step:
    env = suite.make()
    try:
        return env.reset(task)
    finally:
        env.close()


if __name__ == "__main__":
    main()
