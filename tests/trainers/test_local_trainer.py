"""The local trainer over the real lab, policy and engine, with a small random model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import killed_until_done
from letters import SETTINGS, LettersEnv, LettersSuite, job, make_lab, task, train
from models import save_mixture

from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.store import read_lines, remove_leftovers
from trace_bench.core.types import AgentSpec, Message, Score, Step, StopReason
from trace_bench.policies.engine.lora import read_weights
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.runner.trackers import CLOCK_WORDS
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.algorithms.gigpo import Gigpo
from trace_bench.trainers.local import PATIENCE, LocalTrainer, TrainerSettings
from trace_bench.trainers.loop import why_untrained, without_signal
from trace_bench.trainers.memory import shape_of


def everything(folder: Path) -> dict[str, object]:
    """All that two equal jobs share: adapters byte by byte, every line but for the clock."""
    files: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            lines = read_lines(path)
            files[name] = [
                {k: v for k, v in line.items() if not k.endswith(CLOCK_WORDS)} for line in lines
            ]
        elif path.is_file() and path.name != "state.pt":
            files[name] = path.read_bytes()
    return files


class Constant(LettersSuite):
    """Every episode has this score."""

    def __init__(self, score: float) -> None:
        super().__init__()
        self.score = score

    def make(self) -> LettersEnv:
        class Same(LettersEnv):
            def step(self, action: Message) -> Step:
                return Step(done=True, score=Score(level, level == 1.0), stop=StopReason.DONE)

        level = self.score
        return Same(())


@pytest.mark.slow
def test_training_raises_the_reward_by_a_peft_adapter(small_model, tmp_path, monkeypatch) -> None:
    """The finished job is answered from disk."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    agent, metrics = train(tmp_path, small_model, 12 * 20)
    rewards = [m["reward"] for m in metrics]
    assert len(rewards) == 20
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3, rewards
    assert all(m["logprob_difference_max"] < 1e-4 for m in metrics if m["steps"])
    assert metrics[0]["learning_rate"] == pytest.approx(0.1)
    assert metrics[-1]["learning_rate"] == pytest.approx(0.1 / 20) and metrics[-1]["spent"] == 240
    assert agent.version == "base+letters@0020"
    assert [a.name for a in agent.adapters] == ["letters@0020"]
    folder = Path(agent.adapters[0].path)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == small_model.name  # no path of this machine
    base = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    ids = torch.arange(20)[None]
    before = base(ids).logits
    loaded = PeftModel.from_pretrained(base, folder)
    assert not torch.allclose(loaded(ids).logits, before)
    assert sum("lora_A" in n for n, _ in loaded.named_parameters()) == 2 * 7
    assert sorted(p.name for p in folder.parent.iterdir()) == ["0020", "state.pt"]

    whole = everything(tmp_path)
    monkeypatch.setattr(LocalTrainer, "learner", None)  # the model is not needed
    assert train(tmp_path, small_model, 12 * 20)[0] == agent
    assert everything(tmp_path) == whole


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_the_same(small_model, tmp_path) -> None:
    """With all that an update may need besides: the base model's and the sampler's probabilities,
    equal observations."""
    how = replace(SETTINGS, algorithm=Gigpo(kl=0.01))
    train(tmp_path / "whole", small_model, 60, how)
    folder = tmp_path / "killed"

    def work() -> None:
        lab = make_lab(folder, small_model, 60, how)
        lab.trainer.train(job(small_model, 60), lab)

    assert killed_until_done(work, 0.05) >= 3
    remove_leftovers(folder.rglob(".*.tmp"))  # as a run does when it starts
    assert everything(folder) == everything(tmp_path / "whole")


@pytest.mark.slow
def test_stopped_between_a_version_and_its_state(small_model, tmp_path, monkeypatch) -> None:
    """It ends as if it had not been; with another seed or other settings it is another job."""
    from trace_bench.trainers.model import State

    train(tmp_path / "whole", small_model, 36)
    save = State.save

    def stop_at_two(self, *rest) -> None:
        if len(self.records) == 2:
            raise KeyboardInterrupt
        save(self, *rest)

    folder = tmp_path / "stopped"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(State, "save", stop_at_two)
        train(folder, small_model, 36)
    assert sorted(p.name for p in folder.glob("adapters/letters/0*")) == ["0001", "0002"]
    train(folder, small_model, 36)
    assert everything(folder) == everything(tmp_path / "whole")
    train(tmp_path / "other", small_model, 36, seed=6)
    name = "adapters/letters/0003/adapter_model.safetensors"
    assert everything(tmp_path / "other")[name] != everything(folder)[name]
    for line_file in ("ledger.jsonl", "trajectories.jsonl"):
        (folder / line_file).unlink()
    with pytest.raises(UserError, match="belongs to a training job with other settings"):
        train(folder, small_model, 36, replace(SETTINGS, learning_rate=0.5))


def test_checkpoints_and_what_is_left(small_model, tmp_path) -> None:
    seen: list[tuple[int, str, int]] = []

    def keep(spent: int, agent: AgentSpec, until: int) -> None:
        seen.append((spent, agent.version, until))

    lab = make_lab(tmp_path, small_model, 41, on_checkpoint=keep)
    lab.trainer.train(job(small_model, 41), lab)
    assert lab.budget_left() == 5  # less than two groups: no iteration
    lab.close()
    # Each stands until the next call has been played; the last one is the caller's to look at.
    assert seen == [(12, "base+letters@0001", 24), (24, "base+letters@0002", 36)]
    last = read_lines(tmp_path / "metrics.jsonl")[-1]
    assert (last["phase"], last["unspent"]) == ("trained", 5)


def test_failed_episodes_are_counted_and_left_out(small_model, tmp_path) -> None:
    _, metrics = train(tmp_path, small_model, 24, suite=LettersSuite(broken=[task(0).id]))
    assert sum(m["failures"] for m in metrics) == 6  # every task once, six times each
    assert max(m["constant_share"] for m in metrics) >= 0.5
    assert all(m["reward"] is not None for m in metrics)


def test_nothing_to_learn_stops_early(small_model, tmp_path) -> None:
    _, metrics = train(tmp_path, small_model, 84, suite=Constant(1.0))
    assert [m["one_share"] for m in metrics] == [1.0] * PATIENCE
    assert all(m["steps"] == 0 and m["loss"] is None for m in metrics)
    assert read_lines(tmp_path / "metrics.jsonl")[-1]["unspent"] == 84 - 12 * PATIENCE


EQUAL = "in every group all rewards were equal"
NO_STEP = {
    "equal rewards": (Constant(0.5), None, f"{EQUAL} (mean reward: 0.5)"),
    "cut by the context": (LettersSuite(), 8, f"{EQUAL} (mean reward: 0)"),
    "lost": (LettersSuite([task(i).id for i in range(4)]), None, "every episode was lost"),
}


@pytest.mark.parametrize(("suite", "context", "why"), NO_STEP.values(), ids=NO_STEP)
def test_without_a_step_no_adapter(small_model, tmp_path, capsys, suite, context, why) -> None:
    policy = LocalPolicy(small_model, batch=16, threads=1, context=context)
    wanted = job(small_model, 24)
    for _ in range(2):  # the second time, it is answered from disk
        lab = make_lab(tmp_path, small_model, 24, suite=suite, policy=policy)
        assert lab.trainer.train(wanted, lab) == wanted.agent
        lab.close()
        said = capsys.readouterr().err
        assert f"letters: no optimizer step, so there is no adapter: {why}" in said
    last = read_lines(tmp_path / "metrics.jsonl")[-1]
    assert (last["phase"], last["adapter"]) == ("trained", None)


def test_a_single_step_makes_an_adapter() -> None:
    still = {"steps": 0, "reward": 0.5, "constant_share": 1.0}
    assert "(mean reward: 0.5, 1)" in str(why_untrained([still, still | {"reward": 1.0}]))
    assert why_untrained([still, still | {"steps": 1, "constant_share": 0.5}]) is None


def test_it_is_said_once_and_early_that_nearly_no_group_has_a_signal() -> None:
    still = {"groups": 8, "constant_share": 1.0}
    one = still | {"constant_share": 0.875}
    said = [without_signal(([one] + [still] * 9)[:n]) for n in range(1, 10)]
    assert [n for n, words in enumerate(said, start=1) if words] == [4]
    assert str(said[3]).startswith("in 1 of the first 32 groups the rewards differ")
    assert without_signal([one] * 4) is None and without_signal([{"loss": 1.0}] * 40) is None


def test_a_sampler_that_is_another_policy_is_an_alarm(small_model, tmp_path, capsys) -> None:
    """The limit may change when a job goes on; what is trained does not depend on it."""
    agent, (first, _) = train(tmp_path, small_model, 24)
    assert first["logprob_alarm"] is False and 0 <= first["logprob_difference_kl"] < 1e-8
    strict = replace(SETTINGS, mismatch=0.0)
    assert train(tmp_path, small_model, 24, strict)[0] == agent
    assert "warning" not in capsys.readouterr().err
    lab = make_lab(tmp_path / "strict", small_model, 24, strict)
    lab.trainer.train(job(small_model, 24), lab)
    lab.close()
    said = capsys.readouterr().err
    assert "warning: letters, iteration 0: sampler and trainer differ by" in said
    assert lab.training.alarms == 2 and lab.training.apart


@pytest.mark.parametrize(
    ("rollouts", "changes", "why"),
    [
        (11, {}, "needs at least 12"),
        (24, {"reward": "speed"}, "unknown reward 'speed'; allowed: similarity, success"),
        (24, {"tasks": ()}, "has no tasks"),
        (24, {"how": replace(SETTINGS, target_modules=("q_proj", "query"))},
         r"unknown LoRA target 'query'; allowed: down_proj, gate_"),
    ],
)  # fmt: skip
def test_bad_jobs(small_model, tmp_path, rollouts, changes: dict[str, Any], why) -> None:
    with pytest.raises(UserError, match=why):
        train(tmp_path, small_model, rollouts, **changes)


def without_logprobs(turn):
    return replace(turn, logprobs=(float("nan"),) * len(turn.logprobs))


def test_rollouts_that_cannot_be_trained_on_end_it(small_model, tmp_path) -> None:
    """A policy without tokens, turns of another adapter, numbers that are none."""
    lab = make_lab(tmp_path / "idle", small_model, 24, policy=IdlePolicy())
    with pytest.raises(UserError, match="no token ids"):
        lab.trainer.train(job(small_model, 24), lab)

    lab = make_lab(tmp_path / "stale", small_model, 24)
    play = lab.rollouts
    lab.rollouts = lambda call, agent, tasks, **how: play(  # type: ignore[assignment]
        call, agent, tasks, **{**how, "route": [None] * len(tasks)}
    )
    with pytest.raises(TraceBenchError, match="expected turns of adapter 'letters@0001', got None"):
        lab.trainer.train(job(small_model, 24), lab)

    lab = make_lab(tmp_path / "nan", small_model, 24)
    real = lab.rollouts
    lab.rollouts = lambda *words, **how: [  # type: ignore[assignment]
        replace(t, turns=tuple(map(without_logprobs, t.turns))) for t in real(*words, **how)
    ]
    with pytest.raises(UserError, match="loss or gradient is not finite"):
        lab.trainer.train(job(small_model, 24), lab)


def test_a_training_that_diverges_stops_and_names_step_and_update(small_model, tmp_path) -> None:
    lab = make_lab(tmp_path, small_model, 24, SETTINGS)
    assert isinstance(lab.trainer, LocalTrainer)
    learner = lab.trainer.learner(str(small_model))
    layer = sorted(learner.layers)[0]

    def diverging(tree):
        with torch.no_grad():
            learner.layers[layer].b.fill_(torch.inf)
        return type(learner).logprobs(learner, tree)

    learner.logprobs = diverging  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"iteration 0, step 1: .* not finite.*largest update is"):
        lab.trainer.train(job(small_model, 24), lab)
    lab.close()


def test_a_second_job_starts_from_the_base_model(small_model, tmp_path) -> None:
    lab = make_lab(tmp_path, small_model, 48)
    first = lab.trainer.train(job(small_model, 24), lab)
    second = lab.trainer.train(replace(job(small_model, 24), name="other"), lab)
    lab.close()
    assert [a.name for a in second.adapters] == ["other@0002"]
    assert first.adapters != second.adapters
    with pytest.raises(ValueError, match="names are used once"):
        lab.trainer.train(job(small_model, 24, agent=first), lab)


@pytest.mark.parametrize(("rank", "alpha"), [(4, 8.0), (6, 24.0)])
def test_training_begins_with_what_an_adapter_computes(small_model, tmp_path, rank, alpha) -> None:
    """Also in an adapter of a larger rank and another scale: the same log-probabilities, and a
    first step that can use the whole rank."""
    agent, _ = train(tmp_path / "first", small_model, 24)
    settings = replace(SETTINGS, rank=rank, alpha=alpha)
    begun, metrics = train(tmp_path / "second", small_model, 24, settings, name="more", agent=agent)
    assert metrics[0]["logprob_difference_max"] < 1e-4 and metrics[0]["steps"]
    assert begun.version == f"{agent.version}+more@0002"
    first = [e for e in read_lines(tmp_path / "second" / "ledger.jsonl") if "iter0000" in e["call"]]
    assert {e["adapter"] for e in first} == {agent.adapters[0].name}


def test_a_mixture_of_experts_has_an_adapter_on_attention(tmp_path) -> None:
    """With untied embeddings. The second iteration's rollouts are made with the adapter of the
    first; experts are refused before a run."""
    model, attention = save_mixture(tmp_path / "model"), LINEAR[:4]
    settings = replace(SETTINGS, target_modules=attention, learning_rate=0.01)
    agent, lines = train(tmp_path / "run", model, 24, settings)
    assert all(m["steps"] and m["logprob_difference_max"] < 5e-5 for m in lines)
    weights = read_weights(agent.adapters[0])
    assert {name.split(".")[-3] for name in weights} == set(attention)
    assert all(bool(value.any()) for value in weights.values())
    trainer = LocalTrainer(TrainerSettings(), RunContext(model=str(model)))
    with pytest.raises(UserError, match=r"experts .* one parameter.*`trainer.target_modules`"):
        trainer.preflight(new=True)
    (missing,) = trainer.machines(None)[1]
    assert "set trainer.target_modules=[q_proj,k_proj,v_proj,o_proj]" in missing
    shape = shape_of(str(model))
    assert shape is not None and (shape.experts, shape.active) == (4, 2)
    assert shape.lora(4, LINEAR) == shape.lora(4, attention) > 0
