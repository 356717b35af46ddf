"""policy=openai against a real vLLM that serves the tiny agent (run by .ci/vllm)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from at_servers import NEEDS_VLLM
from models import save_adapter
from safetensors.torch import load_file, save_file
from sandboxes import in_process as suite
from servers.vllm_process import serve
from word_router import WORDS

from trace_bench.check import main as check
from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.store import write_json
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.llm.client import Endpoint
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.policies.served import served_name
from trace_bench.runner.pipeline import run
from trace_bench.settings.compose import compose
from trace_bench.tiny import MODEL_FOLDER

pytestmark = NEEDS_VLLM
MODEL = str(MODEL_FOLDER)
EQUAL = 0.98  # share of the tasks on which server and local policy must agree


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(MODEL, tmp_path_factory.mktemp("vllm") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent of two adapters that TRACE has trained, and its run with the local policy. Servers
    show no hidden states, so words choose between its adapters in place of its classifier."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    small = ["budget=448", "method.minimum_training=64", "evaluation.yardsticks=false"]
    run(compose([*small, "seed=1", "checkpoints=[]", f"run_dir={folder / 'trained'}"]))
    agent = convert(json.loads((folder / "trained" / "agent.json").read_text()), AgentSpec)
    words = {"message": 0, "send": 0, "text": 0, "remind": 1}
    router = {"kind": WORDS, "words": words, "labels": [*(a.name for a in agent.adapters), None]}
    write_json(folder / "agent.json", replace(agent, router=router))
    again = ["method=base", "evaluation.limit=128", f"agent={folder / 'agent.json'}"]
    run(compose([*again, f"run_dir={folder / 'here'}"]))
    return folder


def outcomes(folder: Path, label: str) -> dict[str, Any]:
    lines = map(json.loads, (folder / "evaluation.jsonl").read_text().splitlines())
    return {e["task"]: e for e in lines if e["agent"] == label}


def served(url: str) -> list[str]:
    return [m["id"] for m in httpx.get(f"{url}/models").json()["data"]]


def policy(url: str, **endpoint: Any) -> OpenAIPolicy:
    return OpenAIPolicy(Endpoint((url,), **endpoint), "tiny", capacity=32, extra=None)


def agreement(one: dict[str, Any], two: dict[str, Any]) -> float:
    """Share of the tasks with the same score, end and adapter; says which differ."""
    assert one.keys() == two.keys()
    keys = ("score", "stop", "adapter")
    other = [t for t in one if any(one[t][k] != two[t][k] for k in keys)]
    for task in other:
        print(task, *({k: e[task][k] for k in keys} for e in (one, two)))
    return 1 - len(other) / len(one)


def test_the_routed_agent_scores_the_same_behind_vllm(
    url: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = convert(json.loads((trained / "agent.json").read_text()), AgentSpec)
    assert len(agent.adapters) >= 2, "the small run trains fewer adapters than this test wants"
    there = ["policy=openai", f"policy.base_url={url}", "model=served", "model.name=tiny"]
    again = ["method=base", "evaluation.limit=128", f"agent={trained}", f"run_dir={tmp_path / 'r'}"]
    run(compose([*again, *there]))
    said = capsys.readouterr().out
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    here, server = outcomes(trained / "here", "final"), outcomes(tmp_path / "r", "final")
    assert agreement(here, server) >= EQUAL
    assert len({e["adapter"] for e in server.values()}) >= 2, "all tasks of one adapter"
    assert served(url) == ["tiny"], "adapters stay behind"
    cost = summary["usage"]["policy"]
    assert cost["failures"] == 0 and cost["completion_tokens"] > 0
    assert f"policy: {cost['requests']} requests" in said


def test_training_on_its_rollouts_knows_every_token(url: str, tmp_path: Path) -> None:
    there = ["policy=openai", f"policy.base_url={url}", "model.name=tiny", "checkpoints=[]"]
    small = ["method=grpo", "budget=96", "evaluation.limit=8", f"run_dir={tmp_path / 'r'}"]
    run(compose([*small, *there]))
    lines = [json.loads(s) for s in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    training = [line for line in lines if line.get("phase") == "training"]
    assert len(training) == 3
    for line in training:
        assert line["logprob_difference_mean"] < 1e-5, "sampler and trainer disagree"
        assert line["inexact"] <= 3, "most episodes lose their tokens"
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["adapters"] == ["grpo@0003"]
    assert served(url) == ["tiny"]


def test_a_name_with_other_weights_is_caught(url: str, trained: Path, tmp_path: Path) -> None:
    agent = convert(json.loads((trained / "agent.json").read_text()), AgentSpec)
    right = agent.adapters[0]
    wrong = tmp_path / "wrong"
    shutil.copytree(right.path, wrong)
    weights = load_file(wrong / "adapter_model.safetensors")
    zero = {k: torch.zeros_like(v) if ".lora_B" in k else v for k, v in weights.items()}
    save_file(zero, wrong / "adapter_model.safetensors")
    name = served_name(right)
    loaded = {"lora_name": name, "lora_path": str(wrong)}
    httpx.post(f"{url}/load_lora_adapter", json=loaded).raise_for_status()
    acting = policy(url)
    with pytest.raises(UserError, match="just as the base model does"):
        acting.load(AgentSpec("tiny", adapters=(right,)))
    acting.close()
    httpx.post(f"{url}/unload_lora_adapter", json={"lora_name": name}).raise_for_status()


def test_adapters_are_checked_from_outside(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of one that acts holds; one whose name has other weights is unlike PEFT's."""
    good, other = (save_adapter(MODEL_FOLDER, tmp_path / name, seed, targets=["q_proj", "v_proj"])
                   for seed, name in enumerate(("good", "other")))  # fmt: skip
    words = [f"server={url}", f"adapters={good}", f"base={MODEL}"]
    assert check(words) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert said.count("\n  OK ") == 6 and "not checked" not in said, said
    assert served(url) == ["tiny"]
    name = {"lora_name": served_name(AdapterRef("good", str(good)))}
    httpx.post(f"{url}/load_lora_adapter", json={**name, "lora_path": str(other)})
    assert check(words) == 1
    said = capsys.readouterr().out
    httpx.post(f"{url}/unload_lora_adapter", json=name).raise_for_status()
    assert said.count("  WRONG ") == 1 and "  WRONG        like PEFT: up to " in said, said


def test_a_prompt_beyond_the_context_is_a_stop_and_not_a_failure(url: str) -> None:
    acting = policy(url)
    long = ({"role": "user", "content": "word " * 3000},)
    acting.submit([TurnRequest(0, long)])
    (reply,) = acting.collect()
    assert reply.turn is None and reply.context_full
    near = ({"role": "user", "content": "wort " * 190},)
    acting.submit([TurnRequest(1, near, max_tokens=900)])  # the prompt fits, the answer might not
    (reply,) = acting.collect()
    acting.close()
    assert reply.turn is not None and not reply.context_full


def test_it_is_asked_for_one_turn_beforehand(url: str) -> None:
    """Its tools reach the prompt; a prompt that is too long is refused in its own words."""
    acting = policy(url)
    world = suite("toolsandbox", "embedded")
    step = world.make().reset(world.tasks("train")[0])
    request = TurnRequest(-1, step.messages, step.tools)
    assert acting.try_turn(request).endswith(" tools: 2 requests, no rollout")
    long = replace(request, messages=({"role": "user", "content": "word " * 3000},))
    with pytest.raises(UserError, match=r"no room for the first prompt .*1024 tokens"):
        acting.try_turn(long)
    acting.close()
