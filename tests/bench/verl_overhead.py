"""What our agent loop adds to a step of verl: the same model, batch, trainer and server of tokens,
with our loop over the embedded suite, and with verl's stock tool agent and a trivial tool.

    python tests/bench/verl_overhead.py [STEPS]

Needs verl (`pip install -e ".[verl]"`), no GPU; four minutes. The stock loop is given the first
messages and tools of the same episodes and as many turns; what follows differs (its tools say
"None", its templates of tools are longer), so the parts of a step in which verl computes with the
model are of other lengths, although they are verl's own in both runs. Compared is what is left of a
step without them: the rollouts, and all that is done with episodes before and after.
"""

from __future__ import annotations

import json
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

from trace_bench.core.store import read_lines
from trace_bench.core.types import Step, Task, to_json
from trace_bench.trainers.verl.job import prepare
from trace_bench.trainers.verl.process import Process
from trace_bench.trainers.verl.trainer import VerlTrainer

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
MODEL = ("old_log_prob", "update_actor", "update_weights")  # verl's own parts, in both runs


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    with tempfile.TemporaryDirectory() as place:
        found = {
            name: measured(Path(place) / name, steps, plain)
            for name, plain in (("stock loop", True), ("our loop", False))
        }
    print(f"{'':<12}{'start-up':>10}{'step':>8}{'rollouts':>10}{'compared':>10}{'messages':>10}")
    for name, values in found.items():
        print(
            f"{name:<12}{values['start']:>8.0f} s{values['step']:>6.2f} s{values['gen']:>8.2f} s"
            f"{values['loop']:>8.2f} s{values['turns']:>10.2f}"
        )
    ours, stock = found["our loop"], found["stock loop"]
    added = ours["loop"] - stock["loop"]
    print(
        f"added: {added:.2f} s, {added / min(ours['step'], stock['step']):.1%} of the shorter step"
    )


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
    spec = replace(trainer.spec(job, lab), trainer=settings)
    prepare(place, job, spec, ())
    if plain:
        rows = [first_messages(lab.suite, task, n) for n, task in enumerate(tasks)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), place / "tasks.parquet")
    process = Process(place, spec, print)
    began = time.time()
    process.start()
    first = None
    while not (process._child is not None and process._child.poll() == 0):
        process.watch()
        if first is None and _lines(place):
            first = time.time()
        time.sleep(0.2)
    lab.close()
    lines = _lines(place)
    kept = lines[WARM:]
    assert first is not None

    def median(key: str, less: Sequence[str] = ()) -> float:
        return statistics.median(float(x[key]) - sum(float(x[k]) for k in less) for x in kept)

    return {
        "start": first - began - float(lines[0]["timing_s/step"]),
        "step": median("timing_s/step"),
        "gen": median("timing_s/gen"),
        "loop": median("timing_s/step", [f"timing_s/{part}" for part in MODEL]),
        "turns": median("num_turns/mean"),
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
        f"{turns}.max_assistant_turns=2",  # as many as the agent takes in these episodes
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
        "extra_info": {
            "index": index,
            "tool_selection": names,
            "task": json.dumps(to_json(task)),
        },
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
