"""Routing by the base model's hidden state, to sums of adapters that any server plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import adapter_in_run
from peft import PeftModel
from playing import play
from sandboxes import in_process as suite
from transformers import AutoModelForCausalLM

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec, Message
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
    folder, names = tmp_path_factory.mktemp("run"), ("one", "two", "three")
    return tuple(adapter_in_run(folder, name, seed=n) for n, name in enumerate(names, start=1))


def description(hidden: int = 128, **changes: Any) -> dict[str, Any]:
    """A classifier whose first feature speaks for `one`, its negative for `two`."""
    rows = [[4.0], [-4.0], [0.0], [0.0]]
    weights = [row + [0.0] * (hidden - 1) for row in rows]
    labels = ["one@0001", "two@0001", "three@0001", None]
    router = {"kind": "classifier", "labels": labels, "weights": weights, "bias": [0, 0, 0, 0.1]}
    return {**router, "others": 0.35, **changes}


def state(first: float) -> list[float]:
    return [first] + [0.0] * 127


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
    assert blend(["a", None], np.array([0.0, 1.0]), 0.0) is None


def test_the_state_is_the_base_models_at_the_end_of_the_first_prompt(policy: Any) -> None:
    step = suite("toolsandbox", "embedded").make()
    task = next(iter(suite("toolsandbox", "embedded").tasks("dev")))
    first = step.reset(task)
    (found,) = policy.prompt_states([(first.messages, first.tools)])
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = torch.tensor([policy.chat.first(first.messages, first.tools)])
    with torch.inference_mode():
        whole = model(ids, output_hidden_states=True).hidden_states[-1][0, -1]
    assert list(found) == pytest.approx(whole.tolist(), abs=1e-5)


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


def test_bad_descriptions_are_refused(policy: Any, adapters: Any) -> None:
    def refused(match: str, model: Any = policy, **changes: Any) -> None:
        agent = AgentSpec(MODEL, adapters=adapters, router=description(**changes))
        said: list[Message] = [{"role": "user", "content": "Hello."}]
        with pytest.raises(UserError, match=match):
            make_router(agent, model).route(said, ())

    refused(r"does not show it.*`policy` local.*--backend", model=IdlePolicy())
    refused(r"unknown adapter 'four'", labels=["four", None])
    refused(r"4 labels.*shape \(2, 1\)", weights=[[1.0], [2.0]])
    refused(r"made for 64 features.*gives 128", hidden=64)
    by_block = {"weights": np.zeros((4, 4, 128)).tolist(), "bias": [[0.0] * 4] * 4}
    refused(r"4 labels, weights of shape \(4, 4, 128\)", **by_block)
    refused(r"others is 2", others=2)
    refused(r"finite", bias=[0.0, float("nan"), 0.0, 0.0])
