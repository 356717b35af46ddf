"""Routing by the base model's hidden state, to sums of adapters that any server plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import save_adapter
from peft import PeftModel
from playing import play
from sandboxes import in_process as suite
from transformers import AutoModelForCausalLM

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RoutesTurns
from trace_bench.core.types import AdapterRef, AgentSpec, Message, agent_from_json, to_json
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.classifier import ClassifierRouter, blend
from trace_bench.policies.routing.merge import Mixture, merge
from trace_bench.policies.routing.router import make_router
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.tiny import MODEL_FOLDER

MODEL = str(MODEL_FOLDER)


@pytest.fixture(scope="module")
def policy() -> Any:
    acting = LocalPolicy(MODEL, batch=8)
    yield acting
    acting.close()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterRef, ...]:
    folder, out = tmp_path_factory.mktemp("run"), []
    for seed, name in enumerate(("one", "two", "three"), start=1):
        place = folder / "adapters" / name / "0001"
        place.parent.mkdir(parents=True)
        save_adapter(MODEL_FOLDER, place, seed=seed)
        out.append(AdapterRef(f"{name}@0001", str(place)))
    return tuple(out)


def description(hidden: int = 128, **changes: Any) -> dict[str, Any]:
    """A classifier whose first feature speaks for `one`, its negative for `two`."""
    rows = [[4.0], [-4.0], [0.0], [0.0]]
    weights = [row + [0.0] * (hidden - 1) for row in rows]
    labels = ["one@0001", "two@0001", "three@0001", None]
    router = {"kind": "classifier", "labels": labels, "weights": weights, "bias": [0, 0, 0, 0.1]}
    return {**router, "others": 0.35, **changes}


def state(first: float) -> list[list[float]]:
    return [[first] + [0.0] * 127]


def parts(choice: Any) -> dict[str, Any]:
    assert isinstance(choice, Mixture)
    return dict(choice.parts)


def test_the_chosen_adapter_counts_whole_and_the_others_with_their_share(policy: Any) -> None:
    router = ClassifierRouter(description(), policy)
    one = {"one@0001": 1.0, "two@0001": 0.35, "three@0001": 0.35}
    assert parts(router.choose(state(1.0))) == one
    assert parts(router.choose(state(-1.0)))["two@0001"] == 1.0
    assert set(parts(router.choose(state(0.0))).values()) == {0.35}, "the base model's place"
    alone = ClassifierRouter(description(others=0.0), policy)
    assert alone.choose(state(1.0)) == "one@0001" and alone.choose(state(0.0)) is None


def test_soft_weights_need_not_sum_to_one(policy: Any) -> None:
    router = ClassifierRouter(description(soft=True, others=0.5), policy)
    found = parts(router.choose(state(0.05)))  # softmax .30, .20, .24, .27 in tenths
    assert found == {"one@0001": 0.65, "two@0001": 0.6, "three@0001": 0.6}
    assert sum(found.values()) > 1.0
    assert blend(["a", None], np.array([[0.0, 1.0]]), 0.0) is None


def test_the_state_is_the_base_models_at_the_end_of_the_first_prompt(policy: Any) -> None:
    step = suite("toolsandbox", "embedded").make()
    task = next(iter(suite("toolsandbox", "embedded").tasks("dev")))
    first = step.reset(task)
    (found,) = policy.prompt_states(first.messages, first.tools)
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = torch.tensor([policy.chat.first(first.messages, first.tools)])
    with torch.inference_mode():
        whole = model(ids, output_hidden_states=True).hidden_states[-1][0, -1]
    assert list(found) == pytest.approx(whole.tolist(), abs=1e-5)


def test_the_states_of_blocks_are_their_mean_inputs(policy: Any) -> None:
    world = suite("toolsandbox", "embedded")
    first = world.make().reset(next(iter(world.tasks("dev"))))
    found = policy.prompt_states(first.messages, first.tools, blocks=True)
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    inputs: list[torch.Tensor] = []
    for block in model.model.layers:
        block.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.inference_mode():
        model(torch.tensor([policy.chat.first(first.messages, first.tools)]))
    assert len(found) == len(inputs) == 4
    for row, given in zip(found, inputs, strict=True):
        assert list(row) == pytest.approx(given[0].mean(0).tolist(), abs=1e-5)


def by_block(**changes: Any) -> dict[str, Any]:
    """The classifier in the blocks 0 and 2, its opposite in the others."""
    one = description()
    turned = [[-x for x in row] for row in one["weights"]]
    weights = [one["weights"], turned, one["weights"], turned]
    return description(**{"weights": weights, "bias": [one["bias"]] * 4, **changes})


def test_each_block_has_its_own_weights(policy: Any, adapters: Any) -> None:
    router = make_router(AgentSpec(MODEL, adapters=adapters, router=by_block()), policy)
    assert isinstance(router, ClassifierRouter) and not isinstance(router, RoutesTurns)
    states = [*state(1.0), *state(1.0), *state(-1.0), *state(0.0)]
    found = parts(router.choose(states))
    assert found["one@0001"] == (1.0, 0.35, 0.35, 0.35)
    assert found["two@0001"] == (0.35, 1.0, 1.0, 0.35)
    assert found["three@0001"] == (0.35,) * 4
    alone = ClassifierRouter(by_block(others=0.0), policy)
    assert alone.choose([*state(1.0), *state(-1.0)] * 2) == "one@0001"
    assert alone.choose(state(0.0) * 4) is None
    assert parts(alone.choose(state(1.0) * 4))["two@0001"] == (0.0, 1.0, 0.0, 1.0)


def test_a_choice_anew_at_every_turn_sees_the_conversation(policy: Any, adapters: Any) -> None:
    """Each turn is sampled with what the states of the conversation before it give, and its
    log-probabilities are those of that sum, written as an adapter, for PEFT."""
    world = suite("toolsandbox", "embedded")
    weights = np.random.default_rng(3).normal(size=(4, 4, 128), scale=0.1).tolist()
    router = by_block(soft=True, lock="turn", weights=weights)
    agent = agent_from_json(to_json(AgentSpec(MODEL, adapters=adapters, router=router)))
    made = make_router(agent, policy)
    assert isinstance(made, ClassifierRouter) and isinstance(made, RoutesTurns)
    tasks = list(world.tasks("dev"))[:3]
    played = play(policy, world, agent, tasks, [0] * 3, max_turns=3)
    assert any(len({turn.adapter for turn in t.turns}) > 1 for t in played)
    for trajectory in played:
        messages: list[Message] = []
        ids: list[int] = []
        for turn in trajectory.turns:
            messages += turn.messages
            ids += turn.prompt_ids
            choice = made.next(messages, trajectory.tools)
            assert isinstance(choice, Mixture) and choice.name == turn.adapter
            model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
            model = PeftModel.from_pretrained(model, merge(choice, adapters).path).eval()
            with torch.inference_mode():
                logits = model(torch.tensor([ids + list(turn.token_ids)])).logits[0]
            lines = logits[len(ids) - 1 : -1].log_softmax(-1)
            expected = lines.gather(1, torch.tensor(turn.token_ids)[:, None])[:, 0]
            assert list(turn.logprobs) == pytest.approx(expected.tolist(), abs=2e-4)
            ids += turn.token_ids
            messages.append(turn.reply)


def test_a_merged_adapter_is_one_for_peft_too(policy: Any, adapters: Any) -> None:
    """What the engine samples with it has the log-probabilities that PEFT's own loader gives."""
    wanted = ClassifierRouter(description(), policy).choose(state(1.0))
    assert isinstance(wanted, Mixture)
    merged = merge(wanted, adapters)
    ranks = [json.loads((Path(a.path) / "adapter_config.json").read_text())["r"] for a in adapters]
    assert json.loads((Path(merged.path) / "adapter_config.json").read_text())["r"] == sum(ranks)
    world = suite("toolsandbox", "embedded")
    tasks = list(world.tasks("dev"))[:2]
    agent = AgentSpec(MODEL, adapters=(merged,))
    played = play(policy, world, agent, tasks, [0, 1], route=[merged.name] * 2, max_turns=3)
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, merged.path).eval()
    for trajectory in played:
        ids: list[int] = []
        for turn in trajectory.turns:
            ids += turn.prompt_ids
            with torch.inference_mode():
                logits = model(torch.tensor([ids + list(turn.token_ids)])).logits[0]
            lines = logits[len(ids) - 1 : -1].log_softmax(-1)
            expected = lines.gather(1, torch.tensor(turn.token_ids)[:, None])[:, 0]
            assert list(turn.logprobs) == pytest.approx(expected.tolist(), abs=2e-4)
            ids += turn.token_ids


def test_a_run_plays_sums_by_the_classifier(policy: Any, adapters: Any) -> None:
    world = suite("toolsandbox", "embedded")
    tasks = list(world.tasks("dev"))[:4]
    agent = AgentSpec(MODEL, adapters=adapters, router=description())
    again = agent_from_json(json.loads(json.dumps(to_json(agent))))
    router = make_router(again, policy)
    played = play(policy, world, again, tasks, [0] * 4, temperature=0.0, max_turns=2)
    for task, trajectory in zip(tasks, played, strict=True):
        step = world.make().reset(task)
        choice = router.route(step.messages, step.tools)
        assert trajectory.adapter == choice.name
        assert {turn.adapter for turn in trajectory.turns} == {choice.name}


def test_bad_descriptions_are_refused(policy: Any, adapters: Any) -> None:
    def refused(match: str, model: Any = policy, **changes: Any) -> None:
        agent = AgentSpec(MODEL, adapters=adapters, router=description(**changes))
        said: list[Message] = [{"role": "user", "content": "Hello."}]
        with pytest.raises(UserError, match=match):
            make_router(agent, model).route(said, ())

    refused(r"does not show it.*`policy` local.*--backend", model=IdlePolicy())
    refused(r"unknown adapter 'four'", labels=["four", None])
    refused(r"4 labels.*shape \(2, 1\)", weights=[[1.0], [2.0]])
    refused(r"made for 1 x 64 features.*gives 1 x 128", hidden=64)
    for rows, width in ((4, 64), (3, 128)):
        zero = {"weights": np.zeros((rows, 4, width)).tolist(), "bias": [[0.0] * 4] * rows}
        refused(rf"made for {rows} x {width} features.*gives 4 x 128", **zero)
    refused(r"unknown lock 'never'; allowed: prefill, turn", lock="never")
    refused(r"others is 2", others=2)
    refused(r"finite", bias=[0.0, float("nan"), 0.0, 0.0])
