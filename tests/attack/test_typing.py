"""What a person types wrong is answered by one line, and nothing is left half-made."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import trace_bench.check
import trace_bench.report.__main__
import trace_bench.results.__main__
import trace_bench.show
import trace_bench.sweep
import trace_bench.tiny.__main__
from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.settings.compose import compose

Said = pytest.CaptureFixture[str]
QUICK = ("method=base", "policy=idle", "evaluation.limit=1", "evaluation.split=dev")
LONG = "x" * 300
NOWHERE = ("llm.shared.base_url=http://127.0.0.1:9", "llm.shared.model=m")

FILES: dict[str, str | bytes] = {
    "plain.txt": "hello",
    "refuses_import.py": "raise RuntimeError('no\\nluck')\n",
    "ends_the_process.py": "import sys\n\nsys.exit(3)\n",
    "small.py": "import trace_bench as tb\n\n\nclass Shelf(tb.Suite):\n    pass\n",
    "no_suite.py": "class Empty:\n    pass\n",
    "own/method/open_list.yaml": "name: [1\n",
    "own/method/a_list.yaml": "- 1\n- 2\n",
    "own/method/latin.yaml": b"name: \xe9\n",
    "random.yaml": "method: random\nparameters: {seed: {values: [1]}}\n",
    "wrong_value.yaml": "method: grid\nparameters: {budget: {values: [64, x]}}\n",
    "fine.yaml": "method: grid\nparameters: {seed: {values: [1]}}\n",
    "empty/.keep": "",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with some files that a person may name."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_RUN_ID", "NO_SUCH_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    (tmp_path / "empty" / ".keep").unlink()
    return tmp_path


def everything(folder: Path) -> set[str]:
    """All that lies in the folder, but for what importing leaves there."""
    names = (str(p.relative_to(folder)) for p in folder.rglob("*"))
    return {name for name in names if "__pycache__" not in name}


def own(factory: str) -> list[str]:
    return ["env=custom", f"env.factory={factory}"]


WORDS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "no name": (["=1"], ["'=1'", "setting=value"]),
    "no value": (["budget"], ["'budget'", "setting=value"]),
    "nothing": ([""], ["''", "setting=value"]),
    "two signs": (["method==trace"], ["'method==trace'", "setting=value"]),
    "two in one": (["method=grpo seed=1"], ["'method=grpo seed=1'", "quotes"]),
    "another alphabet": (["métod=trace"], ["'métod=trace'", "quotes"]),
    "a lone surrogate": (["run_dir=\ud800"], ["run_dir", "quotes"]),
    "a group set to null": (["method=null"], ["method=null", "`method`"]),
    "a new group set to null": (["+experiment=null"], ["experiment", "leave"]),
    "an experiment set to null": (["experiment=null"], ["experiment", "leave"]),
    "a misspelt setting": (["policy.bacth=3"], ["'policy.bacth'", "batch", "policy.bacth"]),
    "an unknown setting": (["colour=red"], ["'colour'", "budget, agent, seed", "`colour`"]),
    "an abbreviation": (["lr=1"], ["'lr'", "trainer.learning_rate", "`lr`"]),
    "a setting without its group": (["group_size=8"], ["mean trainer.group_size?"]),
    "a group that is written out": (["environment=x"], ["mean env?", "`environment`"]),
    "a setting of a group that is not": (["eval.limit=3"], ["mean evaluation.limit?", "`eval`"]),
    "a part of a word": (["policy.temp=1"], ["mean eval_temperature?", "policy.temp"]),
    "a choice as a setting": (["wandb=true"], ["mean tracker=wandb?", "`wandb`"]),
    "a choice of another group": (["method=gspo"], ["mean trainer=gspo?", "`method`"]),
    "capitals": (["method=GRPO"], ["'GRPO'", "mean grpo?"]),
    "a setting of another choice": (["trainer.gpus=2"], ["trainer=verl", "`trainer.gpus`"]),
    "an option of one's own class": (
        ["env.factory=no_suite:Empty", "env.size=3"], ["mean env.options.size?", "`env.size`"],
    ),
    "a file as a choice": (["env=small"], ["'small'", "`env.factory=small:Shelf`"]),
    "a file's name as a choice": (["env=small.py:Shelf"], ["`env.factory=small:Shelf`"]),
    "a class as a choice": (["env=small:Shelf"], ["'small:Shelf'", "`env.factory=small:Shelf`"]),
    "a class alone": (["small:Shelf"], ["'small:Shelf'", "mean env.factory=small:Shelf?"]),
    "a path as a module": (
        ["env.factory=own/small.py:Shelf"], ["mean own.small:Shelf?", "env.factory"],
    ),
    "a class in small letters": (
        ["env.factory=no_suite:empty"], ["no attribute empty", "mean Empty?", "env.factory"],
    ),
    "a share of everything": (["method=joint", "method.finish=1"], ["from 0 to below 1"]),
    "a model of the hub as a choice": (["model=org/a-1B"], ["`model=hf model.path=org/a-1B`"]),
    "a suite after a slash": (["env=toolsandbox/embedded"], ["mean toolsandbox?", "`env`"]),
    "an unknown launcher": (["hydra/launcher=nope"], ["'nope'", "basic", "hydra/launcher"]),
    "a path as a method": (["method=/etc/passwd"], ["method=/etc/passwd", "not a path"]),
    "a list as a method": (["method=[[[[[[trace]]]]]]"], ["takes the name", "Change `method`"]),
    "a mapping as an environment": (["env={a: 1}"], ["takes the name", "Change `env`"]),
    "a setting without end": ([f"budget={'[' * 2000}1{']' * 2000}"], ["nested too deeply"]),
    "a budget that is none": (["budget=nan"], ["budget=nan", "whole number", "`budget`"]),
    "a budget that is left out": (["budget=???"], ["`budget`", "budget=<value>"]),
    "a reference to nothing": (["budget=${nope}"], ["`budget`", "'nope'"]),
    "a reference in a circle": (["budget=${budget}"], ["`budget`", "Recursive"]),
    "a factory without a colon": (own("no_suite"), ["'no_suite'", "module:attribute"]),
    "a factory without the attribute": (
        ["env=custom", "env.factory=no_suite:Nope"], ["no attribute Nope", "Empty", "env.factory"],
    ),
    "a factory that is not there": (
        ["env=custom", "env.factory=not_there:x"], ["not_there", "working folder", "env.factory"],
    ),
    "a factory that raises": (own("refuses_import:x"), ["RuntimeError: no luck", "env.factory"]),
    "a factory that ends the process": (
        ["env=custom", "env.factory=ends_the_process:x"], ["SystemExit: 3", "env.factory"],
    ),
    "a settings folder that is not there": (
        ["--config-dir", "nope", *QUICK], ["--config-dir nope is not a folder"],
    ),
    "a settings file with an open list": (
        ["--config-dir=own", "method=open_list"], ["open_list.yaml", "line 1"],
    ),
    "a settings file that is a list": (
        ["--config-dir=own", "method=a_list"], ["`method` is [1, 2]", "group of settings"],
    ),
    "a settings file in Latin-1": (["--config-dir=own", "method=latin"], ["0xe9", "--config-dir"]),
}  # fmt: skip
"""What the settings refuse, by what is in the error."""
RUNS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "a suite's unknown setting": (["method=grpo", "env.suite=official"], ["env."]),
    "a server without an address": (
        ["method=grpo", "policy.key_env=NONE", "policy=openai"],
        ["`policy.base_url` must be given"],
    ),
    "a point beyond the budget": (
        ["method=grpo", "checkpoints=[64,1280]"], ["checkpoints=[1280] lie beyond budget=640"],
    ),
    "a small budget": (["method=grpo", "budget=10"], ["has 10 rollouts and needs at least 16"]),
    "a small budget of trace": (
        ["method=trace", "budget=100"], ["analysis 32 (method.analysis_minimum), calibration 32"],
    ),
    "an analyst alone": (
        ["llm.analyst.by=endpoint", *NOWHERE], ["Set llm.generator.by=endpoint too"],
    ),
    "a generator without a sandbox": (
        ["llm.generator.by=endpoint", *NOWHERE], ["Set `sandbox` to docker"],
    ),
    "a generator of another kind": (
        ["llm.generator.by=model", *NOWHERE], ["unknown value 'model'; allowed: program, endpoint"],
    ),
    "a setting with dashes": (["--budget", "64"], ["--budget is no option", "budget=VALUE"]),
    "a flag without use": (["--resolve"], ["--resolve", "--cfg"]),
    "flags that exclude each other": (["--run", "--multirun", *QUICK], ["--multirun"]),
    "an unknown split": (
        [*QUICK, "evaluation.split=nope"], ["'nope'", "train, dev, test", "evaluation.split"],
    ),
    "an agent that nobody made": (
        ["model=made", "model.path=none"], ["no agent in none", "out=none", "`model.path`"],
    ),
    "no CUDA": (
        ["method=base", "evaluation.limit=1", "policy.device=cuda:99"],
        ["policy.device=cuda:99", "allowed: cpu"],
    ),
    "a run folder below a file": (
        [*QUICK, "run_dir=plain.txt/x"], ["plain.txt/x", "Not a directory", "`run_dir`"],
    ),
    "a long run folder": ([*QUICK, f"run_dir={LONG}"], ["xxx...", "too long", "`run_dir`"]),
    "the working folder": ([*QUICK, "run_dir=."], ["not empty", "`run_dir`"]),
}  # fmt: skip
"""What a run refuses before it leaves anything."""


@pytest.mark.parametrize("name", WORDS)
def test_a_wrong_setting_is_answered_by_one_line(name: str) -> None:
    typed, named = WORDS[name]
    with pytest.raises(UserError) as caught:
        compose(typed)
    one_line(f"error: {caught.value}\n", named)


@pytest.mark.parametrize("name", RUNS)
def test_a_wrong_command_is_answered_by_one_line(name: str, place: Path, capsys: Said) -> None:
    typed, named = RUNS[name]
    before = everything(place)
    assert main(list(typed)) == 2
    one_line(capsys.readouterr().err, named)
    assert everything(place) == before, "something is left half-made"


def one_line(said: str, named: Sequence[str]) -> None:
    assert said.startswith("error: ") and said.count("\n") == 1, said
    assert len(said) < 900 and all(what in said for what in named), said


Main = Callable[[Sequence[str]], int]
COMMANDS: dict[str, Main] = {
    "show": trace_bench.show.main,
    "results": trace_bench.results.__main__.main,
    "report": trace_bench.report.__main__.main,
    "tiny": trace_bench.tiny.__main__.main,
    "sweep": trace_bench.sweep.main,
    "check": trace_bench.check.main,
}
OTHERS: dict[str, tuple[str, Sequence[str]]] = {
    "show nope": ("show nope", ["nope is not a folder"]),
    "show an empty folder": ("show empty", ["empty holds no trajectories", "trajectories.jsonl"]),
    "tables of nothing": ("results tables --out out", ["required", "PLACE|FILTER"]),
    "tables of nope": ("results tables nope --out out", ["nope does not exist"]),
    "an export of no run": ("results export empty --out out", ["empty: not finished"]),
    "a sweep that is not there": ("sweep nope.yaml", ["nope.yaml cannot be read"]),
    "a sweep in Latin-1": ("sweep own/method/latin.yaml", ["latin.yaml", "utf-8"]),
    "a random sweep": ("sweep random.yaml", ["random.yaml", "`method: grid`"]),
    "a sweep with a wrong value": ("sweep wrong_value.yaml", ["budget='x'", "`budget`"]),
    "a sweep's jobs as a setting": ("sweep fine.yaml jobs=2", ["jobs=2", "write --jobs 2"]),
    "no such option of show": ("show run --fialed", ["--fialed", "mean --failed?", "--agent"]),
    "no command of results": ("results", ["required: command"]),
    "no such command of results": ("results table runs", ["invalid choice: 'table'", "'tables'"]),
    "no such option of results": ("results tables x --out t --acrros s", ["arguments: --acrros"]),
    "a filter of an export": ("results export x --out t method=trace", ["arguments: method=trace"]),
    "a report of nowhere": ("report nowhere --out r.html", ["nowhere"]),
    "a report of no run": ("report . --out r.html", ["no finished run in ."]),
    "a report's second place": ("report . --limit-mb 1 elsewhere --out r.html", ["elsewhere"]),
    "a report without a size": ("report . --limit-mb nan", ["--limit-mb nan is not allowed"]),
    "nothing to follow": ("report none --follow", ["none is not a folder"]),
    "following too fast": ("report . --every 0 --follow", ["--every 0 is not allowed", "from 0.1"]),
    "nothing that was followed": ("report empty --follow --out r.html", ["no finished run in"]),
    "no such command of tiny": ("tiny bild", ["allowed: make, demonstrate, build"]),
    "no command of tiny": ("tiny", ["unknown command ''"]),
    "an agent of no size": ("tiny build out=other size=2", ["allowed: 0.3, 1, 4.3"]),
    "an agent without a place": ("tiny build", ["`out` is missing"]),
    "an agent shown nothing": ("tiny build out=o split=train", ["demonstrations of no task"]),
    "another world's agent": ("tiny build out=o env=babyai", ["makes the phone world's agent"]),
    "a sweep without jobs": ("sweep fine.yaml --jobs 0", ["--jobs 0", "from 1 to"]),
    "a check of no environment": ("check env=nope", ["'nope'", "babyai, bfcl, custom", "`env`"]),
    "a check of no suite": ("check env.suite=x", ["suite of toolsandbox 'x'", "embedded"]),
    "a check of no split": ("check split=exam", ["'exam'", "train, dev, test"]),
    "a check of no number": ("check limit=x", ["limit=x", "`limit`"]),
    "a check of no task": ("check limit=0", ["limit=0", "`limit`"]),
    "a check of no module": ("check env.factory=nowhere:suite", ["module nowhere cannot be"]),
    "a check of a word": ("check verbose", ["'verbose'", "cannot be read"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_wrong_word_to_another_command_too(name: str, place: Path, capsys: Said) -> None:
    typed, named = OTHERS[name]
    command, *arguments = typed.split(" ")
    before = everything(place)
    assert COMMANDS[command](arguments) == 2
    printed = capsys.readouterr()
    said = [line for line in printed.err.splitlines(True) if "skipped: " not in line]
    one_line("".join(said), named)
    assert not printed.out
    assert everything(place) == before, "something is left half-made"


@pytest.mark.parametrize("typed", [["--config-dir"], ["--info", "nope"]])
def test_a_wrong_flag_shows_the_flags(typed: list[str], capsys: Said) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "usage: " in said and typed[0] in said.splitlines()[-1]


def test_a_folder_of_another_run_is_left_as_it_is(place: Path, capsys: Said) -> None:
    assert main([*QUICK, "run_dir=run"]) == 0
    before = {p: p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}
    capsys.readouterr()
    assert main([*QUICK, "run_dir=run", "seed=1"]) == 2
    one_line(capsys.readouterr().err, ["run belongs to a run with other settings", "seed"])
    assert {p: p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()} == before


@pytest.mark.docker
def test_an_image_that_is_missing_leaves_no_folder(place: Path, capsys: Said) -> None:
    before = everything(place)
    assert main([*QUICK, "sandbox=docker", "env.image=trace-bench/no_such"]) == 2
    one_line(
        capsys.readouterr().err,
        ["the image trace-bench/no_such is missing", "sandbox.build no_such"],
    )
    assert everything(place) == before


def test_a_reader_that_has_seen_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `trace_bench --help | head -1` does."""
    import subprocess
    import sys

    with subprocess.Popen(
        [sys.executable, "-m", "trace_bench", "--help"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ),
    ) as running:  # fmt: skip
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        said = running.stderr.read()
    assert b"Traceback" not in said
