"""Rehearses a run on this machine: its very settings, cut down, with a random miniature of its
model and servers that stand in for its own. Says what was shown and what only a GPU can show, then
what the run will need (`dry_run`). The folder is no result, and no table takes it.

python -m trace_bench.rehearse experiment=paper_tau2
python -m trace_bench.rehearse method=grpo env=toolsandbox model=hf model.path=Qwen3-8B
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from trace_bench.core.command import command, told
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_json, write_json
from trace_bench.core.summary import read_summary
from trace_bench.results.folder import read_run
from trace_bench.runner.build import models_in_roles
from trace_bench.runner.cut import Cut, make_miniature, small
from trace_bench.runner.forecast import describe
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import model_path, parts_of, plain, served_name, weights_count
from trace_bench.settings.schema import Settings, parse

LIMIT = 900.0  # seconds of the whole rehearsal
SMALL = 5e6  # parameters of a model that is taken as it is
ONLY_A_GPU = (
    "memory and speed of the real model, and what it can do",
    "vLLM's sleep and wake with LoRA in training, and its weights by NCCL or IPC",
    "the difference between a sampler in bfloat16 and the trainer (trainer.mismatch)",
    "CUDA graphs and compiled kernels with LoRA",
)


@dataclass
class Report:
    failed: list[str] = field(default_factory=list)

    def say(self, what: str, holds: bool | None = True) -> None:
        """`holds`: None for what was not tried."""
        mark = {True: "shown", False: "FAILED", None: "not shown"}[holds]
        print(f"{mark:<10} {what}", flush=True)
        if holds is False:
            self.failed.append(what)


@command("interrupted")
def main(argv: Sequence[str]) -> int:
    """0: all that was tried was shown; 1: something was not; 2: wrong settings."""
    if argv[:1] == ["--run"]:  # in a process of its own, which is killed once
        from trace_bench.runner.pipeline import run

        return run(parse(read_json(Path(argv[1]))))
    if told(argv, __doc__):
        return 0
    settings = compose(argv)
    folder = Path(mkdtemp(prefix="rehearsal_"))
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.policy.threads))
    try:
        failed = _rehearse(settings, folder)
    except BaseException:
        print(f"what was left is in {folder}", file=sys.stderr)
        raise
    if failed:
        print(f"\n{len(failed)} of it failed; its files are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _rehearse(settings: Settings, folder: Path) -> list[str]:
    began, report, cut = time.monotonic(), Report(), small(settings, folder)
    print("rehearsal: every phase in small; all scores are drawn by lot and mean nothing")
    model = _model(cut, settings, folder, report)
    with _servers(cut, model, report) as (asked, loaded):
        cut.with_sandbox(folder)
        cut.with_trainer()
        budget = cut.affordable(folder)
        print(f"its run: {budget} rollouts for {settings.budget}, "
              f"{cut.settings.evaluation.limit} held-out tasks")  # fmt: skip
        for line in cut.replaced:
            report.say(line, None)
        write_json(folder / "settings.json", plain(cut.settings))
        killed = _run_once(folder, began)
        code = _run(folder, began)
        _phases(cut.settings, report, folder / "run", code, killed)
        if loaded is not None:
            _adapters(report, folder / "run", loaded)
        for role, count in sorted(asked.items()):
            report.say(f"the role {role}: {count} questions, answered by a script")
        if others := sorted(models_in_roles(cut.settings).keys() - asked.keys()):
            report.say(f"the roles {', '.join(others)}: nothing was asked", None)
    for line in ONLY_A_GPU:
        report.say(line, None)
    print(
        f"\nthe rehearsal took {time.monotonic() - began:.0f} s. The run itself (dry_run=true):\n"
    )
    print(describe(settings, parts_of(settings))[0])
    return report.failed


def _model(cut: Cut, settings: Settings, folder: Path, report: Report) -> str:
    """The folder of the model that acts: a miniature, or a model that is small enough itself."""
    parts = parts_of(settings)
    if parts["policy"].declared.scripted:
        return ""
    try:
        name = model_path(settings, parts)
    except UserError:  # it has not been fetched; its family is known by its name
        name = served_name(settings.model)
    count = weights_count(name)
    if count is not None and count <= SMALL:
        report.say(f"the model itself: {name}, {count} parameters")
        return name
    context = settings.policy.context or 1024
    miniature = make_miniature(name, folder / "model", context, settings.seed)
    cut.with_model(miniature.folder)
    for same in miniature.same:
        report.say(f"a miniature with the model's {same}")
    for other in miniature.other:
        report.say(other, None)
    return str(miniature.folder)


@contextmanager
def _servers(
    cut: Cut, model: str, report: Report
) -> Iterator[tuple[Mapping[str, int], Sequence[str] | None]]:
    """Servers in the place of the agent's and the roles'. (questions by role; adapters that the
    agent's server has loaded, None without one): both grow."""
    from trace_bench.rehearse.engine import Loading
    from trace_bench.rehearse.scripted import Players, serve

    settings, players = cut.settings, Players()
    with ExitStack() as stack:
        roles = stack.enter_context(serve(players)).address
        url, loaded = "", None
        if parts_of(settings)["policy"].declared.at_servers:
            name = served_name(settings.model)
            engine = Loading(model, name, settings.policy.batch, settings.policy.context)
            stack.callback(engine.close)
            url, loaded = stack.enter_context(serve(engine)).url, engine.loaded
            report.say("vLLM: this project's server is in its place", None)
        cut.with_servers(url, roles)
        yield players.asked, loaded


# -- the run, once killed and once whole ------------------------------------------------------


@contextmanager
def _running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The run in a process of its own, which ends with the block."""
    words = [sys.executable, "-m", "trace_bench.rehearse", "--run", str(folder / "settings.json")]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()  # where it has not ended
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def _run_once(folder: Path, began: float) -> int | None:
    """Starts the run and kills it at its first training rollout, or else after forty others;
    returns how many were there, None if it ended before."""
    with _running(folder) as process:
        while process.poll() is None and time.monotonic() - began < LIMIT:
            lines = _lines(folder / "run" / "ledger.jsonl")
            if any(b'"training"' in line for line in lines) or len(lines) > 40:
                process.kill()
                return len(lines)
            time.sleep(0.02)
    return None


def _run(folder: Path, began: float) -> int:
    """The run, or what is left of it, to its end; its exit code."""
    with _running(folder) as process:
        try:
            return process.wait(max(1.0, LIMIT - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            raise UserError(
                f"the rehearsal did not end within {LIMIT:.0f} s; the end of {folder}/log.txt says "
                "where it is."
            ) from None


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.is_file() else []


# -- what was shown ---------------------------------------------------------------------------


def _phases(settings: Settings, report: Report, run: Path, code: int, killed: int | None) -> None:
    log = (run.parent / "log.txt").read_text(errors="replace").splitlines()
    summary = read_summary(run)
    if code or summary is None:
        report.say(f"the run ended with exit code {code}: {log[-1] if log else 'it said nothing'}",
                   False)  # fmt: skip
        return
    ledger = [json.loads(line) for line in _lines(run / "ledger.jsonl")]
    spent = Counter(line["purpose"] for line in ledger)
    for purpose, count in spent.items():
        report.say(f"{purpose}: {count} rollouts")
    lost = summary.lost
    report.say(f"evaluation: {summary.rollouts['evaluation']} episodes, {lost} lost", not lost)
    report.say(f"the environments in sandbox={settings.sandbox.name}")
    trained = [m for m in map(json.loads, _lines(run / "metrics.jsonl"))
               if m.get("phase") == "training" and m.get("steps")]  # fmt: skip
    label = parts_of(settings)["trainer"].label
    if spent.get("training"):
        report.say(
            f"trainer={label}: {sum(m['steps'] for m in trained)} optimizer steps, adapters "
            f"{', '.join(summary.adapters) or 'none'}",
            bool(trained) and bool(summary.adapters),
        )
    else:
        report.say(f"training with trainer={label}: the method ran none", None)
    if summary.curve:
        report.say(f"the curve: {len(summary.curve)} points on the development tasks")
    if summary.routing is not None:
        report.say("the router beside the best choice for each task")
    report.say("the closing table: " + ", ".join(row.name for row in summary.table))
    if killed is None:
        report.say("kill and resume: it ended before it could be killed", None)
    else:
        ids = [json.dumps([line.get(k) for k in ("call", "index", "task", "seed")])
               for line in ledger]  # fmt: skip
        report.say(f"killed after {killed} rollouts and resumed; each is in the ledger once",
                   len(set(ids)) == len(ids))  # fmt: skip
    try:
        read_run(run)
        report.say("no table may take it", False)
    except UserError:
        report.say("no table takes it")


def _adapters(report: Report, run: Path, loaded: Sequence[str]) -> None:
    summary = read_summary(run)
    if summary is not None and (wanted := summary.adapters):
        there = {name.partition("+")[0] for name in loaded}
        report.say(f"adapters loaded into the agent's server: {', '.join(wanted)}",
                   set(wanted) <= there)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
