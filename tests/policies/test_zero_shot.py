"""Routing by the base model: over HTTP from scripted probabilities, and by the tiny model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from at_servers import answering, policy
from playing import play
from sandboxes import in_process as suite
from servers.vllm import FakeVLLM, fake_adapter

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec, Boundary, Message
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.router import make_router
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.rehearse.scripted import Answer, chat, serve
from trace_bench.tiny import MODEL_FOLDER

ADAPTERS = (AdapterRef("wifi@1", "w"), AdapterRef("mail@1", "m"))
SKILLS = [["wifi@1", "repairs the wifi"], ["mail@1", "sends mail"]]
ZERO_SHOT = {"kind": "zero_shot", "skills": SKILLS, "prompt": 1}


def said(text: str) -> list[Message]:
    return [{"role": "system", "content": "S."}, {"role": "user", "content": text}]


def letters(**logprobs: float) -> Answer:
    top = [{"token": t, "logprob": p} for t, p in logprobs.items()]
    return chat("?", "m", choice={"logprobs": {"content": [{"top_logprobs": top}]}})


def routed(router: Any, answer: Answer, text: str = "Please.") -> tuple[str | None, list[Any]]:
    with answering(answer) as server, policy(server.url, retries=0) as acting:
        agent = AgentSpec("m", adapters=ADAPTERS, router=router)
        return make_router(agent, acting).route(said(text), []), server.bodies()


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        (letters(A=-0.2, B=-2.0, C=-3.0), "wifi@1"),
        (letters(A=-4.0, B=-0.1, C=-3.0), "mail@1"),
        (letters(A=-4.0, B=-3.0, C=-0.1), None),
        (letters(A=-1.0, B=-1.0), "wifi@1"),
        (letters(Z=-0.1), None),
    ],
)
def test_the_likeliest_letter_decides(answer: Answer, choice: str | None) -> None:
    found, bodies = routed(ZERO_SHOT, answer)
    assert found == choice
    (asked,) = bodies
    assert (asked["max_tokens"], asked["temperature"], asked["model"]) == (1, 0.0, "m")
    assert "A. repairs the wifi\nB. sends mail\nC. none of these" in asked["messages"][0]["content"]
    assert asked["messages"][1]["content"] == "Please."


def test_without_probabilities_there_is_no_choice() -> None:
    with pytest.raises(UserError, match=r"no log-probabilities.*method\.route"):
        routed(ZERO_SHOT, chat("A", "m"))
    with pytest.raises(UserError, match="this policy has none to ask"):
        make_router(AgentSpec("m", adapters=ADAPTERS, router=ZERO_SHOT), IdlePolicy())


def test_every_episode_is_routed_by_itself_and_a_bad_answer_is_its_failure(tmp_path: Path) -> None:
    """A scripted vLLM with two adapters: wifi to one, reminders lost, the rest to the base."""

    def answer(body: dict[str, Any]) -> Answer | None:
        if body["model"] != "m" or body["max_tokens"] != 1:
            return None
        text = body["messages"][-1]["content"].lower()
        if "remind" in text:
            return Answer({"error": "no"}, 400)
        return letters(A=-0.1) if "wifi" in text else letters(C=-0.1)

    adapters = (fake_adapter(tmp_path, "wifi@1"), fake_adapter(tmp_path, "mail@1", 2.0))
    vllm = FakeVLLM(answer)
    world = suite("toolsandbox", "embedded")
    tasks = list(world.tasks("train"))[:32]
    agent = AgentSpec("m", adapters=adapters, router=ZERO_SHOT)
    with serve(vllm) as server, policy(server.url, retries=0) as acting:
        played = play(acting, world, agent, tasks, [0] * 32)
        assert [name.partition("+")[0] for name in vllm.names] == ["m", "wifi@1", "mail@1"]
    assert vllm.names == ["m"]
    seen = {"wifi": 0, "remind": 0, "other": 0}
    for task, trajectory in zip(tasks, played, strict=True):
        text = world.make().reset(task).messages[-1]["content"].lower()
        if "remind" in text:
            seen["remind"] += 1
            assert trajectory.failure is not None
            assert trajectory.failure.boundary is Boundary.POLICY
            continue
        seen["wifi" if "wifi" in text else "other"] += 1
        assert trajectory.adapter == ("wifi@1" if "wifi" in text else None)
        assert {turn.adapter for turn in trajectory.turns} == {trajectory.adapter}
    assert all(seen.values()), seen


def test_the_local_model_is_asked_the_same_way() -> None:
    here = LocalPolicy(str(MODEL_FOLDER))
    found = here.label_logprobs(said("Which one?"), ["A", "B", "C"])
    assert set(found) == {"A", "B", "C"} and all(p < 0 for p in found.values())
    assert sum(map(math.exp, found.values())) < 1
    with pytest.raises(UserError, match=r"is \d+ tokens to"):
        here.label_logprobs(said("Which one?"), ["wifi and mail"])
    router = make_router(AgentSpec("m", adapters=ADAPTERS, router=ZERO_SHOT), here)
    assert router.route(said("The wifi is off."), []) in (None, "wifi@1", "mail@1")
    assert not router.waits, "the order of threads would decide what is computed together"
    here.close()


def test_without_a_router_the_only_adapter_plays() -> None:
    def route(router: Any, *adapters: AdapterRef) -> Any:
        return make_router(AgentSpec("m", adapters=adapters, router=router)).route(said("x"), ())

    assert route(None) is None and route(None, ADAPTERS[0]) == "wifi@1"
    assert route({"kind": "fixed", "adapter": "mail@1"}, *ADAPTERS) == "mail@1"
    with pytest.raises(UserError, match=r"2 adapters \(wifi@1, mail@1\) and no router"):
        route(None, *ADAPTERS)
    with pytest.raises(UserError, match=r"unknown router 'magic'; allowed: fixed, zero_shot"):
        route({"kind": "magic"})
    with pytest.raises(UserError, match=r"unknown adapter 'x@9'.*wifi@1, mail@1"):
        route({"kind": "fixed", "adapter": "x@9"}, *ADAPTERS)
