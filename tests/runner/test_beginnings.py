"""Runs that begin with another run's agent: real training steps of the tiny agent, few rollouts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from word_router import WORDS

from trace_bench.core.beginning import read_beginning, renamed
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines, write_json
from trace_bench.core.types import AdapterRef, AgentSpec, to_json
from trace_bench.policies.routing.router import KINDS
from trace_bench.runner.forecast import describe
from trace_bench.runner.pipeline import carry_out
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of

SMALL = (
    "checkpoints=[]", "trainer.groups=2", "trainer.group_size=4", "trainer.rank=4",
    "trainer.alpha=8", "evaluation.limit=2", "policy.max_turns=4", "policy.max_tokens=32",
    "env.train_tasks=4", "evaluation.split=dev",
)  # fmt: skip


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    done = carry_out(compose([*SMALL, *overrides, f"run_dir={folder}"]))
    found: dict[str, Any] = to_json(done.summary)
    return found


def agent_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "agent.json").read_text())
    return found


def iteration_0(folder: Path) -> dict[str, Any]:
    lines = read_lines(folder / "metrics.jsonl")
    return next(line for line in lines if line.get("phase") == "training")


def first_adapters(folder: Path, call: str) -> set[str | None]:
    """The adapters that acted in a call."""
    return {e["adapter"] for e in read_lines(folder / "ledger.jsonl") if e["call"] == call}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sft, and grpo that begins with its agent."""
    place = tmp_path_factory.mktemp("chain")
    run(place / "sft", "method=sft", "method.demonstrations=16", "method.batch=8", "budget=8")
    run(place / "grpo", "method=grpo", "budget=16", f"agent={place / 'sft'}")
    return place


@pytest.mark.slow
def test_training_goes_on_from_the_adapter_of_the_beginning(place: Path) -> None:
    (start,) = read_beginning(str(place / "sft")).agent.adapters
    assert start.name.startswith("sft-")
    assert first_adapters(place / "grpo", "train/grpo/iter0000") == {start.name}
    # The trainer's log-probabilities before its first step are those that the beginning sampled.
    assert iteration_0(place / "grpo")["logprob_difference_max"] < 1e-4
    assert [a["name"] for a in agent_of(place / "grpo")["adapters"]] == ["grpo@0002"]
    base = [e for e in read_lines(place / "grpo" / "evaluation.jsonl") if e["agent"] == "base"]
    final = [e for e in read_lines(place / "sft" / "evaluation.jsonl") if e["agent"] == "final"]
    kept = ("task", "score", "stop", "tokens", "turns")
    assert [{k: e[k] for k in kept} for e in base] == [{k: e[k] for k in kept} for e in final]
    assert {e["adapter"] for e in base} == {start.name}


def test_a_chain_counts_every_rollout_and_names_the_demonstrations(place: Path) -> None:
    summary = run(place / "again", "method=grpo", "budget=8", f"agent={place / 'grpo'}")
    folders = [place / name for name in ("sft", "grpo", "again")]
    counted = [len((f / "ledger.jsonl").read_text().splitlines()) if (f / "ledger.jsonl").exists()
               else 0 for f in folders]  # fmt: skip
    assert counted == [0, 16, 8]
    beginning = summary["beginning"]
    assert [r["method"] for r in beginning["runs"]] == ["sft", "grpo"]
    assert beginning["rollouts"] == sum(counted[:2]) and beginning["demonstrations"] == 16
    assert summary["rollouts"]["training"] == counted[2]
    assert iteration_0(place / "again")["logprob_difference_max"] < 1e-4
    (start,) = read_beginning(str(place / "grpo")).agent.adapters
    assert start.name.startswith("grpo-") and start.name.endswith("@0002")
    assert first_adapters(place / "again", "train/grpo/iter0000") == {start.name}


def test_weights_are_trained_under_the_beginnings_prompt(base_run: Path, tmp_path: Path) -> None:
    begun = tmp_path / "base"
    shutil.copytree(base_run, begun)
    prompt = "Ask when something is not clear."
    write_json(begun / "agent.json", {**agent_of(begun), "prompt": prompt})
    summary = run(tmp_path / "grpo", "method=grpo", "budget=8", f"agent={begun}")
    assert summary["beginning"]["rollouts"] == 0
    assert agent_of(tmp_path / "grpo")["prompt"] == prompt
    for line in read_lines(tmp_path / "grpo" / "trajectories.jsonl"):
        system = line["trajectory"]["turns"][0]["messages"][0]["content"]
        assert system.endswith(f"\nGuidance: {prompt}")
    assert first_adapters(tmp_path / "grpo", "train/grpo/iter0000") == {None}
    assert iteration_0(tmp_path / "grpo")["logprob_difference_max"] < 1e-4


def test_a_changed_beginning_is_refused_and_a_lost_one_is_kept(place: Path, tmp_path: Path) -> None:
    begun = tmp_path / "sft"
    shutil.copytree(place / "sft", begun)
    command = ["method=grpo", "budget=8", f"agent={begun}"]
    first = run(tmp_path / "grpo", *command)
    (tmp_path / "grpo" / "summary.json").unlink()
    shutil.move(begun, tmp_path / "moved")
    with pytest.raises(UserError, match=r"holds no agent .*beginning\.json"):
        run(tmp_path / "grpo", *command)
    kept = tmp_path / "grpo" / "beginning.json"
    again = run(tmp_path / "grpo", *command[:2], f"agent={kept}")
    assert again["fingerprint"] == first["fingerprint"]
    assert again["score"] == first["score"] and again["beginning"] == first["beginning"]
    (tmp_path / "grpo" / "summary.json").unlink()
    shutil.copytree(tmp_path / "moved", begun)
    agent = agent_of(begun)
    write_json(begun / "agent.json", {**agent, "prompt": "Another one."})
    with pytest.raises(UserError, match=r"other settings: beginning\.sha256"):
        run(tmp_path / "grpo", *command)
    write_json(begun / "agent.json", agent)
    weights = next(begun.glob("adapters/sft/*/adapter_model.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"other settings: beginning\.sha256"):
        run(tmp_path / "grpo", *command)


@pytest.fixture
def routed(place: Path, tmp_path: Path) -> Path:
    """Two adapters and a router, stored by hand: nothing says what was spent on them."""
    folder = tmp_path / "routed"
    one = Path(agent_of(place / "sft")["adapters"][0]["path"])
    two = Path(agent_of(place / "grpo")["adapters"][0]["path"])
    refs = (AdapterRef("a@1", str(one)), AdapterRef("b@1", str(two)))
    rows = [[0.0] * 128] * 3
    labels = ["a@1", "b@1", None]
    router = {"kind": "classifier", "labels": labels, "weights": rows, "bias": [1.0, 0.0, 0.0]}
    write_json(folder / "agent.json", AgentSpec("m", "v", adapters=refs, router=router))
    return folder


def test_a_routed_agent_is_evaluated_and_not_trained(routed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"routes between several.*adapters=joint"):
        run(tmp_path / "grpo", "method=grpo", "budget=8", f"agent={routed}")
    summary = run(tmp_path / "base", "method=base", f"agent={routed}")
    assert summary["beginning"]["rollouts"] is None
    assert [row["name"] for row in summary["table"]][:2] == ["base", "oracle route"]
    lines = read_lines(tmp_path / "base" / "evaluation.jsonl")
    names = {a["name"] for a in agent_of(tmp_path / "base")["adapters"]}
    assert {e["agent"] for e in lines} >= {f"adapter:{n}" for n in names} | {"adapter:none"}
    stored = (tmp_path / "base" / "adapters").glob("*/1")
    assert sorted(p.parent.name for p in stored) == sorted(n.partition("@")[0] for n in names)
    assert not (tmp_path / "grpo").exists(), "a refused run leaves nothing behind"


REFUSED = [
    (["method=grpo", "trainer.rank=2"], r"rank 4, more than trainer\.rank=2"),
    (["method=grpo", "trainer.target_modules=[q_proj]"], "down_proj.*target_modules"),
    (["method=base", "policy=idle"], "needs a policy that runs a model"),
    (["method=grpo", "agent=/nowhere"], "holds no agent"),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED)
def test_what_cannot_be_begun_with_is_refused(
    overrides: list[str], words: str, place: Path, tmp_path: Path
) -> None:
    given = ["budget=8", f"agent={place / 'sft'}", *overrides]
    with pytest.raises(UserError, match=words):
        run(tmp_path / "run", *given)
    settings = compose([*SMALL, *given])
    assert re.search(words, describe(settings, parts_of(settings))[0]), "a dry run says so too"


def test_agents_of_unfinished_runs_or_other_models_are_refused(place: Path, tmp_path: Path) -> None:
    begun = tmp_path / "sft"
    shutil.copytree(place / "sft", begun)
    text = (begun / "config.yaml").read_text()
    mark = read_beginning(str(begun)).weights
    assert mark is not None
    (begun / "config.yaml").write_text(text.replace(mark, "f" * len(mark)))
    with pytest.raises(UserError, match="other weights"):
        run(tmp_path / "run", "method=base", f"agent={begun}")
    summary = json.loads((begun / "summary.json").read_text())
    for damage in ({"rollouts": {"training": -1}}, {"seed": "x"}, {"method": None, "rollouts": 1}):
        write_json(begun / "summary.json", {**summary, **damage})
        with pytest.raises(UserError, match="damaged"):
            read_beginning(str(begun))
    (begun / "summary.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        read_beginning(str(begun))
    wrong = ([1], {"adapters": 3}, {"model": "m", "router": {"kind": "sum"}, "adapters": 1})
    for content in wrong:
        write_json(begun / "agent.json", content)
        with pytest.raises(UserError):
            read_beginning(str(begun))


def test_every_kind_of_router_keeps_its_adapters_under_their_new_names() -> None:
    zero_shot = {"kind": "zero_shot", "skills": [["a", "what"]], "otherwise": "a"}
    classifier = {"kind": "classifier", "labels": ["a", None], "weights": [[0.0]], "bias": [1.0]}
    summed = {"kind": "sum", "parts": [["a", 0.5]]}
    fixed = {"kind": "fixed", "adapter": "a"}
    routers = (zero_shot, classifier, summed, fixed)
    for router in routers:
        found = renamed(router, {"a": "NEW", None: None}.__getitem__)
        assert json.loads(json.dumps(found).replace('"NEW"', '"a"')) == router
        assert '"a"' not in json.dumps(found) and '"NEW"' in json.dumps(found)
    assert {router["kind"] for router in routers} == set(KINDS) - {WORDS}


def test_the_same_content_is_the_same_beginning(place: Path, tmp_path: Path) -> None:
    one = read_beginning(str(place / "sft"))
    again = read_beginning(str(place / "sft" / "agent.json"))
    kept = read_beginning(str(place / "grpo" / "beginning.json"))
    assert one.sha256 == again.sha256 == kept.sha256
    assert to_json(one.runs) == to_json(kept.runs)
    assert kept.agent.adapters[0].name == one.agent.adapters[0].name
    assert str(place / "grpo") in kept.agent.adapters[0].path
