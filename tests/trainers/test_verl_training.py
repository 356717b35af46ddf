"""The real verl trains: two processes on a CPU. What it reports of every iteration is what the
local trainer computes of the same episodes; its adapter is for everyone (run by .ci/verl)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import verl_job as jobs
from models import save_mixture
from playing import play
from thinking import OPENED, AskingSuite, save_thinker
from verl_world import SAME

from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.making import Mix, draw
from trace_bench.policies.engine.lora import read_weights
from trace_bench.settings.schema import Settings
from trace_bench.trainers.course import task_of_group
from trace_bench.trainers.tree import stretches

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

HERE = Path(__file__).parent
NAME, ITERATIONS, GROUPS, SEED = "converts_values", 3, 4, 7


@pytest.fixture(scope="session")
def paths() -> Iterator[None]:
    """verl's processes find the worlds of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{HERE}:{HERE.parent}:{HERE.parents[1]}")
        patch.syspath_prepend(str(HERE))
        yield


@dataclass(frozen=True)
class Trained:
    folder: Path
    chosen: Settings
    agent: AgentSpec
    tasks: list[Task]


@pytest.fixture(scope="session")
def trained(paths: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three iterations of two passes; in the third all rewards of a group are equal."""
    folder = tmp_path_factory.mktemp("verl")
    world = ["env=custom", "env.factory=verl_world:World", f"env.options.folder={folder}"]
    chosen = jobs.settings("budget=96", "trainer.gpus=2", *world)
    suite = jobs.suite_of(chosen)
    tasks = list(draw(suite, NAME, 16, Mix(0.2), 1, "train"))
    last = range((ITERATIONS - 1) * GROUPS, ITERATIONS * GROUPS)
    constant = [task_of_group(group, tasks, SEED).id for group in last]
    (folder / "constant").write_text("\n".join(constant))
    lab = jobs.make_lab(folder, chosen)
    agent = lab.trainer.train(jobs.job(NAME, chosen, tasks), lab)
    lab.close()
    return Trained(folder, chosen, agent, tasks)


def test_every_step_is_the_local_trainers(trained: Trained) -> None:
    calls = jobs.once_each(trained.folder)
    assert calls == {f"train/{NAME}/iter{i:04d}": 32 for i in range(ITERATIONS)}
    lines = jobs.metrics(trained.folder)
    job = jobs.job(NAME, trained.chosen, trained.tasks)
    played = [jobs.played(trained.folder, call) for call in sorted(calls)]
    every, layers = jobs.local_steps(trained.chosen, job, played)
    for n, (line, steps) in enumerate(zip(lines, every, strict=True)):
        assert line["logprob_difference_mean"] < 1e-5 and line["logprob_alarm"] is False
        assert 0 <= line["logprob_difference_kl"] < 1e-8
        assert line["failures"] == line["inexact"] == 0
        assert line["loss"] == pytest.approx(steps.loss / 2, rel=2e-3, abs=1e-6)
        if n == ITERATIONS - 1:  # in float32 the mean of eight times 2/3 is another number
            assert line["constant_share"] == 1 and line["reward"] == pytest.approx(SAME)
            assert line["steps"] == 0 and line["grad_norm"] == 0
            continue
        assert line["constant_share"] < 1 and line["steps"] == steps.steps == 2
        assert line["grad_norm"] == pytest.approx(steps.grad_norm / 2, rel=2e-3)
        assert line["clip_share"] == pytest.approx(steps.clipped / steps.weight, abs=5e-3)
    (adapter,) = trained.agent.adapters
    weights = read_weights(adapter)
    for name, pair in layers.items():
        for part, ours in (("A", pair.a), ("B", pair.b)):
            (theirs,) = [v for k, v in weights.items() if k.endswith(f"{name}.lora_{part}.weight")]
            apart = (theirs - ours.detach()).norm() / ours.detach().norm()
            assert float(apart) < 1e-2


def test_the_adapter_and_the_run_folder(trained: Trained) -> None:
    """peft's log-probabilities are those with which the local policy samples; the finished job is
    answered from disk."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from trace_bench.policies.local import LocalPolicy

    (adapter,) = trained.agent.adapters
    assert adapter.name == f"{NAME}@000{ITERATIONS}"
    policy = LocalPolicy(trained.agent.model, threads=1)
    route = [adapter.name] * 4
    episodes = play(
        policy, jobs.suite_of(trained.chosen), trained.agent, trained.tasks[:4], range(4),
        temperature=1.0, route=route,
    )  # fmt: skip
    plain = AutoModelForCausalLM.from_pretrained(trained.agent.model, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, adapter.path).eval()
    for tokens in stretches(*episodes):
        with torch.inference_mode():
            logprobs = model(torch.tensor(tokens.ids)[None]).logits[0].float().log_softmax(-1)
        at = torch.tensor(tokens.sampled)
        theirs = logprobs[at - 1, torch.tensor(tokens.ids)[at]]
        assert theirs.tolist() == pytest.approx(tokens.logprobs.tolist(), abs=1e-4)

    before = (trained.folder / "ledger.jsonl").read_bytes()
    lab = jobs.make_lab(trained.folder, trained.chosen)
    again = lab.trainer.train(jobs.job(NAME, trained.chosen, trained.tasks), lab)
    assert again == trained.agent and lab.budget_left() == 0
    lab.close()
    assert (trained.folder / "ledger.jsonl").read_bytes() == before


def test_a_mixture_of_experts_that_thinks(paths: None, tmp_path: Path) -> None:
    """Untied embeddings and experts, which have no adapter; episodes of several rows, since its
    template drops earlier thoughts; advantages of turns, which verl's rewards do not tell;
    truncated weights; logits that are never whole (as on GPUs: verl's fused kernels, here by
    torch). One step is the local trainer's."""
    dense = save_thinker(tmp_path / "dense", OPENED)
    model = save_mixture(tmp_path / "model", dense_folder=dense)
    words = ["env=custom", "env.factory=thinking:AskingSuite", "model=hf", f"model.path={model}"]
    words += ["policy.context=512", "policy.max_turns=6", "policy.max_tokens=24", "budget=64"]
    words += ["trainer.groups=8", "trainer.epochs=1", "trainer.gpus=2", "trainer.restarts=0"]
    words += ["trainer.algorithm=gigpo"]
    words += ["trainer.target_modules=[q_proj,k_proj,v_proj,o_proj]"]
    correction = "algorithm.rollout_correction.rollout_is"
    more = ["actor_rollout_ref.model.use_fused_kernels=true", f"{correction}=token"]
    words += [f"trainer.verl={json.dumps([*more, f'{correction}_threshold=2.0'])}"]
    chosen = jobs.settings(*words)
    lab = jobs.make_lab(tmp_path / "run", chosen)
    job = jobs.job("thinks", chosen, AskingSuite().tasks("train"))
    agent = lab.trainer.train(job, lab)
    lab.close()
    assert [a.name for a in agent.adapters] == ["thinks@0001"]
    played = jobs.played(tmp_path / "run", "train/thinks/iter0000")
    assert len(played) == 64 and any(turn.kept is not None for t in played for turn in t.turns)
    (line,) = jobs.metrics(tmp_path / "run")
    assert line["failures"] == line["inexact"] == 0 and line["steps"] == 1
    assert line["logprob_difference_max"] < 2e-4, "verl's rows are what the sampler read"
    ((step,), _) = jobs.local_steps(chosen, job, [played])
    assert line["loss"] == pytest.approx(step.loss, rel=2e-3, abs=1e-6)
    assert line["grad_norm"] == pytest.approx(step.grad_norm, rel=2e-3)
