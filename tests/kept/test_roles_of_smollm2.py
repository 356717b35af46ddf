"""SmolLM2, served by the project's own server, in all roles of a run at once. It is too weak for
most of them: what it cannot do is an outcome, reported in words, and never a reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.agent import Served, serving

from trace_bench.__main__ import main
from trace_bench.core.types import AgentSpec
from trace_bench.models import NOTE, place, read_kept
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.local import Local, LocalEngine
from trace_bench.serve.request import ServeSettings

CACHE = place(None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CACHE / "smollm2" / NOTE).is_file(),
        reason="SmolLM2 is not here: python -m trace_bench.models get smollm2 (93 MB)",
    ),
]
ANSWER = 768  # tokens
SMALL = [
    *("budget=48", "method.analysis_share=0.2", "method.analysis_minimum=8"),
    *("env.train_tasks=8", "method.runs=2", "method.keep_runs=1"),
    *("method.minimum_runs=1", "method.minimum_training=8", "method.generator_rounds=1"),
    *("method.minimum_support=1", "method.calibration_groups=1"),
    *("method.calibration_group_size=2", "method.max_capabilities=1"),
    *("checkpoints=[]", "evaluation.limit=4", "evaluation.yardsticks=false"),
    *("sandbox=process", "sandbox.allow_untrusted=true", "llm=endpoint", "llm.shared.model=base"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    folder = read_kept(CACHE, "smollm2").folder
    agent = AgentSpec(str(folder))
    policy = LocalPolicy(folder, batch=4, context=3072, threads=1)
    backend = Local(LocalEngine(policy, agent, ANSWER))
    with serving(backend, agent, ServeSettings(tokens=ANSWER, body=2**22)) as found:
        yield found


def test_a_run_with_it_in_all_roles_ends_with_its_outcome(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    roles = ("user", "analyst", "generator", "reflector", "judge", "annotator", "simulator")
    own = [
        f"llm.{role}.{setting}"
        for role in roles
        for setting in ("temperature=0", "tries=1", "context=2048", f"max_tokens={ANSWER}")
    ]
    where = [f"llm.shared.base_url={served.url}/v1", f"run_dir={folder}"]
    code = main(["method=trace", *SMALL, *own, *where])
    said = capsys.readouterr()
    answers = [json.loads(line) for line in (folder / "llm.jsonl").read_text().splitlines()]
    assert answers and not any("error" in line for line in answers)
    if code == 0:
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["health"] and "health" in said.out
    else:
        assert code == 2 and "error: the analyst" in said.err
        assert "The same command" in said.err and "Traceback" not in said.err
