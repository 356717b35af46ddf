"""The examples, run as a user runs them after copying them into a folder of their own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from forks import forked_in
from pages import EXAMPLES, lay_out

from trace_bench.report.runs import find

FILES = sorted(EXAMPLES.glob("*.py"))
LIBRARIES = ("fastapi", "torch", "tokenizers", "transformers")
PUBLIC = {"trace_bench", "trace_bench.trainers.adapters", "trace_bench.trainers.algorithms"}
"""What examples may import of the package: a trainer writes adapters."""
INSIDE = ("annotate",)  # a tool for the recordings of this very version


@pytest.fixture
def here(tmp_path: Path) -> Path:
    lay_out(tmp_path)
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    """What a Python program prints in that folder."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def module(folder: Path, name: str, *arguments: str) -> str:
    """What `python -m name arguments` prints in that folder."""
    code, said = forked_in(folder, name, *arguments)
    assert code == 0, said
    return said


def summaries(folder: Path) -> dict[str, dict]:
    """By the method's name."""
    found = [json.loads(path.read_text()) for path in folder.glob("runs/**/summary.json")]
    return {summary["method"]: summary for summary in found}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_an_example_needs_nothing_but_the_package(path: Path) -> None:
    text = path.read_text()
    ours = {p.stem for p in FILES}
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            first = name.partition(".")[0]
            allowed = {*sys.stdlib_module_names, *ours, *LIBRARIES}
            inside = path.stem in INSIDE and first == "trace_bench"
            assert name in PUBLIC or inside or first in allowed, name


@pytest.mark.slow
def test_the_desk_is_learned_and_what_was_lacking_is_found(here: Path) -> None:
    """GRPO and TRACE from the command line: the small agent answers when the line is up and does
    not know what to do when it is down."""
    settings = ["env=custom", "env.factory=desk:Suite", "env.options.size=24", "budget=224"]
    quick = ["checkpoints=[]", "evaluation.yardsticks=false", "evaluation.routing=false"]
    printed = module(here, "trace_bench", "-m", "method=grpo,trace", *settings, *quick)
    assert "capabilities: recovers_from_errors" in printed
    assert "grpo on desk/own, " in printed
    found = summaries(here)
    for method in ("trace", "grpo"):
        base, score = found[method]["base_score"], found[method]["score"]
        assert 0.3 < base["success"] < 0.8 and score["failures"] == 0
        assert score["success"] > base["success"] + 0.2
    assert list(found["trace"]["capabilities"]) == ["recovers_from_errors"]
    assert found["trace"]["origins"]["env"]["module"] == "desk"


@pytest.mark.slow
def test_a_trainer_of_ones_own(here: Path) -> None:
    """The adapter that moved is the one that is evaluated, and every member's episode is paid."""
    trainer = ["trainer=custom", "trainer.factory=es:Evolution", "trainer.options.pairs=2"]
    env = ["env=custom", "env.factory=desk:Suite", "env.options.size=8", "evaluation.limit=2"]
    arguments = ["trace_bench", "method=rl", *trainer, *env, "checkpoints=[]"]
    module(here, *arguments, "budget=13")
    (summary,) = summaries(here).values()
    assert summary["rollouts"]["training"] == 12, "of 13: one member would play alone"
    assert summary["adapters"] == ["rl@0002"]
    assert summary["table"][1]["name"] == "rl, Evolution", "nobody takes it for GRPO's"
    assert [row.method for row in find([here])[0]] == ["rl, Evolution, budget 13"]
    code, said = forked_in(here, *arguments, "budget=3")
    assert code == 2 and "needs at least 4" in said


@pytest.mark.slow
def test_a_model_of_ones_own_learns(here: Path) -> None:
    python(here, "own_model.py", "qwen3", "llama")
    found = {}
    for path in here.glob("runs/**/summary.json"):
        summary = json.loads(path.read_text())
        found[Path(json.loads((path.parent / "agent.json").read_text())["model"]).name] = summary
    assert found.keys() == {"qwen3", "llama"}
    for kind, summary in found.items():
        config = json.loads((here / "own_model" / kind / "config.json").read_text())
        assert config["model_type"] == kind
        assert summary["base_score"]["similarity"] < 0.5 < 0.9 < summary["score"]["similarity"]


@pytest.mark.slow
def test_the_notebook_runs_loads_and_compares(here: Path) -> None:
    printed = python(here, "compare.py")
    assert "GRPO less prompts: +" in printed
    assert "Result(grpo, success 1.000" in printed
    assert len(summaries(here)) == 2
