"""Fine-tuning on demonstrations: what is read, what is trained on, and going on after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy import ToySuite, toy_task

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun, RunContext, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.methods.sft import Sft, SftSettings, demonstrations, general, played, tokens_of
from trace_bench.methods.tuning import Tuning
from trace_bench.policies.chat import Chat
from trace_bench.policies.loading import load_model
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.tiny.template import render
from trace_bench.trainers.local import LocalTrainer, TrainerSettings

BASE = AgentSpec(model=str(MODEL_FOLDER))
ASKED = {"role": "user", "content": "How warm is it in Oslo?"}
TALK = {"messages": [ASKED, {"role": "assistant", "content": "It is 7 degrees."}]}


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(load_model(MODEL_FOLDER)[1])


@pytest.fixture(scope="module")
def trainer() -> LocalTrainer:
    return LocalTrainer(TrainerSettings(rank=4, alpha=8.0), RunContext(threads=1))


def sft(**settings: Any) -> Sft:
    return Sft(
        SftSettings(**{"demonstrations": 24, "batch": 8, "learning_rate": 0.01, **settings}),
        RunContext(general_demonstrations=EmbeddedSuite.general_demonstrations),
    )


def lab(folder: Path, trainer: Any) -> Any:
    notes: dict[str, list] = {"metrics": [], "logged": [], "steps": []}
    parts = {"folder": folder, "suite": EmbeddedSuite(), "trainer": trainer, "notes": notes}
    place = SimpleNamespace(seed=3, budget_left=lambda: 640, **parts)
    place.metric = lambda **values: notes["metrics"].append(values)
    place.log, place.step = notes["logged"].append, lambda *done: notes["steps"].append(done)
    return place


def test_tokens_are_those_of_the_agents_own_training(chat: Chat) -> None:
    for shown in general(EmbeddedSuite.general_demonstrations, 6, seed=1):
        tokens = tokens_of(chat, shown)
        pieces = render(shown.messages, shown.tools)
        last = max(i for i, (_, by_agent) in enumerate(pieces) if by_agent)
        text = "".join(piece for piece, _ in pieces[: last + 1])
        assert chat.tokenizer.decode(tokens.ids.tolist(), skip_special_tokens=False) == text
        spoken = chat.tokenizer.decode(tokens.ids[tokens.sampled].tolist())
        assert spoken == "".join(piece for piece, by_agent in pieces if by_agent)


def test_it_learns_what_it_is_shown_and_spends_nothing(tmp_path: Path, trainer: Any) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text((json.dumps(TALK) + "\n") * 8)
    place = lab(tmp_path, trainer)
    agent = sft(data=str(path), demonstrations=8, epochs=12).fit(BASE, [], place)
    loss = [m["loss"] for m in place.notes["metrics"]]
    assert len(loss) == 12 and loss[-1] < 0.5 * loss[0]
    assert [a.name for a in agent.adapters] == ["sft@0012"]
    assert (Path(agent.adapters[0].path) / "adapter_model.safetensors").exists()
    assert any("without a rollout; 640 rollouts are left" in text for text in place.notes["logged"])


def test_a_file_that_changed_between_two_starts_is_noticed(tmp_path: Path, trainer: Any) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text((json.dumps(TALK) + "\n") * 4)
    place = lab(tmp_path, trainer)

    def stop(name: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    def fit() -> AgentSpec:
        return sft(data=str(path), demonstrations=4, epochs=3).fit(BASE, [], place)

    place.step = stop
    with pytest.raises(KeyboardInterrupt):
        fit()
    place.step = lambda *done: None
    path.write_text((json.dumps(TALK) + "\n") * 3)
    with pytest.raises(UserError, match=r"other conversations .* `method.data` back"):
        fit()
    path.write_text((json.dumps(TALK) + "\n") * 4)
    assert fit().adapters


def tuning_of(kind: type[Tuning], place: Any) -> Tuning:
    """The fine-tuning of `method=sft`."""
    settings, seed = sft().settings, stable_seed(3, "sft")

    def sequences(context: int) -> Any:
        shown = general(EmbeddedSuite.general_demonstrations, settings.demonstrations, seed)
        return demonstrations(Chat(load_model(MODEL_FOLDER)[1]), BASE, shown, context, place.log)

    return kind("sft", BASE, place, settings, sequences)


def test_what_teaches_nothing_is_left_out(tmp_path: Path, trainer: Any) -> None:
    """A conversation whose every answer has the weight 0 could be a whole batch of its own."""
    talk = TALK["messages"]
    silent = [talk[0], {**talk[1], "weight": 0}]
    path = tmp_path / "talks.jsonl"
    lines = [json.dumps({"messages": said}) + "\n" for said in (talk, talk, silent)]
    path.write_text("".join(lines))
    place = lab(tmp_path, trainer)
    assert sft(data=path, batch=2).fit(BASE, [], place).adapters
    assert [m["tokens"] > 0 for m in place.notes["metrics"]] == [True]
    assert any("1 of 3 demonstrations are left out" in text for text in place.notes["logged"])
    path.write_text(lines[2])
    with pytest.raises(UserError, match=r"no demonstration with something to learn"):
        sft(data=path).fit(BASE, [], lab(tmp_path / "none", trainer))


@pytest.mark.slow
def test_a_killed_tuning_ends_like_an_undisturbed_one(tmp_path: Path, trainer: Any) -> None:
    class Cut(Tuning):
        left = 2

        def learn(self, iteration: int, played: Any) -> dict[str, Any]:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            return super().learn(iteration, played)

    def weights(folder: Path) -> bytes:
        return (folder / "adapters/sft/0003/adapter_model.safetensors").read_bytes()

    whole, cut = lab(tmp_path / "whole", trainer), lab(tmp_path / "cut", trainer)
    agent = sft().fit(BASE, [], whole)
    tuning = tuning_of(Cut, cut)
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    assert cut.notes["metrics"] == whole.notes["metrics"][:2], "a live page shows them meanwhile"
    cut.notes["metrics"].clear()
    again = sft().fit(BASE, [], cut)
    assert again.version == agent.version
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert cut.notes["metrics"] == whole.notes["metrics"]
    sft().fit(BASE, [], cut)  # finished: answered from disk
    with pytest.raises(UserError, match="other settings"):
        sft(epochs=2).fit(BASE, [], lab(tmp_path / "cut", trainer))


def test_another_worlds_mistakes_are_not_learned(chat: Chat, tmp_path: Path, trainer: Any) -> None:
    """The demonstrations are solutions of its training tasks."""
    suite, tasks = ToySuite(), [toy_task(n) for n in range(6)]
    shown = list(played(suite, tasks, 20, 1, 20))
    assert {each.task for each in shown} == {task.id for task in tasks}
    wrong = [each for each in shown if not all(each.learned)]
    assert wrong and shown == list(played(suite, tasks, 20, 1, 20))
    whole = replace(wrong[0], learned=(True,) * len(wrong[0].learned))
    assert len(tokens_of(chat, wrong[0]).sampled) < len(tokens_of(chat, whole).sampled)
    method = Sft(SftSettings(demonstrations=8, batch=8), RunContext())
    plan = method.plan(PlannedRun(640, len(tasks), trainer))
    assert Suite.reference in {need.ability for need in plan.needs}
    assert plan.marks == ("given the references of 6 tasks",)
    place = lab(tmp_path, trainer)
    place.suite = suite
    assert method.fit(BASE, tasks, place).adapters
    suite.asks_user = lambda: True  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"played by a model. Set `method.data`"):
        played(suite, tasks, 1, 1, 20)
