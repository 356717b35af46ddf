"""Rollouts that play with a hint and are trained on without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from letters import SETTINGS, LettersEnv, LettersSuite, job, make_lab, task
from models import save_model
from playing import play

from trace_bench.core.chat import make_call
from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Suite, adopted
from trace_bench.core.store import read_lines
from trace_bench.core.types import AgentSpec, Message, Task, Trajectory
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.trainers.course import hint, sequences
from trace_bench.trainers.settings import TrainerSettings
from trace_bench.trainers.tree import build, stretches
from trace_bench.trainers.update import State

HINTED = replace(SETTINGS, hinted=2)  # of six


class Tooled(LettersSuite):
    """Its reference calls two tools, one of them twice."""

    def reference(self, task: Task) -> Sequence[Message]:
        calls = [make_call("one"), make_call("two"), make_call("one")]
        return [*calls, {"role": "assistant", "content": "abc"}]


class Bare:
    """The same world without references."""

    name, variant = "letters", "bare"

    def __init__(self) -> None:
        letters = LettersSuite()
        self.splits, self.tasks, self.task = letters.splits, letters.tasks, letters.task
        self.make = letters.make


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"))


def train(
    folder: Path, model: Path, rollouts: int, settings: TrainerSettings, suite: Any = None
) -> tuple[list[Trajectory], list[Any]]:
    """The episodes in order, and the lines of metrics of the iterations."""
    lab = make_lab(folder, model, rollouts, settings, suite or Tooled())
    lab.trainer.train(job(model, rollouts), lab)
    assert lab.budget_left() == 0
    lab.close()
    lines = sorted(read_lines(folder / "trajectories.jsonl"), key=lambda r: (r["call"], r["index"]))
    metrics = [r for r in read_lines(folder / "metrics.jsonl") if r["phase"] == "training"]
    assert len(read_lines(folder / "ledger.jsonl")) == rollouts, "each is one rollout, hint or not"
    return [convert(line["trajectory"], Trajectory) for line in lines], metrics


@pytest.fixture(scope="module")
def hinted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    once = replace(HINTED, epochs=1, minibatches=1)
    return train(tmp_path_factory.mktemp("hinted"), model, 36, once)


def test_the_first_of_each_group_play_with_the_hint(hinted: Any) -> None:
    played, metrics = hinted
    systems = [t.turns[0].messages[0]["content"] for t in played]
    told, alone = "Write letters.\nGuidance: Call one, then two.", "Write letters."
    assert systems == [told, told, alone, alone, alone, alone] * 6
    for line, first in zip(metrics, range(0, 36, 12), strict=True):
        earned = [t.score.similarity for n, t in enumerate(played[first : first + 12]) if n % 6 > 1]
        assert line["reward_without_hint"] == pytest.approx(sum(earned) / len(earned))


def test_what_is_trained_on_has_no_hint(hinted: Any) -> None:
    played, _ = hinted
    group = played[:6]
    tokens = [found for (found,) in sequences(group, HINTED)]
    prompt = list(group[2].turns[0].prompt_ids)
    for trajectory, found in zip(group, tokens, strict=True):
        sampled = list(trajectory.turns[0].token_ids)
        assert list(found.ids) == prompt + sampled
        assert list(found.ids[found.sampled]) == sampled
    assert list(stretches(group[0])[0].ids) != list(tokens[0].ids)
    assert list(stretches(group[2])[0].ids) == list(tokens[2].ids)


def test_before_the_first_step_the_ratio_is_one(hinted: Any, model: Path, tmp_path: Path) -> None:
    """The loss compares with log-probabilities of the context that is trained on: with one step an
    iteration nothing is clipped and nothing has diverged. The sampler's own, of the prompt with
    the hint, are far from them."""
    played, metrics = hinted
    assert all(m["steps"] == 1 and abs(m["kl"]) < 1e-6 for m in metrics)
    assert all(m["clip_share"] == 0.0 for m in metrics)
    assert all(m["logprob_difference_max"] < 1e-4 for m in metrics), "those without a hint"
    learner = make_lab(tmp_path, model, 36).trainer.learner(str(model))  # type: ignore[attr-defined]
    tokens = [found for (found,) in sequences(played[:6], HINTED)]
    own = learner.logprobs(build(tokens)).detach().numpy()
    sampler = [p for t in played[:6] for turn in t.turns for p in turn.logprobs]
    apart = abs(own - sampler)
    cut = sum(len(t.sampled) for t in tokens[:2])
    assert apart[:cut].max() > 1e-3 and apart[cut:].max() < 1e-4


def test_where_no_other_rollout_is_left_a_hinted_one_is_not_trained_on(hinted: Any) -> None:
    played, _ = hinted
    group = [t if n < 2 else replace(t, turns=()) for n, t in enumerate(played[:6])]
    assert sequences(group, HINTED) == [[]] * 6


def test_the_first_rollout_that_tells_the_prompt_is_asked(hinted: Any) -> None:
    """A server may leave the ids out of one answer."""
    played, _ = hinted
    dumb = replace(played[2], turns=(replace(played[2].turns[0], prompt_ids=()),))
    found = sequences([*played[:2], dumb, *played[3:6]], HINTED)
    assert [list(each[0].ids) for each in found[:2]] == [
        list(each[0].ids) for each in sequences(played[:6], HINTED)[:2]
    ]


class Lost(Tooled):
    """Of its first task all rollouts are lost."""

    def make(self) -> LettersEnv:
        return LettersEnv([task(0).id])


def test_lost_episodes_and_several_steps_train_on(model: Path, tmp_path: Path) -> None:
    _, metrics = train(tmp_path, model, 36, HINTED, Lost())
    assert sum(m["failures"] for m in metrics) >= 6 and any(m["steps"] > 1 for m in metrics)


def test_the_same_job_twice_is_the_same_job(model: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        train(tmp_path / name, model, 24, HINTED)
        weights = tmp_path / name / "adapters/letters/0002/adapter_model.safetensors"
        found.append(weights.read_bytes())
    assert found[0] == found[1]


def test_without_hints_nothing_is_logged_of_them(model: Path, tmp_path: Path) -> None:
    played, metrics = train(tmp_path, model, 12, SETTINGS)
    assert all(t.turns[0].messages[0]["content"] == "Write letters." for t in played)
    assert "reward_without_hint" not in metrics[0]


def test_a_hint_names_each_tool_of_the_reference_once() -> None:
    suite = EmbeddedSuite()
    assert hint(Tooled(), task(0)) == "Call one, then two."
    assert hint(LettersSuite(), task(0)) == "Call no tool."
    made = suite.synthetic("recovers_from_errors", 1)
    names = {action["call"] for action in made.data["reference"] if "call" in action}
    said = hint(suite, made).removeprefix("Call ").removesuffix(".")
    assert set(said.split(", then ")) == names


def test_what_cannot_be_done_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer.hinted=6 of trainer.group_size=6 rollouts"):
        replace(SETTINGS, hinted=6)
    lab = make_lab(tmp_path, model, 24, HINTED, adopted(Bare(), Suite))
    with pytest.raises(UserError, match=r"letters/bare has none. Set `trainer.hinted` to 0"):
        lab.trainer.train(job(model, 24), lab)
    assert lab.budget_left() == 24
    lab.close()


def test_a_job_that_was_stopped_goes_on_with_the_same_hints(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = train(tmp_path / "whole", model, 36, HINTED)
    save = State.save

    def stop_at_two(self: State, *args: Any) -> None:
        if self.iteration == 2:
            raise KeyboardInterrupt
        save(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(State, "save", stop_at_two)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "stopped", model, 36, HINTED)
    again, _ = train(tmp_path / "stopped", model, 36, HINTED)
    assert again == whole
    weights = [
        (tmp_path / name / "adapters/letters/0003/adapter_model.safetensors").read_bytes()
        for name in ("whole", "stopped")
    ]
    assert weights[0] == weights[1]


def test_a_hint_follows_the_agents_prompt() -> None:
    agent, tasks = AgentSpec("none", prompt="Be brief."), [task(0), task(1)]
    idle, suite = IdlePolicy(), LettersSuite()
    played = play(idle, suite, agent, tasks, [0, 1], hints=["Call one.", ""])
    assert [t.turns[0].messages[0]["content"] for t in played] == [
        "Write letters.\nGuidance: Be brief.\nCall one.",
        "Write letters.\nGuidance: Be brief.",
    ]
    with pytest.raises(ValueError, match="hints must have the same length"):
        play(idle, suite, agent, tasks, [0, 1], hints=["Call one."])
