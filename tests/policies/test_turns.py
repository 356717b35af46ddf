"""An adapter that changes from turn to turn: the choice, the engine, servers, records, `show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from models import save_adapter, save_model
from peft import PeftModel
from playing import play
from sandboxes import in_process as suite
from servers.vllm import FakeVLLM, fake_adapter
from transformers import AutoModelForCausalLM

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Router, TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec, Message, Stored, Tool, Turn
from trace_bench.llm.client import Endpoint
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.policies.routing.router import make_router
from trace_bench.policies.routing.turn import words_of
from trace_bench.rehearse.scripted import serve
from trace_bench.show import render
from trace_bench.tiny import MODEL_FOLDER

HELLO: tuple[Message, ...] = (
    {"role": "system", "content": "S."},
    {"role": "user", "content": "A."},
)
MORE: tuple[Message, ...] = ({"role": "user", "content": "And now?"},)


def adapters(model: Path, folder: Path) -> tuple[AdapterRef, ...]:
    out = []
    for seed, name in enumerate(("one", "two"), start=1):
        place = folder / "adapters" / name / "0001"
        place.parent.mkdir(parents=True)
        save_adapter(model, place, seed=seed)
        out.append(AdapterRef(f"{name}@0001", str(place)))
    return tuple(out)


def asked(policy: LocalPolicy, episode: int, names: Sequence[str | None]) -> list[Turn]:
    """The turns of an episode in which these adapters act one after the other."""
    turns: list[Turn] = []
    for n, name in enumerate(names):
        messages = MORE if n else HELLO
        policy.submit([TurnRequest(episode, messages, (), name, seed=3, max_tokens=12)])
        (reply,) = policy.collect()
        assert reply.turn is not None, reply.error
        turns.append(reply.turn)
    return turns


@pytest.mark.parametrize("kind", ["qwen3", "llama"])  # the lean engine, and any other module
def test_every_turn_has_the_log_probabilities_of_its_own_adapter(kind: str, tmp_path: Path) -> None:
    """As if that adapter had read the whole conversation: PEFT's own forward pass, without a
    cache. Another episode is live meanwhile, so that slots and prefixes are shared."""
    folder = save_model(tmp_path / "model", kind)
    refs = adapters(folder, tmp_path)
    policy = LocalPolicy(folder, batch=3)
    policy.load(AgentSpec(str(folder), adapters=refs))
    names = ["one@0001", "two@0001", None, "one@0001", "one@0001"]
    asked(policy, 7, ["two@0001"])
    turns = asked(policy, 1, names)
    policy.release(1)
    again = asked(policy, 2, names)
    policy.close()
    assert [t.token_ids for t in again] == [t.token_ids for t in turns]
    assert [t.adapter for t in turns] == names
    base: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, refs[0].path, adapter_name="one@0001".replace("@", "_"))
    model.load_adapter(refs[1].path, adapter_name="two_0001")
    model.eval()
    ids: list[int] = []
    for turn in turns:
        ids += turn.prompt_ids
        whole = torch.tensor([ids + list(turn.token_ids)])
        with torch.inference_mode():
            if turn.adapter is None:
                with model.disable_adapter():
                    logits = model(whole).logits[0]
            else:
                model.set_adapter(turn.adapter.replace("@", "_"))
                logits = model(whole).logits[0]
        lines = logits[len(ids) - 1 : -1].float().log_softmax(-1)
        expected = lines.gather(1, torch.tensor(turn.token_ids)[:, None])[:, 0]
        assert list(turn.logprobs) == pytest.approx(expected.tolist(), abs=2e-4)
        ids += turn.token_ids


def test_a_server_is_asked_by_name_at_every_turn(tmp_path: Path) -> None:
    refs = tuple(fake_adapter(tmp_path, f"{n}@0001", v) for v, n in enumerate(("one", "two"), 1))
    names = [None, "two@0001", "one@0001", "one@0001"]
    with serve(FakeVLLM()) as server:
        policy = OpenAIPolicy(Endpoint((server.url,), retries=0), "m", capacity=2, extra=None)
        policy.load(AgentSpec("m", adapters=refs))
        turns = []
        for n, name in enumerate(names):
            policy.submit([TurnRequest(0, MORE if n else HELLO, (), name)])
            (reply,) = policy.collect()
            assert reply.turn is not None, reply.error
            turns.append(reply.turn)
        asked_for = [b["model"] for b in server.bodies() if b.get("messages", [{}])[0] == HELLO[0]]
        policy.close()
    assert [t.adapter for t in turns] == names
    assert [m.partition("+")[0] for m in asked_for] == ["m", "two@0001", "one@0001", "one@0001"]


def description(**changes: Any) -> dict[str, Any]:
    """`one` after an error, the base model otherwise; `two` where a mail is asked for."""
    words = ["tool: error", "user: mail"]
    router: dict[str, Any] = {"kind": "turns", "words": words}
    router |= {"labels": ["one@0001", "two@0001", None]}
    router |= {"weights": [[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], "bias": [0.0, 0.0, 0.5]}
    return {**router, "others": 0.0, **changes}


REFS = (AdapterRef("one@0001", "x"), AdapterRef("two@0001", "y"))


def test_the_choice_follows_what_the_conversation_shows() -> None:
    router = make_router(AgentSpec("m", adapters=REFS, router=description()))
    assert router.has(Router.next) and not router.waits
    said: list[Message] = [{"role": "user", "content": "Write a mail."}]
    assert router.route(said, ()) == "two@0001"
    call = {"id": "c", "type": "function", "function": {"name": "send", "arguments": "{}"}}
    said.append({"role": "assistant", "content": "", "tool_calls": [call]})
    said.append({"role": "tool", "tool_call_id": "c", "name": "send", "content": "Error 12: off"})
    assert router.next(said, ()) == "one@0001"
    assert router.next(HELLO, ()) is None
    tools: list[Tool] = [{"type": "function", "function": {"name": "send"}}]
    assert words_of(said, tools) >= {
        "at hand: send", "called: send", "user: mail", "tool: error 0", "new tool: error 0",
    }  # fmt: skip
    assert "new user: mail" not in words_of(said, tools)
    with pytest.raises(UserError, match=r"unknown adapter 'six'"):
        make_router(AgentSpec("m", adapters=REFS, router=description(labels=["six", None, None])))


def test_an_episode_is_played_recorded_and_shown_with_its_adapters(tmp_path: Path) -> None:
    refs = adapters(MODEL_FOLDER, tmp_path)
    world = suite("toolsandbox", "embedded")
    tasks = list(world.tasks("dev"))[:12]
    # The base model opens; once the agent has called something, `one` takes over with `two`.
    words = ["called: " + t["function"]["name"] for task in tasks for t in _tools(world, task)]
    words = sorted(set(words))
    router = description(
        words=words,
        weights=[[1.0] * len(words), [0.0] * len(words), [0.0] * len(words)],
        others=0.35,
    )
    policy = LocalPolicy(MODEL_FOLDER, batch=4)
    agent = AgentSpec(str(MODEL_FOLDER), adapters=refs, router=router)
    played = play(policy, world, agent, tasks, [0] * 12, temperature=0.0, max_turns=4)
    policy.close()
    base, sums = "one@0001*0.35+two@0001*0.35", "one@0001*1+two@0001*0.35"
    changed = [t for t in played if len({turn.adapter for turn in t.turns}) > 1]
    assert changed
    for trajectory in played:
        used = list(dict.fromkeys(turn.adapter for turn in trajectory.turns))
        assert trajectory.adapter == " > ".join(str(name) for name in used)
        called = False
        for turn in trajectory.turns:
            assert turn.adapter == (sums if called else base)
            called = called or bool(turn.reply.get("tool_calls"))
    text = render(Stored("evaluation/final", 0, changed[0]), {})
    assert text.index(f"[adapter {base}]") < text.index(f"[adapter {sums}]")
    assert "[adapter" not in render(_steady(played), {})


def _tools(world: Any, task: Any) -> Sequence[Tool]:
    found: Sequence[Tool] = world.make().reset(task).tools
    return found


def _steady(played: Sequence[Any]) -> Stored:
    one = next(t for t in played if len({turn.adapter for turn in t.turns}) == 1)
    return Stored("evaluation/final", 0, one)
