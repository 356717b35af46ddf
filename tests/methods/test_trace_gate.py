"""The gate over TRACE's adapters: its gradient, its training, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from models import adapter_in_run
from named import method
from playing import play
from sandboxes import in_process as suite
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun, RunContext
from trace_bench.core.types import AdapterRef, AgentSpec, Purpose, Task
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.router import make_router
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers import gates
from trace_bench.trainers.gates import Gated, GateLayer
from trace_bench.trainers.local import LocalTrainer, TrainerSettings
from trace_bench.trainers.tree import build, stretches

MODEL = str(MODEL_FOLDER)
HABITS = {"recovers_from_errors": 0.7, "asks_when_information_is_missing": 0.7}
TRAINER = LocalTrainer(TrainerSettings(groups=2, group_size=4), RunContext())


class Adapting(ScriptedTrainer):
    """Its adapters are real ones, and it can fine-tune: the gate's recipe and model."""

    settings = TRAINER.settings

    def __init__(self, refs: Sequence[AdapterRef]) -> None:
        super().__init__()
        self._refs = list(refs)

    def learner(self, model: str) -> Any:
        return TRAINER.learner(model)

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
        self.metrics: list[dict[str, Any]] = []
        self.steps: list[tuple[str, int, int]] = []

    def rollouts(
        self, call: str, agent: AgentSpec, tasks: Sequence[Task], by: Any = None, **how: Any
    ) -> Any:
        played = super().rollouts(call, agent, tasks, **how)
        if not call.startswith("train/gate"):
            return played
        assert self.policy is not None and how["route"] is None
        self.gates.append(agent)
        seeds = range(len(tasks))
        return play(self.policy, self.suite, agent, tasks, seeds, max_turns=4, max_tokens=48)

    def metric(self, **values: Any) -> None:
        self.metrics.append(values)

    def step(self, name: str, done: int, total: int) -> None:
        self.steps.append((name, done, total))


@pytest.fixture(scope="module")
def policy() -> Any:
    acting = LocalPolicy(MODEL, batch=16)
    yield acting
    acting.close()


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterRef, ...]:
    folder = tmp_path_factory.mktemp("run")
    return tuple(adapter_in_run(folder, f"a{n}", seed=n, rank=n + 1) for n in (1, 2))


FORMS = ("plain", "begun")


def gate_of(refs: Sequence[AdapterRef], form: str) -> GateLayer:
    """`begun`: the first adapter is trained on from the second."""
    torch.manual_seed(5)
    weights, bias = 0.05 * torch.randn(3, 128), torch.tensor([0.1, 0.0, -0.1])
    labels: list[Any] = [*(ref.name for ref in refs), None]
    router: dict[str, Any] = {"kind": "classifier", "others": 0.35, "soft": True}
    if form == "begun":
        weights, bias, labels = weights[::2], bias[::2], labels[::2]
        router["otherwise"] = refs[1].name
    return GateLayer(router | {"labels": labels, "weights": weights.tolist(), "bias": bias})


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_that_of_finite_differences(
    policy: LocalPolicy, refs: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the log-probabilities of real episodes in the gate's weights and bias, and
    without rounding: through the softmax, the weights, and every layer of the model."""
    monkeypatch.setattr(gates, "rounded", lambda values: values)
    world = suite("toolsandbox", "embedded")
    task = next(iter(world.tasks("dev")))
    gate = gate_of(refs, form)
    agent = AgentSpec(MODEL, adapters=refs, router=gate.as_json())
    (played,) = play(policy, world, agent, [task], [0], max_turns=1)
    (state,) = policy.prompt_states([(played.turns[0].messages, played.tools)])
    tree = build(stretches(played))
    model = Gated(MODEL, refs, TRAINER.learner(MODEL))
    model.learner.model.double()

    def total() -> torch.Tensor:
        return model.logprobs(tree, gate.mix(state)).double().sum()

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


def test_the_gradient_passes_the_rounding(refs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, state = gate_of(refs, "plain"), torch.randn(128).tolist()
    applied = gate.mix(state)
    monkeypatch.setattr(gates, "rounded", lambda values: values)
    smooth = gate.mix(state)
    tenths = (applied - 0.35) / 0.65 * 10
    assert torch.allclose(tenths, tenths.round(), atol=1e-9) and not torch.equal(applied, smooth)
    one, two = (torch.autograd.grad(m[0], gate.bias, retain_graph=True) for m in (applied, smooth))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("form", FORMS)
def test_sampler_and_trainer_compute_the_same(policy: LocalPolicy, refs: Any, form: str) -> None:
    gate = gate_of(refs, form)
    agent = AgentSpec(MODEL, adapters=refs, router=gate.as_json())
    world = suite("toolsandbox", "embedded")
    played = play(policy, world, agent, list(world.tasks("dev"))[:3], [0, 1, 2], max_turns=3)
    model, router = Gated(MODEL, refs, TRAINER.learner(MODEL)), make_router(agent, policy)
    for trajectory in played:
        messages, (tokens,) = trajectory.turns[0].messages, stretches(trajectory)
        (state,) = policy.prompt_states([(messages, trajectory.tools)])
        mix = gate.mix(state)
        choice = router.route(messages, trajectory.tools)
        assert isinstance(choice, Mixture) and choice.name == trajectory.adapter
        weights = torch.tensor([w for _, w in choice.parts])
        torch.testing.assert_close(weights, mix.detach().float(), atol=1e-6, rtol=0)
        with torch.no_grad():
            computed = model.logprobs(build([tokens]), mix)
        assert tokens.logprobs.tolist() == pytest.approx(computed.tolist(), abs=5e-4)


def test_the_gate_is_trained_on_target_tasks_and_charged(policy: LocalPolicy, refs: Any) -> None:
    budget, route = 300, {"name": "gate", "rate": 0.05}
    lab = GateLab(HABITS, budget, seed=7, trainer=Adapting(refs))
    lab.policy = policy
    made = method("trace", synthetic_tasks=8, max_capabilities=2, route=route)
    agent = made.fit(replace(BASE, model=MODEL), lab.suite.tasks("train"), lab)
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
    assert len(lab.steps) == sum(m["steps"] for m in trained), "each optimizer step is counted"
    apart = [m["logprob_difference_max"] for m in trained if m["steps"]]
    assert apart and max(apart) < 5e-3, "sampler and trainer agree"


def test_the_gates_share_is_planned() -> None:
    run = PlannedRun(budget=300, tasks=64, trainer=LocalTrainer(TrainerSettings(), RunContext()))
    plan = method("trace", route="gate").plan(run)
    needs = {n.ability.__qualname__ for n in plan.needs}
    assert needs >= {"Policy.prompt_states", "Trainer.learner"}
    assert plan.phases[-1].name == "training of the gate" and plan.phases[-1].rollouts == 45
    assert method("joint", route="gate").plan(run).phases[-1].name == "training"
    with pytest.raises(UserError, match=r"'gate' has 6 rollouts.*`method.route.share`"):
        method("trace", route={"name": "gate", "share": 0.02}).plan(run)
