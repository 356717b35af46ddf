"""The gate over TRACE's adapters: its gradient, its training, its ledger, and its export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gate_lab import MODEL, gated
from models import save_adapter
from named import method
from playing import play
from sandboxes import in_process as suite

from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun, RunContext
from trace_bench.core.types import AdapterRef, AgentSpec, Purpose, to_json
from trace_bench.policies import loading
from trace_bench.policies.loading import DType
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.router import make_router
from trace_bench.runner.plan import check_budget
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.episodes import reward_of
from trace_bench.trainers.gates import Gate, Gated
from trace_bench.trainers.grpo import group_advantages, token_weights
from trace_bench.trainers.local import LocalTrainer, TrainerSettings
from trace_bench.trainers.tree import build, stretches


@pytest.fixture(scope="module")
def policy() -> Any:
    acting = LocalPolicy(MODEL, batch=16)
    yield acting
    acting.close()


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterRef, ...]:
    out = []
    for seed, rank in ((1, 2), (2, 3)):
        place = tmp_path_factory.mktemp("run") / "adapters" / f"a{seed}" / "0001"
        place.parent.mkdir(parents=True)
        save_adapter(MODEL_FOLDER, place, seed=seed, rank=rank)
        out.append(AdapterRef(f"a{seed}@0001", str(place)))
    return tuple(out)


FORMS = ("plain", "begun")


def gate_of(refs: Sequence[AdapterRef], form: str) -> Gate:
    """`begun`: the first adapter is trained on from the second."""
    torch.manual_seed(5)
    weights, bias = 0.05 * torch.randn(3, 128), torch.tensor([0.1, 0.0, -0.1])
    labels: list[Any] = [*(ref.name for ref in refs), None]
    router: dict[str, Any] = {}
    if form == "begun":
        weights, bias, labels = weights[::2], bias[::2], labels[::2]
        router["otherwise"] = refs[1].name
    router |= {"labels": labels, "weights": weights.tolist(), "bias": bias.tolist()}
    return Gate(router, 0.35)


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_that_of_finite_differences(
    policy: LocalPolicy, refs: Any, form: str
) -> None:
    """Of the log-probabilities of real episodes in the gate's weights and bias, and
    without rounding: through the softmax, the weights, and every layer of the model."""
    world = suite("toolsandbox", "embedded")
    task = next(iter(world.tasks("dev")))
    gate = gate_of(refs, form)
    agent = AgentSpec(MODEL, adapters=refs, router=gate.as_json())
    (played,) = play(policy, world, agent, [task], [0], max_turns=1)
    (state,) = policy.prompt_states([(played.turns[0].messages, played.tools)])
    tree = build(stretches(played))
    model = Gated(MODEL, refs)
    model.learner.model.double()

    def total() -> torch.Tensor:
        return model.logprobs(tree, gate.mix(state, applied=False)).double().sum()

    torch.autograd.backward(total())
    labels = len(gate.bias)
    step = 3e-3  # the log-probabilities come in float32
    for values, place in (
        *((gate.weights, (row, 77)) for row in range(labels)),
        *((gate.bias, (row,)) for row in range(labels)),
    ):
        assert values.grad is not None
        found = float(values.grad[place])
        sides = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                values[place] += sign * step
                sides.append(float(total()))
                values[place] -= sign * step
        expected = (sides[0] - sides[1]) / (2 * step)
        assert found == pytest.approx(expected, rel=2e-2, abs=5e-3)
    assert float(gate.bias.grad.abs().max()) > 0.05  # type: ignore[union-attr]


def test_the_gradient_passes_the_rounding(refs: Any) -> None:
    gate = gate_of(refs, "plain")
    state = torch.randn(128).tolist()
    applied, smooth = gate.mix(state), gate.mix(state, applied=False)
    tenths = (applied - 0.35) / 0.65 * 10
    assert torch.allclose(tenths, tenths.round(), atol=1e-9) and not torch.equal(applied, smooth)
    grads = [
        torch.autograd.grad(mix[0], gate.bias, retain_graph=True)[0] for mix in (applied, smooth)
    ]
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("form", FORMS)
def test_what_the_loaded_agent_samples_is_what_the_trainer_computes(
    policy: LocalPolicy, refs: Any, tmp_path: Path, form: str
) -> None:
    """Export: the agent as JSON, read back and played by a new engine."""
    gate = gate_of(refs, form)
    agent = AgentSpec(MODEL, adapters=refs, router=gate.as_json())
    (tmp_path / "agent.json").write_text(json.dumps(to_json(agent)))
    again = convert(json.loads((tmp_path / "agent.json").read_text()), AgentSpec)
    world = suite("toolsandbox", "embedded")
    tasks = list(world.tasks("dev"))[:3]
    fresh = LocalPolicy(MODEL, batch=3)
    played = play(fresh, world, again, tasks, [0, 1, 2], max_turns=3)
    fresh.close()
    model = Gated(MODEL, refs)
    router = make_router(again, policy)
    for trajectory in played:
        messages, (tokens,) = trajectory.turns[0].messages, stretches(trajectory)
        (state,) = policy.prompt_states([(messages, trajectory.tools)])
        mix = gate.mix(state)
        choice = router.route(messages, trajectory.tools)
        assert isinstance(choice, Mixture)
        assert choice.name == trajectory.adapter == gate.plays(state)
        weights = torch.tensor([w for _, w in choice.parts])
        torch.testing.assert_close(weights, mix.detach().float(), atol=1e-6, rtol=0)
        with torch.no_grad():
            computed = model.logprobs(build([tokens]), mix)
        assert tokens.logprobs.tolist() == pytest.approx(computed.tolist(), abs=5e-4)


def test_a_missing_base_slot_is_added_at_zero() -> None:
    gate = Gate({"labels": ["a"], "weights": [[2.0]], "bias": [1.0]}, 0.0)
    assert gate.labels == ["a", None] and gate.as_json()["weights"] == [[2.0], [0.0]]


@pytest.mark.parametrize("budget", [300, 437])
def test_the_gate_is_trained_on_target_tasks_and_charged(
    policy: LocalPolicy, refs: Any, budget: int
) -> None:
    agent, lab = gated(policy, refs, budget)
    assert sum(len(tasks) for _, _, tasks in lab.calls) + lab.left == budget
    calls = [c for c in lab.calls if c[0].startswith("train/gate")]
    assert sum(len(tasks) for *_, tasks in calls) == int(0.15 * budget) // 8 * 8
    train = {task.id for task in lab.suite.tasks("train")}
    assert all(purpose is Purpose.TRAINING and train >= set(tasks) for _, purpose, tasks in calls)
    assert len({a.version for a in [*lab.gates, agent]}) == len(calls) + 1
    assert agent.router != lab.gates[0].router, "it was trained"
    assert lab.checkpoints[-1] == agent
    trained = [m for m in lab.metrics if m["adapter"].startswith("gate@")]
    assert len(trained) == len(calls)
    assert [s[:2] for s in lab.steps[:2]] == [("gate, iteration 0", 0), ("gate, iteration 0", 1)]
    assert len(lab.steps) == len(calls) * lab.steps[0][2], "each optimizer step is counted"
    apart = [m["logprob_difference_max"] for m in trained if m["steps"]]
    assert apart and max(apart) < 5e-3, "sampler and trainer agree"
    assert not any("an episode used other weights" in text for text in lab.logged)
    assert agent.router is not None
    assert np.shape(agent.router["weights"]) == (len(agent.router["labels"]), 128)
    if budget == 300:
        again, other = gated(policy, refs, budget)
        assert to_json(again) == to_json(agent) and other.calls == lab.calls


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_rounded_products_the_samplers_rounding_does_not_move_the_gate(
    refs: Any, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log-probabilities are off by 0.08: with exact products that is a change of the policy."""
    monkeypatch.setattr(loading, "_quick", lambda device: True)  # slow without instructions
    acting = LocalPolicy(MODEL, batch=16, dtype=dtype)
    found = [gated(acting, refs, 300, dtype, off) for off in (0.0, -0.08)]
    acting.close()
    (exact, lab), (shifted, other) = found
    assert (exact.router == shifted.router) is (dtype == "bfloat16")
    apart = [
        [m["logprob_difference_mean"] for m in one.metrics if m.get("steps")]
        for one in (lab, other)
    ]
    assert max(apart[0]) < 0.03 and min(apart[1]) > 0.05, "the alarm compares with the sampler"


@pytest.mark.parametrize("aggregate", ["trajectory", "token"])
def test_tokens_weigh_as_with_the_trainer(policy: LocalPolicy, refs: Any, aggregate: str) -> None:
    """A gate that does not move has ratios of 1: the loss is the weighted mean of -A."""
    _, lab = gated(policy, refs, 300, aggregate=aggregate, rate=1e-9)
    metrics = [m for m in lab.metrics if m["adapter"].startswith("gate@")]
    for played, found in zip(lab.played, metrics, strict=True):
        rewards = torch.tensor([reward_of(t, "similarity") for t in played]).double()
        made = group_advantages(rewards, torch.arange(len(played)) // 4)
        lengths = torch.tensor([sum(len(turn.token_ids) for turn in t.turns) for t in played])
        used = made.trained.nonzero()[:, 0].tolist()
        weights = token_weights(lengths[used], aggregate)
        wanted = -float((weights * made.spread(used, lengths[used])).sum())
        assert found["loss"] is None or found["loss"] == pytest.approx(wanted, abs=1e-3)
    assert any(m["constant_share"] == 0.0 for m in metrics), "two groups in one step"


def test_a_gate_without_rollouts_is_played_as_it_starts(policy: LocalPolicy, refs: Any) -> None:
    warm, lab = gated(policy, refs, 300, share=0.0)
    assert not lab.gates and lab.left == 0
    assert warm.router is not None and warm.router["soft"] and any(warm.router["bias"])
    cold, _ = gated(policy, refs, 300, share=0.0, warm=False)
    assert cold.router is not None and not any(cold.router["bias"])
    assert cold.router["labels"][-1] is None and len(cold.router["weights"][0]) == 128


def test_a_share_that_pays_for_no_iteration_is_refused(refs: Any) -> None:
    run = PlannedRun(budget=300, tasks=64, trainer=LocalTrainer(TrainerSettings(), RunContext()))
    for share, short in ((0.02, "training of the gate has 6"), (0.8, "analysis has 0")):
        plan = method("trace", route={"name": "gate", "share": share}).plan(run)
        with pytest.raises(UserError, match=rf"gate 16 \(method.route.share\).*{short}"):
            check_budget("trace", 300, plan)
    plan = method("trace", route="gate").plan(run)
    assert {n.ability.__qualname__ for n in plan.needs} >= {
        "Policy.prompt_states",
        "Trainer.learner",
    }
    assert plan.phases[-1].name == "training of the gate" and plan.phases[-1].rollouts == 45
    joint = method("joint", route="gate").plan(run)
    assert [p.name for p in joint.phases][-1] == "training"
