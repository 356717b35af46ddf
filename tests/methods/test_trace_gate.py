"""The gate over TRACE's adapters: its gradient, its training, its ledger, and its export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import save_adapter
from named import method
from playing import play
from sandboxes import in_process as suite
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun, RunContext
from trace_bench.core.types import AdapterRef, AgentSpec, Purpose, Task, Trajectory, Turn, to_json
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

MODEL = str(MODEL_FOLDER)
HABITS = {"recovers_from_errors": 0.7, "asks_when_information_is_missing": 0.7}


class Adapting(ScriptedTrainer):
    """Its adapters are real ones, and it can fine-tune: the gate's recipe and model."""

    def __init__(self, refs: Sequence[AdapterRef], dtype: DType = "float32") -> None:
        super().__init__()
        recipe = TrainerSettings(groups=2, group_size=4)
        self._refs, self._real = list(refs), LocalTrainer(recipe, RunContext(dtype=dtype))
        self.settings = self._real.settings

    def learner(self, model: str) -> Any:
        return self._real.learner(MODEL)

    def train(self, job: Any, lab: Any) -> AgentSpec:
        agent = super().train(job, lab)
        real = self._refs[len(self.jobs) - 1]
        added = replace(agent.adapters[-1], name=real.name, path=real.path)
        return replace(agent, adapters=(*agent.adapters[:-1], added))


class GateLab(MemoryLab):
    """The gate's rollouts are real ones."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gates: list[AgentSpec] = []  # that played
        self.played: list[Sequence[Trajectory]] = []  # by them
        self.metrics: list[dict[str, Any]] = []
        self.steps: list[tuple[str, int, int]] = []
        self.off = 0.0  # what is added to the sampler's log-probabilities

    def rollouts(self, call: str, agent: AgentSpec, tasks: Sequence[Task], **how: Any) -> Any:
        played = super().rollouts(call, agent, tasks, **how)
        if not call.startswith("train/gate"):
            return played
        assert self.policy is not None
        self.gates.append(agent)
        seeds = range(len(tasks))
        real = play(self.policy, self.suite, agent, tasks, seeds, max_turns=4, max_tokens=48)
        own = [replace(t, turns=tuple(self._shifted(turn) for turn in t.turns)) for t in real]
        self.played.append(own)
        return own

    def _shifted(self, turn: Turn) -> Turn:
        return replace(turn, logprobs=tuple(one + self.off for one in turn.logprobs))

    def metric(self, **values: Any) -> None:
        self.metrics.append(values)

    def step(self, name: str, done: int, total: int) -> None:
        self.steps.append((name, done, total))


def gated(
    policy: LocalPolicy,
    refs: Any,
    budget: int,
    dtype: DType = "float32",
    off: float = 0.0,
    **settings: Any,
) -> tuple[AgentSpec, GateLab]:
    trainer = Adapting(refs, dtype)
    lab = GateLab(HABITS, budget, seed=7, trainer=trainer)
    lab.policy, lab.off = policy, off
    route = {"name": "gate", "rate": 0.05, **settings}
    made = method("trace", synthetic_tasks=8, max_capabilities=2, route=route)
    base = replace(BASE, model=MODEL)
    return made.fit(base, lab.suite.tasks("train"), lab), lab


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
        (gate.weights, (labels - 1, 77)),
        *((gate.bias, (row,)) for row in range(labels)),
    ):
        assert values.grad is not None
        computed = float(values.grad[place])
        sides = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                values[place] += sign * step
                sides.append(float(total()))
                values[place] -= sign * step
        expected = (sides[0] - sides[1]) / (2 * step)
        assert computed == pytest.approx(expected, rel=2e-2, abs=5e-3)
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


def test_the_gate_is_trained_on_target_tasks_and_charged(policy: LocalPolicy, refs: Any) -> None:
    budget = 300
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
    assert len(lab.steps) == sum(m["steps"] for m in trained), "each optimizer step is counted"
    apart = [m["logprob_difference_max"] for m in trained if m["steps"]]
    assert apart and max(apart) < 5e-3, "sampler and trainer agree"
    assert agent.router is not None
    assert np.shape(agent.router["weights"]) == (len(agent.router["labels"]), 128)


def test_with_rounded_products_the_samplers_rounding_does_not_move_the_gate(
    refs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log-probabilities are off by 0.08: with exact products that is a change of the policy."""
    monkeypatch.setattr(loading, "_quick", lambda device: True)  # slow without instructions
    acting = LocalPolicy(MODEL, batch=16, dtype="bfloat16")
    (exact, lab), (shifted, other) = (
        gated(acting, refs, 300, "bfloat16", off, share=0.06) for off in (0.0, -0.08)
    )
    acting.close()
    assert exact.router == shifted.router
    apart = [
        [m["logprob_difference_mean"] for m in one.metrics if m.get("steps")]
        for one in (lab, other)
    ]
    assert max(apart[0]) < 0.03 and min(apart[1]) > 0.05, "the alarm compares with the sampler"


def test_tokens_weigh_as_with_the_trainer(policy: LocalPolicy, refs: Any) -> None:
    """A gate that does not move has ratios of 1: the loss is the weighted mean of -A."""
    _, lab = gated(policy, refs, 300, rate=1e-9)
    metrics = [m for m in lab.metrics if m["adapter"].startswith("gate@")]
    for played, record in zip(lab.played, metrics, strict=True):
        rewards = torch.tensor([reward_of(t, "similarity") for t in played]).double()
        advantages = group_advantages(rewards, torch.arange(len(played)) // 4)
        lengths = torch.tensor([sum(len(turn.token_ids) for turn in t.turns) for t in played])
        used = advantages.trained.nonzero()[:, 0].tolist()
        weights = token_weights(lengths[used])
        wanted = -float((weights * advantages.spread(used, lengths[used])).sum())
        assert record["loss"] is None or record["loss"] == pytest.approx(wanted, abs=1e-3)
    assert any(m["constant_share"] == 0.0 for m in metrics), "two groups in one step"


def test_a_gate_without_rollouts_is_played_as_it_starts(policy: LocalPolicy, refs: Any) -> None:
    for warm in (True, False):
        agent, lab = gated(policy, refs, 300, share=0.0, warm=warm)
        assert not lab.gates and lab.left == 0
        assert agent.router is not None and agent.router["soft"]
        assert any(agent.router["bias"]) is warm


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
