"""Hidden states from a second server, over real HTTP: this project's own `serve --states`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from models import save_adapter
from playing import play
from sandboxes import in_process as suite
from servers.agent import serving
from servers.lora import lora_server
from thinking import AskingSuite

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import HoldsModel, ShowsState, TurnRequest
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.llm.client import Endpoint, LLMError
from trace_bench.policies.chat import Chat
from trace_bench.policies.endpoints import StateServers, StatesPolicy
from trace_bench.policies.loading import load_tokenizer
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.policies.routing.router import make_router
from trace_bench.rehearse.scripted import Answer, Script, models, serve
from trace_bench.serve.engine import LocalEngine
from trace_bench.serve.forward import Forward
from trace_bench.serve.local import Local, States
from trace_bench.serve.request import ServeSettings
from trace_bench.tiny import MODEL_FOLDER

HELLO = ([{"role": "user", "content": "Hello."}], ())
WIDTH = 128
MODEL = str(MODEL_FOLDER)


@contextmanager
def states_of(context: int | None = None) -> Iterator[str]:
    """The address of our own server of the model's states."""
    acting = LocalPolicy(MODEL, batch=4, context=context, threads=1)
    agent = AgentSpec(MODEL)
    answers = Local(LocalEngine(acting, agent, 8))
    with serving(answers, agent, ServeSettings(name="m"), states=States(acting)) as served:
        yield f"{served.url}/v1"


def client(url: str, context: int | None = None, **endpoint: Any) -> StateServers:
    chat = Chat(load_tokenizer(MODEL), "m")
    there = Endpoint((url,), retries=0, deadline=10.0, **endpoint)
    return StateServers(there, "m", chat, MODEL, context)


def openings(count: int) -> list[Any]:
    world = suite("toolsandbox", "embedded")
    steps = [world.make().reset(task) for task in list(world.tasks("dev"))[:count]]
    return [(step.messages, step.tools[:2]) for step in steps]


def test_the_states_are_those_of_this_process_and_asked_for_once() -> None:
    here = LocalPolicy(MODEL, batch=4, threads=1)
    prompts = openings(6)
    with states_of() as url:
        servers = client(url)
        found = servers.of(prompts)
        assert [list(s) for s in found] == [list(s) for s in here.prompt_states(prompts)]
        assert servers.asked == 6
        assert servers.of([*prompts, *prompts]) == [*found, *found]
        assert servers.asked == 6, "a state that is kept was asked for again"
        servers.close()


def test_of_a_long_prompt_the_last_tokens_are_read() -> None:
    prompts = openings(1)
    here = LocalPolicy(MODEL, batch=4, context=200, threads=1)
    with states_of(context=200) as url:  # the server says how many it reads
        servers = client(url)
        assert list(servers.of(prompts)[0]) == list(here.prompt_states(prompts)[0])
        servers.close()
    with states_of() as url:
        servers = client(url, context=200)
        assert list(servers.of(prompts)[0]) == list(here.prompt_states(prompts)[0])
        servers.close()


def test_what_our_server_refuses() -> None:
    def refused(body: Any, status: int, text: str) -> None:
        said = httpx.post(f"{url}/embeddings", json=body)
        assert said.status_code == status and text in said.json()["error"]["message"]

    with states_of(context=8) as url:
        refused({"model": "m", "input": "a text"}, 400, "`input`")
        refused({"model": "m", "input": []}, 400, "0 tokens")
        refused({"model": "m", "input": [[1, 2], 3]}, 400, "mixes")
        refused({"model": "m", "input": [[1] * 9]}, 400, "9 tokens; allowed: 1 to 8")
        refused({"model": "m", "input": [10**6]}, 400, "is not in 0 to")
        refused({"model": "m", "input": [-1]}, 400, "is not in 0 to")
        refused({"model": "x", "input": [1]}, 404, "does not exist")
        refused({"model": "m", "input": [1], "dimensions": 2}, 400, "dimensions")
        refused({"model": "m", "input": [1], "use_activation": True}, 400, "use_activation")
        two = httpx.post(f"{url}/embeddings", json={"model": "m", "input": [[1, 2], [3]]}).json()
        one = httpx.post(f"{url}/embeddings", json={"model": "m", "input": [3]}).json()
        assert len(two["data"]) == 2 and two["data"][1]["embedding"] == one["data"][0]["embedding"]
        assert two["usage"]["prompt_tokens"] == 3


def shows(embedding: Any, name: str = "m") -> Script:
    data = [{"index": 0, "embedding": embedding}]
    return lambda path, _: models(name) if path == "/v1/models" else Answer({"data": data})


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        (shows([1.0] * 47), UserError, "states of 47 numbers, and the model .* has 128"),
        (shows([1.0] + [0.0] * 127), UserError, "length 1: the server normalizes"),
        (shows([1e300] * 128), LLMError, "not finite|too large"),
        (shows(["1"] * 128), LLMError, "no list of numbers"),
        (shows([True] * 128), LLMError, "no list of numbers"),
        (shows(None), LLMError, "no list of numbers"),
        (shows([1.0] * 128, "other"), UserError, "unknown model .* 'm'; allowed: other"),
        (lambda *_: Answer({"error": "no"}, 400), LLMError, "HTTP 400"),
    ],
)
def test_what_is_no_state_is_refused(script: Any, error: Any, text: str) -> None:
    with serve(script) as server:
        servers = client(server.url)
        for _ in range(2):  # nothing of it is kept
            with pytest.raises(error, match=text):
                servers.of([HELLO])
        with pytest.raises(UserError):
            servers.try_one(HELLO)
        servers.close()


def test_a_state_that_failed_is_asked_for_again() -> None:
    right = [2.0] * WIDTH
    answers = [Answer({"data": []}), Answer({"data": [{"embedding": right}]})]
    with serve(lambda path, _: models("m") if path == "/v1/models" else answers.pop(0)) as server:
        servers = client(server.url)
        with pytest.raises(LLMError):
            servers.of([HELLO])
        assert list(servers.of([HELLO])[0]) == right
        servers.close()


def test_a_question_is_not_answered_by_a_failure_of_before() -> None:
    """Nor by one that nobody has read, as another prompt of its question failed first."""
    right, up = [2.0] * WIDTH, False

    def script(path: str, _: Any) -> Answer:
        if path == "/v1/models":
            return models("m")
        return Answer({"data": [{"embedding": right}]}) if up else Answer({"error": "no"}, 400)

    other = ([{"role": "user", "content": "Good day."}], ())
    with serve(script) as server:
        servers = client(server.url)
        with pytest.raises(LLMError):
            servers.of([HELLO, other])
        up = True
        assert [list(state) for state in servers.of([other])] == [right]
        servers.close()


def test_a_server_that_is_gone_names_how_to_start_one() -> None:
    servers = client("http://127.0.0.1:1/v1")
    with pytest.raises(UserError, match=r"--runner pooling .*trace_bench.serve .* --states"):
        servers.try_one(HELLO)
    servers.close()


# -- a policy at servers ---------------------------------------------------------------------------


def agent_of(folder: Path, soft: bool, here: LocalPolicy, prompts: Any) -> AgentSpec:
    """An agent whose router parts the prompts by their first feature."""
    refs = []
    for seed, name in enumerate(("one", "two"), start=1):
        place = folder / "adapters" / name / "0001"
        place.parent.mkdir(parents=True)
        save_adapter(MODEL_FOLDER, place, seed=seed)
        refs.append(AdapterRef(f"{name}@0001", str(place)))
    firsts = sorted(s[0] for s in here.prompt_states(prompts))
    middle = (firsts[len(firsts) // 2 - 1] + firsts[len(firsts) // 2]) / 2
    rows = [[20.0] + [0.0] * (WIDTH - 1), [-20.0] + [0.0] * (WIDTH - 1), [0.0] * WIDTH]
    bias = [-20.0 * middle, 20.0 * middle, -5.0]
    router: dict[str, Any] = {
        "kind": "classifier",
        "labels": ["one@0001", "two@0001", None],
        "weights": rows,
    }
    router |= {"bias": bias, "others": 0.35, "soft": soft}
    return AgentSpec(MODEL, adapters=tuple(refs), router=router)


def _tasks(world: Any, count: int) -> list[Any]:
    return list(world.tasks("dev"))[:count]


@pytest.mark.parametrize("soft", [False, True])
def test_the_same_choices_and_outputs_as_in_this_process(soft: bool, tmp_path: Path) -> None:
    world = suite("toolsandbox", "embedded")
    tasks = _tasks(world, 6)
    here = LocalPolicy(MODEL, batch=6, threads=1)
    prompts = [(s.messages, s.tools) for s in (world.make().reset(t) for t in tasks)]
    agent = agent_of(tmp_path, soft, here, prompts)
    kinds = {getattr(c, "name", c) for c in make_router(agent, here).routes(prompts)}
    assert len(kinds) > 1, "all tasks of one choice"
    with states_of() as states, lora_server(MODEL) as (turns, _):
        there = StatesPolicy(
            Endpoint((turns,), retries=0),
            "m",
            client(states),
            capacity=6,
            extra=None,
        )
        assert isinstance(there, ShowsState) and not isinstance(there, HoldsModel)
        ask = TurnRequest(-1, tuple(prompts[0][0]), tuple(prompts[0][1]), max_tokens=4)
        assert "a hidden state of 128 numbers" in there.try_turn(ask)
        how: dict[str, Any] = {"temperature": 0.0, "max_turns": 2}
        served, local = (play(p, world, agent, tasks, [0] * 6, **how) for p in (there, here))
        usage = there.usage()
        there.close()
    assert [t.adapter for t in served] == [t.adapter for t in local]
    assert usage["states"] == 7, "one for each opening, and the one before the run"
    for one, two in zip(served, local, strict=True):
        assert one.failure is None and one.messages == two.messages
        for a, b in zip(one.turns, two.turns, strict=True):
            assert a.token_ids == b.token_ids and a.adapter == b.adapter
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_the_choice_of_every_turn_is_that_of_this_process(tmp_path: Path) -> None:
    """From the words of the conversation, with sums of adapters; no state is asked for."""
    tasks, here = AskingSuite().tasks("train")[:4], LocalPolicy(MODEL, batch=4, threads=1)
    refs = agent_of(tmp_path, False, here, openings(4)).adapters
    router: dict[str, Any] = {"kind": "turns", "words": ["new user: and"], "others": 0.35}
    router |= {"labels": [a.name for a in refs], "weights": [[-2.0], [2.0]], "bias": [1.0, -1.0]}
    agent = AgentSpec(MODEL, adapters=refs, router=router)
    with states_of() as states, lora_server(MODEL) as (turns, _):
        how: dict[str, Any] = {"capacity": 4, "extra": None}
        there = StatesPolicy(Endpoint((turns,), retries=0), "m", client(states), **how)
        world = AskingSuite()
        limits: dict[str, Any] = {"temperature": 0.0, "max_turns": 2}
        served, local = (play(p, world, agent, tasks, [0] * 4, **limits) for p in (there, here))
        usage = there.usage()
        there.close()
    assert usage["states"] == 0
    second = changed = 0
    for one, two in zip(served, local, strict=True):
        assert one.failure is None
        changed += len({turn.adapter for turn in one.turns}) == 2
        assert [turn.adapter for turn in one.turns] == [turn.adapter for turn in two.turns]
        for n, (a, b) in enumerate(zip(one.turns, two.turns, strict=True)):
            if (a.prompt_ids, a.kept) != (b.prompt_ids, b.kept):
                break  # servers read an earlier turn that was cut at its limit in other tokens
            assert a.token_ids == b.token_ids
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
            second += n
    assert changed >= 2 and second >= 2


def test_our_server_in_front_of_another_routes_by_states(tmp_path: Path) -> None:
    world = suite("toolsandbox", "embedded")
    here = LocalPolicy(MODEL, batch=4, threads=1)
    prompts = [(s.messages, s.tools) for s in (world.make().reset(t) for t in _tasks(world, 4))]
    agent = agent_of(tmp_path, False, here, prompts)
    wanted = [choice.name for choice in make_router(agent, here).routes(prompts)]
    with states_of() as states, lora_server(MODEL) as (turns, _):
        behind = Endpoint((turns,), retries=0)
        with pytest.raises(UserError, match="--states-url"):
            Forward(behind, "m", agent, 8)
        forward = Forward(behind, "m", agent, 8, states=client(states))
        with serving(forward, agent) as served:
            for messages, tools in prompts:
                body = {"model": "agent", "messages": list(messages), "tools": list(tools)}
                said = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)
                assert said.status_code == 200, said.text
    assert [line.partition("adapter ")[2].partition(",")[0] for line in served.lines] == wanted


def test_a_state_that_cannot_be_had_loses_that_episode_alone(tmp_path: Path) -> None:
    world = suite("toolsandbox", "embedded")
    tasks = _tasks(world, 2)
    here = LocalPolicy(MODEL, batch=2, threads=1)
    prompts = [(s.messages, s.tools) for s in (world.make().reset(t) for t in tasks)]
    agent = agent_of(tmp_path, False, here, prompts)
    with states_of() as states, lora_server(MODEL) as (turns, _):
        real = client(states)
        right = [list(s) for s in real.of(prompts)]
        real.close()

        def script(path: str, body: Any) -> Answer:
            if path == "/v1/models":
                return models("m")
            if body["input"][0] == list(here.chat.first(*prompts[0])):
                return Answer({"data": [{"embedding": right[0]}]})
            return Answer({"error": "out of memory"}, 500)

        with serve(script) as half:
            how: dict[str, Any] = {"capacity": 2, "extra": None}
            there = StatesPolicy(Endpoint((turns,)), "m", client(half.url), **how)
            played = play(there, world, agent, tasks, [0, 0], temperature=0.0, max_turns=1)
            there.close()
    assert played[0].failure is None
    assert played[1].failure is not None and "out of memory" in played[1].failure.error


def test_the_class_says_what_the_settings_make() -> None:
    assert OpenAIPolicy.under({"states_url": ()}) is OpenAIPolicy
    assert issubclass(OpenAIPolicy.under({"states_url": ("http://x",)}), ShowsState)
    assert LocalPolicy.under({}) is LocalPolicy and issubclass(LocalPolicy, HoldsModel)
