"""The local policy against plain forward passes of the same models."""

from typing import Any

import numpy as np
import pytest
import torch
from models import save_adapter, save_model
from playing import play
from toy import TOOLS, ToySuite, toy_task

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, StopReason, Task
from trace_bench.policies.engine import decoder
from trace_bench.policies.engine import scheduler as engine_module
from trace_bench.policies.engine.decoder import Decoder, sample, uniforms
from trace_bench.policies.engine.hf import HuggingFace
from trace_bench.policies.loading import load_model
from trace_bench.policies.local import LocalPolicy

NAMES = ("a@0001", "b@0001")


KINDS = {
    "qwen3": ("qwen3", {}, Decoder),
    "llama": ("llama", {}, Decoder),
    "low rank": ("qwen3", {}, Decoder),  # as large models are computed
    "hugging face": ("llama", {"mlp_bias": True}, HuggingFace),
}


SHIPPED = "qwen3"  # the architecture of the agents that come with the package


def kind(name):
    return name if name == SHIPPED else pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[*map(kind, KINDS)])
def world(request, tmp_path_factory):
    """(model folder, agent with two adapters, the backend it should get)."""
    folder = tmp_path_factory.mktemp("world")
    kind, changes, backend = KINDS[request.param]
    model = save_model(folder / "model", kind, **changes)
    paths = [save_adapter(model, folder / name, seed=i) for i, name in enumerate(NAMES)]
    adapters = tuple(AdapterRef(n, str(p)) for n, p in zip(NAMES, paths, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "low rank":
            patch.setattr(decoder, "SMALL", 0)
        yield model, AgentSpec(str(model), adapters=adapters), backend


def rollouts(policy, agent, count=9, **how):
    tasks = [toy_task(i // 3, patience=2) for i in range(count)]  # groups of three start alike
    how = {"route": [None] * count, "max_turns": 3, "max_tokens": 12, **how}
    return play(policy, ToySuite(), agent, tasks, range(100, 100 + count), **how)


def test_the_base_model_is_asked_for_labels_whatever_acted_before(world):
    """Of the model's own modules, to which some backends add the adapters."""
    model, agent, _ = world
    policy = LocalPolicy(model, batch=4)
    policy.load(agent)
    question = [{"role": "user", "content": "A or B?"}]
    before = policy.label_logprobs(question, ["A", "B"])
    rollouts(policy, agent, 6, route=["a@0001"] * 6)
    assert policy.label_logprobs(question, ["A", "B"]) == before


def flat(trajectory):
    """(ids, whether sampled, log-probabilities) of a trajectory."""
    ids, mine, logprobs = [], [], []
    for turn in trajectory.turns:
        ids += [*turn.prompt_ids, *turn.token_ids]
        mine += [False] * len(turn.prompt_ids) + [True] * len(turn.token_ids)
        logprobs += [0.0] * len(turn.prompt_ids) + list(turn.logprobs)
    return ids, np.array(mine), np.array(logprobs)


def plain_models(agent):
    from peft import PeftModel

    models = {None: load_model(agent.model)[0]}
    for a in agent.adapters:
        models[a.name] = PeftModel.from_pretrained(load_model(agent.model)[0], a.path).eval()
    return models


@torch.no_grad()
def plain_logprobs(model, ids, temperature):
    return (model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1).double()


def farthest(model, trajectory, temperature=1.0):
    """The largest difference of its log-probabilities to those of a plain forward pass."""
    ids, mine, logprobs = flat(trajectory)
    at = np.flatnonzero(mine)
    plain = plain_logprobs(model, ids, temperature)[at - 1, torch.tensor(ids)[at]].numpy()
    return np.abs(plain - logprobs[at]).max()


@pytest.fixture(scope="session")
def qwen3(small_model):
    return small_model


@pytest.mark.parametrize("temperature", [0.6, 0.0])
def test_logprobs_agree_with_a_plain_forward_pass(world, temperature):
    folder, agent, backend = world
    policy = LocalPolicy(folder, batch=4)
    assert type(policy._backend) is backend
    route = [(None, *NAMES)[i % 3] for i in range(9)]
    played = rollouts(policy, agent, temperature=temperature, route=route)
    assert max(len(t.turns) for t in played) > 1  # the cache was used over turns
    models = plain_models(agent)
    for trajectory, name in zip(played, route, strict=True):
        assert trajectory.failure is None
        assert farthest(models[name], trajectory, temperature or 1.0) < 2e-5
        if not temperature:
            ids, mine, _ = flat(trajectory)
            at = np.flatnonzero(mine)
            likeliest = plain_logprobs(models[name], ids, 1.0)[at - 1].argmax(-1)
            assert [ids[i] for i in at] == likeliest.tolist()
    # The adapters matter: the base model disagrees about what they sampled.
    assert farthest(models[None], played[1], temperature or 1.0) > 0.1


def test_the_same_call_gives_the_same_bits_whatever_came_before(world):
    """And with another limit of the batch the same tokens."""
    folder, agent, _ = world
    fresh = rollouts(LocalPolicy(folder, batch=4), agent)
    small = rollouts(LocalPolicy(folder, batch=2), agent, 6)
    assert [flat(t)[0] for t in small] == [flat(t)[0] for t in fresh[:6]]
    used = LocalPolicy(folder, batch=4)
    rollouts(used, agent, 6, temperature=0.3, route=["b@0001"] * 6)
    assert rollouts(used, agent) == fresh


@pytest.mark.parametrize("world", [kind("qwen3"), kind("hugging face")], indirect=True)
def test_long_and_short_episodes_in_many_blocks_of_slots(world, monkeypatch):
    folder, agent, backend = world
    policy = LocalPolicy(folder, batch=37)
    moves = []
    move = policy._engine._move

    def counted(row, target):
        moves.append(row)
        return move(row, target)

    monkeypatch.setattr(policy._engine, "_move", counted)
    lengths = [8 + 40 * (i % 3) for i in range(48)]  # of the user's text
    data = [{"add": [10**n], "patience": i % 4} for i, n in enumerate(lengths)]
    tasks = [Task(f"toy/{i}", "toy", "train", i, given) for i, given in enumerate(data)]
    how: dict[str, Any] = {
        "route": [(None, "a@0001")[i % 2] for i in range(48)],
        "max_tokens": 12,
        "max_turns": 5,
    }
    played = play(policy, ToySuite(), agent, tasks, range(48), **how)
    if backend is Decoder:
        assert len(moves) > 5  # a short episode got a slot among short ones
    models = plain_models(agent)
    for trajectory, name in zip(played, how["route"], strict=True):
        assert farthest(models[name], trajectory) < 1e-5


def test_what_a_group_has_in_common_is_computed_once(qwen3):
    policy = LocalPolicy(qwen3, batch=16)
    agent = AgentSpec(str(qwen3))
    how: dict[str, Any] = {"temperature": 0.4, "max_tokens": 8, "max_turns": 1}
    played = play(policy, ToySuite(), agent, [toy_task(3)] * 16, range(16), **how)
    prompt = len(played[0].turns[0].prompt_ids)
    said = [t.turns[0].token_ids for t in played]
    # The prompt once, then every different beginning once; a turn's last token not at all.
    different = {ids[:k] for ids in said for k in range(1, len(ids))}
    assert prompt > 100 and 8 < len(different) < sum(len(ids) - 1 for ids in said)
    assert policy._engine.computed == prompt + len(different)


def test_members_of_a_group_may_go_on_together_or_apart(qwen3):
    """Turns after the first: some with the same messages, some not, some never; all as alone."""
    first = ({"role": "user", "content": "hello"},)
    news = [({"role": "user", "content": c},) for c in ("same", "same", "other")]

    def turn(policy, requests):
        policy.submit(requests)
        replies: dict[int, Any] = {}
        while len(replies) < len(requests):
            replies |= {r.episode: r.turn for r in policy.collect()}
        return replies

    def request(i, messages):
        return TurnRequest(i, messages, TOOLS, seed=9, max_tokens=6)

    together = LocalPolicy(qwen3, batch=4)
    one = turn(together, [request(i, first) for i in range(4)])
    assert len(together._engine._rows) == 1 and len(set(map(str, one.values()))) == 1
    two = turn(together, [request(i, news[i]) for i in range(2)])
    three = turn(together, [request(2, news[2])])
    together.release(3)
    assert len(together._engine._rows) == 2
    for i, reply in ({**two, **three}).items():
        alone = LocalPolicy(qwen3, batch=1)
        assert turn(alone, [request(i, first)])[i].token_ids == one[i].token_ids
        assert turn(alone, [request(i, news[i])])[i].token_ids == reply.token_ids
    together._engine.submit(engine_module.Order(0, (1,)))
    with pytest.raises(ValueError, match="turn is open already"):
        together._engine.submit(engine_module.Order(0, (1,)))


def test_prompts_longer_than_a_step_are_computed_in_parts(qwen3, monkeypatch):
    whole = rollouts(LocalPolicy(qwen3, batch=8), AgentSpec(str(qwen3)))
    monkeypatch.setattr(engine_module, "_STEP_TOKENS", 40)
    parts = rollouts(LocalPolicy(qwen3, batch=8), AgentSpec(str(qwen3)))
    assert [flat(t)[0] for t in whole] == [flat(t)[0] for t in parts]


def test_token_limit_and_context_limit(qwen3):
    (start,) = rollouts(LocalPolicy(qwen3, batch=1), AgentSpec(str(qwen3)), 1, max_tokens=3)
    turn = start.turns[0]
    assert turn.truncated and len(turn.token_ids) == 3
    if len(start.turns) > 1:  # the stop token that was not sampled opens the next prompt
        assert start.turns[1].prompt_ids[0] == LocalPolicy(qwen3).chat.stop
    prompt = len(turn.prompt_ids)
    tight = LocalPolicy(qwen3, batch=1, context=prompt + 5)
    (cut,) = rollouts(tight, AgentSpec(str(qwen3)), 1, max_tokens=50)
    assert len(cut.turns[0].token_ids) <= 5
    none = LocalPolicy(qwen3, batch=1, context=prompt)
    (full,) = rollouts(none, AgentSpec(str(qwen3)), 1)
    assert full.stop is StopReason.CONTEXT_LIMIT and not full.turns and full.failure is None


def test_released_episodes_leave_no_trace(qwen3):
    policy = LocalPolicy(qwen3, batch=2)
    messages = ({"role": "user", "content": "hello"},)
    requests = [TurnRequest(i, messages, TOOLS, seed=i, max_tokens=6) for i in range(5)]
    policy.submit(requests)
    policy.collect()
    for i in range(5):
        policy.release(i)
        policy.release(i)
    assert not policy._engine._members and sorted(policy._engine._free) == [0, 1]
    with pytest.raises(RuntimeError, match="nothing to do"):
        policy.collect()
    policy.submit(requests)
    policy.close()
    assert not policy._engine._members


def test_adapters_come_and_go_with_agents(world):
    folder, agent, _ = world
    policy = LocalPolicy(folder, batch=4)
    policy.load(agent)
    assert set(policy._adapters) == set(NAMES)
    only = AgentSpec(str(folder), adapters=agent.adapters[1:])
    policy.load(only)
    assert set(policy._adapters) == {"b@0001"}
    route = ["b@0001"] * 3
    other = LocalPolicy(folder, batch=4)
    assert rollouts(policy, only, 3, route=route) == rollouts(other, agent, 3, route=route)
    (bad,) = rollouts(policy, only, 1, route=["a@0001"])
    assert bad.failure.boundary == "policy" and "unknown adapter 'a@0001'" in bad.failure.error


def test_adapters_that_do_not_fit_are_refused_with_shapes(qwen3, tmp_path):
    policy = LocalPolicy(qwen3, batch=1)

    def load(path):
        policy.load(AgentSpec(str(qwen3), adapters=(AdapterRef("x@1", str(path)),)))

    wide = save_model(tmp_path / "wide", hidden_size=64)
    with pytest.raises(UserError, match=r"'x@1' does not fit.*B \(48, r\).*B \(64, 4\)"):
        load(save_adapter(wide, tmp_path / "wide_adapter"))
    deep = save_model(tmp_path / "deep", num_hidden_layers=3)
    with pytest.raises(UserError, match=r"layers\.2\..*not a linear layer"):
        load(save_adapter(deep, tmp_path / "deep_adapter"))
    with pytest.raises(UserError, match=r"cannot read .*adapter_config\.json"):
        load(tmp_path / "nothing")
    good = save_adapter(qwen3, tmp_path / "good")
    (good / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"cannot read .*adapter_model\.safetensors"):
        load(good)
    assert policy._adapters == set()


def test_models_that_cannot_be_played_are_refused(qwen3, tmp_path):
    with pytest.raises(UserError, match=r"cannot load a model from .*`model.path`"):
        LocalPolicy(tmp_path / "none")
    with pytest.raises(UserError, match=r"context=9999 is not allowed; allowed: 2 to 1024"):
        LocalPolicy(qwen3, context=9999)
    with pytest.raises(UserError, match="batch is 0"):
        LocalPolicy(qwen3, batch=0)
    window: dict[str, Any] = {
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    }
    sliding = save_model(tmp_path / "sliding", **window)
    with pytest.raises(UserError, match=r"full attention only.*sliding_attention"):
        LocalPolicy(sliding)


def test_uniforms_belong_to_seed_and_position():
    assert np.array_equal(uniforms(3, 17, 5), uniforms(3, 17, 9)[:5])
    assert not np.array_equal(uniforms(3, 17, 5), uniforms(3, 18, 5))
    assert not np.array_equal(uniforms(3, 17, 5), uniforms(4, 17, 5))
    many = uniforms(2**63 - 1, 0, 20_000)
    assert many.dtype == np.float32 and many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01


def test_samples_follow_the_distribution():
    torch.manual_seed(0)
    logits = torch.randn(7) * 2
    logits[3] = -float("inf")
    for temperature in (1.0, 0.5):
        expected = torch.softmax(logits / temperature, -1)
        draws = torch.from_numpy(uniforms(0, 0, 40_000))
        ids, logprobs = sample(logits.repeat(40_000, 1), torch.full((40_000,), temperature), draws)
        shares = torch.bincount(ids, minlength=7) / 40_000
        assert (shares - expected).abs().max() < 0.01 and shares[3] == 0
        assert torch.allclose(logprobs, expected[ids].log(), atol=1e-6)


def test_greedy_rows_alone_are_what_they_are_among_others():
    torch.manual_seed(0)
    logits, draws = torch.randn(5, 50), torch.rand(5)
    mixed = sample(logits.clone(), torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]), draws)
    alone = sample(logits[:4].clone(), torch.zeros(4), draws[:4])
    assert torch.equal(mixed[0][:4], alone[0]) and torch.equal(mixed[1][:4], alone[1])
