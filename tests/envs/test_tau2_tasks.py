"""The releases of τ²'s tasks. Those that inspect-evals does not ship need a checkout of the
benchmark at v1.0.1, named in TAU2_SOURCE."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playing import play
from sandboxes import in_process
from shared import needs

from trace_bench.core.errors import UserError
from trace_bench.core.types import AgentSpec
from trace_bench.envs.tau2 import data as tau2_data
from trace_bench.envs.tau2.score import assertions
from trace_bench.envs.tau2.suite import Tau2Suite
from trace_bench.policies.scripted import IdlePolicy, ReferencePolicy
from trace_bench.rehearse.scripted import Answer, chat, serve
from trace_bench.runner.pipeline import run
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import identity, parts_of

pytestmark = needs("inspect_evals", "the extra tau2 is not installed")

SOURCE = os.environ.get("TAU2_SOURCE")
LIMIT = 16  # tasks of a run
needs_checkout = pytest.mark.skipif(SOURCE is None, reason="TAU2_SOURCE names no checkout")


def newer(domain: str, **more: Any) -> Tau2Suite:
    suite: Tau2Suite = in_process("tau2", domain, tasks="v1.0", source=SOURCE, **more)
    return suite


def solved(suite: Any, policy: Any) -> int:
    tasks = suite.tasks("base")
    played = play(policy, suite, AgentSpec("x"), tasks, range(len(tasks)), max_turns=100)
    assert not [t.failure for t in played if t.failure]
    return sum(t.score.success for t in played if t.score)


@needs_checkout
@pytest.mark.parametrize(
    ("domain", "tasks", "idle", "old_keys"), [("airline", 50, 23, 38), ("retail", 114, 11, 111)]
)
def test_newer_tasks_can_be_solved_and_older_keys_do_not_fit_them(
    domain: str, tasks: int, idle: int, old_keys: int
) -> None:
    suite, old = newer(domain), in_process("tau2", domain)
    assert solved(suite, ReferencePolicy(suite)) == tasks
    assert solved(suite, IdlePolicy()) == idle
    same = [t.data["record"]["id"] for t in suite.tasks("base")]
    assert same == [t.data["record"]["id"] for t in old.tasks("base")]
    fits = 0
    for task, before in zip(suite.tasks("base"), old.tasks("base"), strict=True):
        env = suite.make()
        env.reset(task)
        steps = [env.step(action) for action in old.reference(before)]
        fits += bool(steps[-1].score and steps[-1].score.success)
    assert fits == old_keys


@needs_checkout
def test_the_image_takes_the_tasks_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Path(__file__).parents[2] / "containers" / "tau2" / "prepare.py"
    subprocess.run([sys.executable, str(prepare), str(tmp_path)], check=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    suite = in_process("tau2", "airline", tasks="v1.0")
    assert suite.about()["data"] == newer("airline").about()["data"]


@needs_checkout
@pytest.mark.parametrize("sandbox", ["inline", "process"])
def test_a_judge_behind_http_decides_and_its_failure_is_not_the_agents(
    sandbox: str, tmp_path: Path
) -> None:
    """Retail's score rests on statements: the judge approves of all but one, and cannot be asked
    about another."""
    suite = newer("retail")
    tasks = suite.tasks("base")[:LIMIT]
    stated = [t for t in tasks if assertions(t.data["record"])]
    first, *rest = (assertions(t.data["record"])[0] for t in stated)
    against, (gone, *_) = first, [s for s in rest if s != first]
    refused = [t.id for t in stated if assertions(t.data["record"])[0] == against]
    unheard = [t.id for t in stated if assertions(t.data["record"])[0] == gone]

    def script(path: str, body: dict[str, Any]) -> Answer:
        question = body["messages"][1]["content"]
        if gone in question:
            return Answer({"error": "no"}, status=400)
        listed = question.rpartition("Statements:\n")[2].splitlines()
        fine = against not in question
        entries = [
            {"statement": n, "why": "so", "true": fine and "the reference number" not in text}
            for n, text in enumerate(listed, 1)
        ]
        return chat(json.dumps({"verdicts": entries}))

    with serve(script) as server:
        settings = [
            "env=tau2", "env.domain=retail", "env.tasks=v1.0", f"env.source={SOURCE}",
            "method=base", "policy=reference", "evaluation.split=base",
            f"evaluation.limit={LIMIT}", "evaluation.retries=0", f"sandbox={sandbox}",
            "llm.judge.by=endpoint", f"llm.judge.base_url={server.url}", "llm.judge.model=j",
            "llm.judge.retries=0", f"run_dir={tmp_path / 'r'}",
        ]  # fmt: skip
        run(compose(settings))
    lines = [json.loads(s) for s in (tmp_path / "r" / "evaluation.jsonl").read_text().splitlines()]
    final = {o["task"]: o for o in lines if o["agent"] == "final"}
    assert all(final[task]["score"]["success"] is False for task in refused)
    assert all(final[task]["score"] is None for task in unheard)
    assert all(final[task]["error"].startswith("judge: ") for task in unheard)
    assert all("the judge" in final[task]["error"] for task in unheard)
    others = [o for task, o in final.items() if task not in {*refused, *unheard}]
    assert others and all(o["score"]["success"] for o in others)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["suite_data"]["judge"].startswith("llm, prompt 2: ")
    assert summary["models"]["judge"]["model"] == "j"


def test_telecoms_tasks_are_the_same_and_need_no_checkout() -> None:
    suite = in_process("tau2", "telecom", tasks="v1.0")
    old = in_process("tau2", "telecom")
    assert [t.data for t in suite.tasks("base")] == [t.data for t in old.tasks("base")]
    assert "tasks v1.0" in suite.about()["data"] and "tasks v0.2" in old.about()["data"]


def test_tasks_that_are_not_there_or_are_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs a checkout of github\.com/sierra-research") as none:
        in_process("tau2", "airline", tasks="v1.0")
    assert "git clone --depth 1 --branch v1.0.1" in str(none.value)
    with pytest.raises(UserError, match="has no tasks of airline") as empty:
        in_process("tau2", "airline", tasks="v1.0", source=str(tmp_path))
    assert "git clone --depth 1 --branch v1.0.1" in str(empty.value)
    domain = tmp_path / "data" / "tau2" / "domains" / "retail"
    domain.mkdir(parents=True)
    shipped = tau2_data.port() / "data" / "domains" / "retail" / "tasks.json"
    shutil.copyfile(shipped, domain / "tasks.json")
    with pytest.raises(UserError, match="it is another release, was changed"):
        in_process("tau2", "retail", tasks="v1.0", source=str(tmp_path))
    with pytest.raises(UserError, match=r"env\.tasks=v0\.2 are those of inspect-evals"):
        in_process("tau2", "retail", source=str(tmp_path))
    with pytest.raises(UserError, match=r"'2025'; allowed: v0\.2, v1\.0"):
        in_process("tau2", "retail", tasks="2025")


def test_the_release_identifies_a_run_and_the_place_of_the_checkout_does_not() -> None:
    def found(*more: str) -> dict[str, Any]:
        settings = compose(["method=base", "policy=reference", "env=tau2", *more])
        return dict(identity(settings, parts_of(settings))["env"])

    one, two = found("env.source=/a", "env.tasks=v1.0"), found("env.source=/b", "env.tasks=v1.0")
    assert one == two and one["tasks"] == "v1.0" and found()["tasks"] == "v0.2"
