"""The local trainer over the real lab, policy and engine, with a small random model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forks import killed_until_done
from letters import SETTINGS, LettersSuite, job, make_lab, task
from models import save_model

from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.store import read_lines, remove_leftovers
from trace_bench.core.types import AgentSpec
from trace_bench.policies.local import LocalPolicy
from trace_bench.trackers.jsonl import CLOCK_WORDS
from trace_bench.trainers.algorithms.gigpo import Gigpo
from trace_bench.trainers.local import LocalTrainer, TrainerSettings
from trace_bench.trainers.loop import why_untrained


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"))


def train(folder: Path, model: Path, rollouts: int, settings=SETTINGS, **changes):
    """(agent, lines of metrics of the iterations)."""
    lab = make_lab(folder, model, rollouts, settings, changes.pop("suite", None))
    agent = lab.trainer.train(job(model, rollouts, **changes), lab)
    lab.close()
    return agent, [r for r in read_lines(folder / "metrics.jsonl") if r["phase"] == "training"]


def everything(folder: Path) -> dict[str, object]:
    """All that two equal jobs share: adapters byte by byte, every line but for the clock."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            lines = read_lines(path)
            found[name] = [
                {k: v for k, v in line.items() if not k.endswith(CLOCK_WORDS)} for line in lines
            ]
        elif path.is_file() and path.name != "state.pt":
            found[name] = path.read_bytes()
    return found


def test_training_raises_the_reward(model, tmp_path) -> None:
    agent, metrics = train(tmp_path, model, 12 * 20)
    rewards = [m["reward"] for m in metrics]
    assert len(rewards) == 20
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3, rewards
    first = metrics[0]
    assert first["logprob_difference_max"] < 1e-4  # the sampler's and ours, before any step
    assert all(m["logprob_difference_max"] < 1e-4 for m in metrics if m["steps"])
    assert first["learning_rate"] == pytest.approx(0.1)
    assert metrics[-1]["learning_rate"] == pytest.approx(0.1 / 20)
    assert metrics[-1]["spent"] == 240
    assert agent.version == "base+letters@0020"
    assert [a.name for a in agent.adapters] == ["letters@0020"]


def test_the_adapter_is_a_peft_adapter(model, tmp_path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    agent, _ = train(tmp_path, model, 24)
    folder = Path(agent.adapters[0].path)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == model.name  # no path of this machine
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.arange(20)[None]
    before = base(ids).logits
    loaded = PeftModel.from_pretrained(base, folder)
    assert not torch.allclose(loaded(ids).logits, before)
    assert sum("lora_A" in n for n, _ in loaded.named_parameters()) == 2 * 7
    assert sorted(p.name for p in folder.parent.iterdir()) == ["0002", "state.pt"]


def test_the_same_job_twice_is_the_same_job(model, tmp_path) -> None:
    for name in ("a", "b"):
        train(tmp_path / name, model, 36)
    assert everything(tmp_path / "a") == everything(tmp_path / "b")
    train(tmp_path / "c", model, 36, seed=6)
    name = "adapters/letters/0003/adapter_model.safetensors"
    assert everything(tmp_path / "c")[name] != everything(tmp_path / "a")[name]


def test_a_finished_job_is_answered_from_disk(model, tmp_path, monkeypatch) -> None:
    agent, _ = train(tmp_path, model, 36)
    before = everything(tmp_path)
    lab = make_lab(tmp_path, model, 36)

    def refuse(*_: object) -> None:
        raise AssertionError("the model is not needed")

    monkeypatch.setattr(lab.trainer, "learner", refuse)
    assert lab.trainer.train(job(model, 36), lab) == agent
    assert lab.budget_left() == 0
    lab.close()
    assert everything(tmp_path) == before


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_the_same(model, tmp_path) -> None:
    """With all that an update may need besides: the base model's and the sampler's probabilities,
    equal observations."""
    how = replace(SETTINGS, algorithm=Gigpo(kl=0.01, truncate=2.0))
    train(tmp_path / "whole", model, 60, how)
    folder = tmp_path / "killed"

    def work() -> None:
        lab = make_lab(folder, model, 60, how)
        lab.trainer.train(job(model, 60), lab)

    assert killed_until_done(work, 0.05, 0.037) >= 3
    remove_leftovers(folder.rglob(".*.tmp"))  # as a run does when it starts
    assert everything(folder) == everything(tmp_path / "whole")


def test_killed_between_a_version_and_its_state(model, tmp_path, monkeypatch) -> None:
    from trace_bench.trainers.state import State

    train(tmp_path / "whole", model, 36)
    save = State.save

    def stop_at_two(self, *args) -> None:
        if len(self.records) == 2:
            raise KeyboardInterrupt
        save(self, *args)

    folder = tmp_path / "stopped"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(State, "save", stop_at_two)
        train(folder, model, 36)
    assert (folder / "adapters/letters/0001").is_dir()
    assert (folder / "adapters/letters/0002").is_dir()
    train(folder, model, 36)
    assert everything(folder) == everything(tmp_path / "whole")


def test_another_job_in_the_folder_is_refused(model, tmp_path) -> None:
    train(tmp_path, model, 24)
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "trajectories.jsonl").unlink()
    with pytest.raises(UserError, match="belongs to a training job with other settings"):
        train(tmp_path, model, 24, replace(SETTINGS, learning_rate=0.5))


def test_checkpoints_and_what_is_left(model, tmp_path) -> None:
    seen: list[tuple[int, str, int]] = []
    lab = make_lab(
        tmp_path,
        model,
        41,
        on_checkpoint=lambda spent, agent, until: seen.append((spent, agent.version, until)),
    )
    lab.trainer.train(job(model, 41), lab)
    assert lab.budget_left() == 5  # less than two groups: no iteration
    lab.close()
    # Each stands until the next call has been played; the last one is the caller's to look at.
    assert seen == [(12, "base+letters@0001", 24), (24, "base+letters@0002", 36)]
    last = read_lines(tmp_path / "metrics.jsonl")[-1]
    assert (last["phase"], last["unspent"]) == ("trained", 5)


def test_failed_episodes_are_counted_and_left_out(model, tmp_path) -> None:
    suite = LettersSuite(broken=[task(0).id])
    _, metrics = train(tmp_path, model, 24, suite=suite)
    assert sum(m["failures"] for m in metrics) == 6  # every task once, six times each
    assert max(m["constant_share"] for m in metrics) >= 0.5
    assert all(m["reward"] is not None for m in metrics)


class Perfect(LettersSuite):
    def make(self):
        env = super().make()
        play = env.step
        env.step = lambda action: replace(play(action), score=replace_score())  # type: ignore[method-assign]
        return env


def test_nothing_to_learn_stops_early(model, tmp_path) -> None:
    settings = replace(SETTINGS, patience=2)
    _, metrics = train(tmp_path, model, 60, settings, suite=Perfect())
    assert len(metrics) == 2
    assert [m["one_share"] for m in metrics] == [1.0, 1.0]
    assert all(m["steps"] == 0 and m["loss"] is None for m in metrics)
    assert read_lines(tmp_path / "metrics.jsonl")[-1]["unspent"] == 60 - 24


@pytest.mark.parametrize(
    ("suite", "context", "why"),
    [
        (Perfect(), None, "in every group all rewards were equal (mean reward: 1)"),
        (LettersSuite(), 8, "in every group all rewards were equal (mean reward: 0)"),
        (LettersSuite(broken=[task(i).id for i in range(4)]), None, "every episode was lost"),
    ],
    ids=["equal rewards", "cut by the context", "lost"],
)
def test_without_an_optimizer_step_there_is_no_adapter(
    model, tmp_path, capsys, suite, context, why
) -> None:
    policy = LocalPolicy(model, batch=16, threads=1, context=context)
    lab = make_lab(tmp_path, model, 24, suite=suite, policy=policy)
    wanted = job(model, 24)
    for _ in range(2):  # the second time, it is answered from disk
        assert lab.trainer.train(wanted, lab) == wanted.agent
        lab.close()
        said = capsys.readouterr().err
        assert f"letters: no optimizer step, so there is no adapter: {why}" in said
        lab = make_lab(tmp_path, model, 24, suite=suite, policy=policy)
    last = read_lines(tmp_path / "metrics.jsonl")[-1]
    assert (last["phase"], last["adapter"]) == ("trained", None)


def test_a_sampler_that_is_another_policy_is_an_alarm(model, tmp_path, capsys) -> None:
    """The limit may change when a job goes on; what is trained does not depend on it."""
    agent, (first, _) = train(tmp_path, model, 24)
    assert first["logprob_alarm"] is False and 0 <= first["logprob_difference_kl"] < 1e-8
    assert "warning" not in capsys.readouterr().err
    strict = replace(SETTINGS, mismatch=0.0)
    assert train(tmp_path, model, 24, strict)[0] == agent
    lab = make_lab(tmp_path / "strict", model, 24, strict)
    lab.trainer.train(job(model, 24), lab)
    lab.close()
    said = capsys.readouterr().err
    assert "warning: letters, iteration 0: sampler and trainer differ by" in said
    assert "more than trainer.mismatch=0:" in said
    assert lab.training.alarms == 2 and lab.training.apart


def test_a_single_step_makes_an_adapter() -> None:
    still = {"steps": 0, "reward": 0.5, "constant_share": 1.0}
    assert why_untrained([still]) == "in every group all rewards were equal (mean reward: 0.5)"
    assert "(mean reward: 0.5, 1)" in str(why_untrained([still, still | {"reward": 1.0}]))
    assert why_untrained([still, still | {"steps": 1, "constant_share": 0.5}]) is None


def replace_score():
    from trace_bench.core.types import Score

    return Score(1.0, True)


def test_small_forward_passes_change_nothing_but_rounding(model, tmp_path) -> None:
    for name, size in (("one", 16384), ("many", 40)):
        train(tmp_path / name, model, 12, replace(SETTINGS, batch_tokens=size))
    from safetensors.torch import load_file

    file = "adapters/letters/0001/adapter_model.safetensors"
    one, many = load_file(tmp_path / "one" / file), load_file(tmp_path / "many" / file)
    assert one.keys() == many.keys()
    # AdamW's first steps go by a gradient's sign: a tiny one may turn with rounding.
    close = [torch.isclose(one[k], many[k], atol=1e-4).float().mean() for k in one]
    assert torch.stack(close).mean() > 0.99


def test_unknown_targets_name_those_there_are(model, tmp_path) -> None:
    settings = replace(SETTINGS, target_modules=("q_proj", "query"))
    with pytest.raises(UserError, match=r"unknown LoRA target 'query'; allowed: down_proj, gate_"):
        train(tmp_path, model, 24, settings)


def test_bad_jobs(model, tmp_path) -> None:
    with pytest.raises(UserError, match="needs at least 12"):
        train(tmp_path / "a", model, 11)
    with pytest.raises(UserError, match="unknown reward 'speed'; allowed: similarity, success"):
        train(tmp_path / "b", model, 24, reward="speed")
    with pytest.raises(UserError, match="has no tasks"):
        train(tmp_path / "c", model, 24, tasks=())


def test_a_policy_without_tokens_is_refused(model, tmp_path) -> None:
    from trace_bench.policies.scripted import IdlePolicy

    lab = make_lab(tmp_path, model, 24, policy=IdlePolicy())
    with pytest.raises(UserError, match="no token ids"):
        lab.trainer.train(job(model, 24), lab)


def test_an_adapter_that_was_not_asked_for_ends_training(model, tmp_path) -> None:
    lab = make_lab(tmp_path, model, 24)
    play = lab.rollouts

    def stale(call, agent, tasks, **how):
        return play(call, agent, tasks, **{**how, "route": [None] * len(tasks)})

    lab.rollouts = stale  # type: ignore[method-assign]
    with pytest.raises(TraceBenchError, match="expected turns of adapter 'letters@0001', got None"):
        lab.trainer.train(job(model, 24), lab)


def test_training_that_comes_apart_says_so(model, tmp_path) -> None:
    lab = make_lab(tmp_path, model, 24)
    play = lab.rollouts

    def poisoned(*args, **how):
        return [replace(t, turns=tuple(map(spoil, t.turns))) for t in play(*args, **how)]

    def spoil(turn):
        return replace(turn, logprobs=(float("nan"),) * len(turn.logprobs))

    lab.rollouts = poisoned  # type: ignore[method-assign]
    with pytest.raises(UserError, match="loss or gradient is not finite"):
        lab.trainer.train(job(model, 24), lab)


def test_a_training_that_diverges_stops_and_names_step_and_update(model, tmp_path) -> None:
    lab = make_lab(tmp_path, model, 24, SETTINGS)
    assert isinstance(lab.trainer, LocalTrainer)
    learner = lab.trainer.learner(str(model))
    layer = sorted(learner.layers)[0]

    def diverging(tree):
        with torch.no_grad():
            learner.layers[layer].b.fill_(torch.inf)
        return type(learner).logprobs(learner, tree)

    learner.logprobs = diverging  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"iteration 0, step 1: .* not finite.*largest update is"):
        lab.trainer.train(job(model, 24), lab)
    lab.close()


def test_a_second_job_starts_from_the_base_model(model, tmp_path) -> None:
    lab = make_lab(tmp_path, model, 48)
    first = lab.trainer.train(job(model, 24), lab)
    second = lab.trainer.train(replace(job(model, 24), name="other"), lab)
    lab.close()
    assert [a.name for a in second.adapters] == ["other@0002"]
    assert first.adapters != second.adapters
    both = lab.trainer  # a name is used once
    assert isinstance(both, LocalTrainer)
    agent = AgentSpec(str(model), adapters=first.adapters)
    with pytest.raises(ValueError, match="names are used once"):
        both.train(job(model, 24, agent=agent), lab)


def test_settings_are_frozen_and_light() -> None:
    with pytest.raises(AttributeError):
        TrainerSettings().rank = 3  # type: ignore[misc]


@pytest.mark.parametrize(("rank", "alpha"), [(4, 8.0), (8, 8.0), (6, 24.0)])
def test_training_begins_with_what_an_adapter_computes(model, tmp_path, rank, alpha) -> None:
    """Also in an adapter of a larger rank and another scale: the same log-probabilities, and a
    first step that can use the whole rank."""
    agent, _ = train(tmp_path / "first", model, 36)
    settings = replace(SETTINGS, rank=rank, alpha=alpha)
    begun, metrics = train(tmp_path / "second", model, 24, settings, name="more", agent=agent)
    assert metrics[0]["logprob_difference_max"] < 1e-4 and metrics[0]["steps"]
    assert [a.name for a in begun.adapters] == ["more@0002"]
    assert begun.version == f"{agent.version}+more@0002"
    first = [e for e in read_lines(tmp_path / "second" / "ledger.jsonl") if "iter0000" in e["call"]]
    assert {e["adapter"] for e in first} == {agent.adapters[0].name}
