"""method=cm2: what it needs of suite and trainer, and what no trainer could learn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from named import method
from recordings import recorded, write_apart

from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun, RunContext
from trace_bench.rehearse.scripted import Answer, chat, serve
from trace_bench.trainers.local import LocalTrainer, TrainerSettings

Said = pytest.CaptureFixture[str]
SETTINGS = TrainerSettings(groups=2, group_size=4)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_apart(tmp_path_factory.mktemp("rec") / "phone", recorded(6))


def test_another_trainer_is_refused_at_once(recordings: Path, tmp_path: Path, capsys: Said) -> None:
    given = ["env=recorded", f"env.folder={recordings}", "trainer=custom"]
    given += ["trainer.factory=trace_lab:ScriptedTrainer", "budget=16", f"run_dir={tmp_path / 'r'}"]
    assert main(["method=cm2", *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "needs `Trainer.check_assignment` of the setting `trainer`" in said
    assert "train on the similarity instead" in said
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_an_assignment_from_which_nothing_can_be_learned_is_refused() -> None:
    run = PlannedRun(64, 8, LocalTrainer(SETTINGS, RunContext()))

    def plan(**settings: Any) -> Any:
        return method("cm2", **settings).plan(run)

    plan(level="trajectory")  # its baseline is that of all rollouts
    plan(level="step", holders=4)
    for level in ("turn", "step"):
        with pytest.raises(UserError, match=r"method.holders=5 .*trainer.group_size=4"):
            plan(level=level)


def judge(path: str, body: dict[str, Any]) -> Answer:
    """Affirms everything but the control item."""
    items = body["messages"][1]["content"].split("\n\nItem ")[1:]
    said = [
        {"item": n, "seen": "x", "present": yes, "met": yes, "failed": False, "answer": yes}
        for n, yes in enumerate(("the reference number" not in text for text in items), start=1)
    ]
    return chat(json.dumps({"verdicts": said}))


def test_a_run_says_what_a_judge_cost(recordings: Path, tmp_path: Path, capsys: Said) -> None:
    given = ["method=base", "policy=reference", "env=recorded", f"env.folder={recordings}"]
    given += ["checkpoints=[0]", "evaluation.trials=2"]
    given += ["llm.judge.by=endpoint", "llm.judge.model=j"]
    with serve(judge) as server:
        place = [f"llm.judge.base_url={server.url}", f"run_dir={tmp_path / 'run'}"]
        assert main([*given, *place]) == 0
        asked = len(server.requests)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["usage"]["judge"]["requests"] == asked > 0
    assert f"judge: {asked} requests, " in capsys.readouterr().out
