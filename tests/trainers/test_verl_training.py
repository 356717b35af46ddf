"""The real verl trains the tiny agent: two processes on a CPU, one capability's environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import verl_job as jobs

from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.making import Mix, draw
from trace_bench.results.statistics import paired_difference

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

NAME, ITERATIONS = "converts_values", 10


@dataclass(frozen=True)
class Trained:
    folder: Path
    agent: AgentSpec
    tasks: list[Task]

    @property
    def verl(self) -> Path:
        return self.folder / "adapters" / NAME / "verl"

    def validated(self, step: int) -> dict[str, dict[str, Any]]:
        """Trajectories of verl's validation after so many iterations, by task."""
        lines = [x for path in self.verl.glob("validation/*.jsonl") for x in read_lines(path)]
        mine = [x for x in lines if x["call"].endswith(f"/{step:04d}")]
        return {x["trajectory"]["task"]: x["trajectory"] for x in mine}

    def reported(self, step: int) -> float:
        """What verl itself logged of it."""
        for path in self.verl.glob("metrics-*.jsonl"):
            for line in read_lines(path):
                if line["step"] == step:
                    for key, value in line["data"].items():
                        if key.startswith("val-") and key.endswith("/reward/mean@1"):
                            return float(value)
        raise AssertionError(f"verl reported no validation of step {step}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    chosen = jobs.settings("trainer.gpus=2", "budget=320", f"trainer.validate_every={ITERATIONS}")
    folder = tmp_path_factory.mktemp("verl")
    suite = jobs.suite_of(chosen)
    tasks = draw(suite, NAME, 64, Mix(0.2), 1, "train")
    held_out = list(draw(suite, NAME, 96, Mix(0.2), 1, "validation"))
    lab = jobs.make_lab(folder, chosen, held_out)
    agent = lab.trainer.train(jobs.job(NAME, chosen, tasks), lab)
    lab.close()
    return Trained(folder, agent, held_out)


def test_the_budget_is_spent_exactly(trained: Trained) -> None:
    calls = jobs.once_each(trained.folder)
    assert calls == {f"train/{NAME}/iter{i:04d}": 32 for i in range(ITERATIONS)}


def test_the_validation_reward_rises(trained: Trained) -> None:
    before, after = (
        {t: x["score"]["similarity"] for t, x in trained.validated(step).items()}
        for step in (0, ITERATIONS)
    )
    gain = paired_difference(after, before)
    assert gain.n == 96
    assert gain.value > 0 and gain.p_value < 0.05


def test_sampler_and_trainer_agree(trained: Trained) -> None:
    found = jobs.metrics(trained.folder)
    assert len(found) == ITERATIONS
    for line in found:
        assert line["logprob_difference_mean"] < 1e-5
        assert 0 <= line["logprob_difference_kl"] < 1e-8 and line["logprob_alarm"] is False
        assert line["steps"] == (0 if line["constant_share"] == 1.0 else 2)  # of two epochs
        assert line["failures"] == line["inexact"] == 0
        assert 0 <= line["constant_share"] <= 1 and 0 <= line["clip_share"] <= 1
        assert line["reward"] is not None and line["grad_norm"] is not None


def test_the_local_policy_scores_what_verl_reported(trained: Trained) -> None:
    from playing import play

    from trace_bench.policies.local import LocalPolicy

    chosen = jobs.settings()
    policy = LocalPolicy(trained.agent.model, threads=1)
    (adapter,) = trained.agent.adapters
    suite = jobs.suite_of(chosen)
    n = len(trained.tasks)
    played = play(
        policy,
        suite,
        trained.agent,
        trained.tasks,
        [0] * n,
        temperature=0.0,
        route=[adapter.name] * n,
    )
    here = {t.task: t.score.similarity for t in played if t.score is not None}
    there = {t: x["score"]["similarity"] for t, x in trained.validated(ITERATIONS).items()}
    assert here == there
    assert sum(here.values()) / n == pytest.approx(trained.reported(ITERATIONS), abs=1e-6)


def test_peft_loads_the_adapter(trained: Trained) -> None:
    """The log-probabilities that the sampler wrote down are those of the model that peft makes."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    (adapter,) = trained.agent.adapters
    plain = AutoModelForCausalLM.from_pretrained(trained.agent.model, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, adapter.path).eval()
    for trajectory in list(trained.validated(ITERATIONS).values())[:5]:
        ids: list[int] = []
        places: list[tuple[int, float]] = []
        for turn in trajectory["turns"]:
            ids += turn["prompt_ids"]
            places += zip(range(len(ids), 10**9), turn["logprobs"], strict=False)
            ids += turn["token_ids"]
        with torch.inference_mode():
            logprobs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        for place, expected in places:
            assert float(logprobs[place - 1, ids[place]]) == pytest.approx(expected, abs=1e-4)


def test_a_finished_job_is_answered_from_disk(trained: Trained) -> None:
    chosen = jobs.settings("trainer.gpus=2", "budget=320", f"trainer.validate_every={ITERATIONS}")
    before = (trained.folder / "ledger.jsonl").read_bytes()
    tasks = draw(jobs.suite_of(chosen), NAME, 64, Mix(0.2), 1, "train")
    lab = jobs.make_lab(trained.folder, chosen)
    assert lab.trainer.train(jobs.job(NAME, chosen, tasks), lab) == trained.agent
    assert lab.budget_left() == 0
    lab.close()
    assert (trained.folder / "ledger.jsonl").read_bytes() == before
