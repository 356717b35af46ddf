"""Recorded dialogues: the user verbatim, tools replayed, refused or simulated, a checklist as the
score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recordings import PHONE, follow, recorded, suite, write

from trace_bench.__main__ import main
from trace_bench.checklists.talk import ToolCall
from trace_bench.core.chat import make_call, make_tool
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.roles import RoleSettings
from trace_bench.core.types import Message
from trace_bench.envs.recorded.data import read_record
from trace_bench.envs.recorded.tools import Behind, Rates, altered, fault_of
from trace_bench.llm.client import Endpoint
from trace_bench.llm.roles import Role, Roles
from trace_bench.play.contract import check
from trace_bench.rehearse.scripted import Answer, Server, chat, serve
from trace_bench.sandbox.choose import Processes
from trace_bench.sandbox.engine import Sandbox
from trace_bench.sandbox.pool import Pool
from trace_bench.sandbox.suite import SandboxedSuite
from trace_bench.settings.registry import find
from trace_bench.settings.schema import PartSettings


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return recorded()


@pytest.fixture(scope="module")
def folder(records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rec") / "phone", records, dev=4, test=2)


WEATHER = make_tool("weather", "The weather.", city="string", days="integer?")
PARAMETERS = WEATHER["function"]["parameters"]
PARAMETERS["properties"]["unit"] = {"enum": ["C", "F"]}


def talk(*answers: str) -> dict[str, Any]:
    """Two turns; in the first the same call is made once for each answer."""
    messages: list[Message] = [{"role": "user", "content": "Weather in Bonn?"}]
    for answer in answers:
        messages += [make_call("weather", city="Bonn"), {"role": "tool", "content": answer}]
    messages += [{"role": "assistant", "content": "Sun."}, {"role": "user", "content": "Thanks!"},
                 {"role": "assistant", "content": "Bye."}]  # fmt: skip
    return {"uuid": "w", "messages": messages, "tools": [WEATHER]}


def test_references_earn_the_full_score(folder: Path) -> None:
    for tools in ("replay", "simulate", "real"):
        made = suite(folder, tools=tools)
        for task in made.tasks("train"):
            env = made.make()
            env.reset(task)
            score = follow(env, made.reference(task)).score
            assert score is not None and score.success and score.similarity == 1.0, task.id
            assert all(check.step is not None for check in score.checks)
    report = check(made, made.tasks("dev"))
    assert report.ok, str(report)


def test_the_registry_and_a_worker_process_make_the_same_suite(folder: Path) -> None:
    options = {"folder": str(folder), "tools": "real"}
    part = find("env", PartSettings("recorded", options=options))
    inner = part.make(RunContext())
    worker = {"factory": part.factory.text, "options": options, "asks_user": False}
    engine = Processes(Sandbox("process"), "")
    pool = Pool(lambda: engine.start(worker), Sandbox("process"))
    hosted = SandboxedSuite(inner, pool)
    try:
        task = hosted.tasks("test")[0]
        env = hosted.make()
        env.reset(task)
        step = follow(env, hosted.reference(task))  # type: ignore[arg-type, attr-defined]
        assert step.score is not None and step.score.success
        assert step.score.checks and hosted.checklist(task)  # type: ignore[attr-defined]
        assert hosted.lender("test") is None
    finally:
        pool.close()


@pytest.mark.docker
def test_recordings_are_played_in_a_container(folder: Path, tmp_path: Path) -> None:
    """With the phone world behind them, which the image holds."""
    given = ["method=base", "policy=reference", "env=recorded", f"env.folder={folder}"]
    given += ["env.tools=real", "evaluation.split=dev", "sandbox=docker", "checkpoints=[]"]
    assert main([*given, f"run_dir={tmp_path / 'run'}"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["score"]["success"] == 1.0


def test_the_user_goes_on_only_if_the_required_items_are_satisfied(tmp_path: Path) -> None:
    made = suite(write(tmp_path / "w", [talk('"sun"')]), tools="replay")
    task = made.tasks("train")[0]
    env = made.make()
    env.reset(task)
    step = env.step({"role": "assistant", "content": "Sun."})
    assert step.done and step.score is not None and not step.score.success
    assert step.score.similarity == 0.0  # the reply counts only after the call
    env.reset(task)
    follow(env, [make_call("weather", city="Bonn")])
    assert env.score().similarity == 0.25  # cut off in the middle: one of two items of two turns
    step = env.step({"role": "assistant", "content": "Rain."})
    assert step.messages == ({"role": "user", "content": "Thanks!"},)
    step = env.step({"role": "assistant", "content": "Bye."})
    assert step.done and step.score is not None and step.score.similarity == 0.75
    places = [m.place for m in step.score.milestones]
    assert places == [1, None, 5]  # of the calling message, nowhere, of the last one


def test_calls_are_replayed_refused_or_not_answered(tmp_path: Path) -> None:
    made = suite(write(tmp_path / "w", [talk('"sun"', '"rain"')]), tools="replay")
    env = made.make()
    env.reset(made.tasks("train")[0])

    def said(**arguments: Any) -> str:
        return str(env.step(make_call("weather", **arguments)).messages[0]["content"])

    assert [said(city="Bonn") for _ in range(3)] == ['"sun"', '"rain"', '"rain"']
    assert json.loads(said(city="Rome")) == {"error": "ToolError: this call has no recorded answer"}
    for arguments, why in (
        ({}, "the arguments lack 'city'"),
        ({"city": 3}, "city must be string"),
        ({"city": "a", "days": True}, "days must be integer"),
        ({"city": "a", "unit": "K"}, "unit must be one of 'C', 'F'"),
        ({"city": "a", "zip": 1}, "the arguments have no 'zip'; allowed: city, days, unit"),
    ):
        assert json.loads(said(**arguments))["error"] == f"ToolError: {why}"
    other = env.step(make_call("wether", city="Bonn")).messages[0]["content"]
    assert "no tool 'wether'" in other
    assert fault_of({"days": 3.0, "city": ""}, PARAMETERS) is None
    details = env.score().details["calls"]
    assert details == {"replayed": 3, "refused": 6, "simulated": 0, "real": 0}


def test_the_real_environment_behind_has_set_errors() -> None:
    """A task that begins with wifi off: a search fails until it is on."""
    task = PHONE.task("toolsandbox/embedded/train/0000")
    assert task.data["shape"] == "then_units_stock_off"
    search = next(a for a in task.data["reference"] if a.get("call") == "search_stock")
    asked = ToolCall("search_stock", search["arguments"])
    wifi = ToolCall("set_wifi_status", {"on": True})

    def answers(**rates: float) -> list[str]:
        behind = Behind(PHONE, task, Rates(**rates), seed=1)
        out = [behind.as_shown(call, behind.answer(call)) for call in (asked, wifi, asked, asked)]
        behind.close()
        return [out[0], out[2], out[3]]

    off, price, again = answers()
    assert off == "ConnectionError: Wifi is off" and "204.97" in price and again == price
    assert answers(stale=1.0) == [off] * 3
    assert answers(wrong=1.0) == [altered(a, 0) for a in (off, price, price)]
    assert answers(inconsistent=1.0) == [off, altered(price, 1), altered(price, 2)]
    assert answers(wrong=0.5) == answers(wrong=0.5)
    assert altered("true", 0) == "false" and altered("[1, 2]", 0) == "[2, 2]"
    assert altered('"ab"', 0) == '"ba"' and altered('{"a": 1}', 1) == '{"a": 3}'


# -- a model that simulates ------------------------------------------------------------------------


def roles(server: Server, path: Path) -> Roles:
    endpoint = Endpoint((server.url,), retries=0, pause=0.01)
    how = RoleSettings(model="s", temperature=0.5, seed=1, max_tokens=500, context=8000, tries=2)
    role = Role(endpoint, how)
    return Roles({"simulator": role}, path / "llm.jsonl")


def forecast(path: str, body: dict[str, Any]) -> Answer:
    """A simulator that counts: its answers differ from call to call."""
    forecast.calls += 1  # type: ignore[attr-defined]
    result = {"temperature": forecast.calls}  # type: ignore[attr-defined]
    return chat(json.dumps({"analysis": "warm", "execution_result": result}))


def test_a_simulated_answer_is_kept_and_replayed_on_resume(tmp_path: Path) -> None:
    where = write(tmp_path / "w", [talk('"sun"')])
    forecast.calls = 0  # type: ignore[attr-defined]

    def play(asked: Roles) -> list[str]:
        made = suite(where, RunContext(simulator=asked.ask))
        assert made.asks_user() and made.about()["simulator"].startswith("llm, prompt")
        env = made.make()
        env.reset(made.tasks("train")[0])
        calls = [make_call("weather", city=city) for city in ("Rome", "Bonn", "Oslo", "Rome")]
        return [str(env.step(call).messages[0]["content"]) for call in calls]

    with serve(forecast) as server:
        first = play(roles(server, tmp_path))
        assert first[1] == '"sun"' and first[0] == first[3] != first[2]
        assert len(server.bodies()) == 2
        shown = server.bodies()[1]["messages"][1]["content"]
        assert '"recorded"' in shown and '"this session"' in shown and "Rome" in shown
        resumed = roles(server, tmp_path)
        assert play(resumed) == first and len(server.bodies()) == 2
        assert resumed.usage()["simulator"]["requests"] == 2


@pytest.mark.parametrize(
    "answer",
    ["sun", '{"analysis": "x"}', "[" * 9000, json.dumps({"execution_result": "x" * 30_000}),
     Answer({"error": "down"}, status=500)],
)  # fmt: skip
def test_a_failed_simulation_voids_the_sample(answer: str | Answer, tmp_path: Path) -> None:
    said = chat(answer) if isinstance(answer, str) else answer
    with serve(lambda path, body: said) as server:
        made = suite(write(tmp_path / "w", [talk('"sun"')]),
                     RunContext(simulator=roles(server, tmp_path).ask))  # fmt: skip
        env = made.make()
        env.reset(made.tasks("train")[0])
        with pytest.raises(EpisodeError) as caught:
            env.step(make_call("weather", city="Rome"))
        assert caught.value.boundary == "simulator"


def test_a_request_that_failed_is_made_again_in_the_next_episode(tmp_path: Path) -> None:
    """A server that was down for a moment is no answer to keep."""
    said = [Answer({"error": "down"}, status=500), chat('{"execution_result": "snow"}')]
    where = write(tmp_path / "w", [talk('"sun"')])
    call = make_call("weather", city="Rome")
    with serve(lambda path, body: said.pop(0)) as server:
        for first in (True, False):  # then the run is resumed
            made = suite(where, RunContext(simulator=roles(server, tmp_path).ask))
            env = made.make()
            env.reset(made.tasks("train")[0])
            if first:
                with pytest.raises(EpisodeError, match="HTTP 500"):
                    env.step(call)
                env.reset(made.tasks("train")[0])
            assert env.step(call).messages[0]["content"] == "snow" and not said


# -- files -----------------------------------------------------------------------------------------


def test_broken_files_are_named(tmp_path: Path) -> None:
    good = talk('"sun"')
    odd = {"function": {"name": "a", "parameters": {"required": 3}}}
    for broken, message in (
        ("{", r"train\.jsonl, line 1: it is no JSON"),
        (json.dumps({**good, "messages": 3}), "line 1: `messages` is 3; allowed: a list"),
        (json.dumps({**good, "messages": good["messages"][:1]}), "each answered by the agent"),
        (json.dumps({**good, "uuid": None}), "no `uuid`"),
        (json.dumps({**good, "tools": [{}]}), r"`tools\[0\]\.function` is missing"),
        (json.dumps({**good, "checklists": [[[]]]}), "variant 0, turn 0: there is no item"),
        (json.dumps(good) + "\n" + json.dumps(good), "line 2: line 1 has the id 'w' already"),
        (json.dumps({**good, "tools": [odd]}), r"parameters\.required` is 3; allowed: a list"),
    ):
        where = tmp_path / "broken"
        where.mkdir(exist_ok=True)
        (where / "train.jsonl").write_text(broken + "\n")
        with pytest.raises(UserError, match=message):
            suite(where, tools="replay").tasks("train")
    with pytest.raises(UserError, match=r"no recorded dialogues.*env\.folder"):
        suite(tmp_path / "none").splits()
    with pytest.raises(UserError, match=r"needs env\.folder"):
        find("env", PartSettings("recorded")).make(RunContext())


@pytest.mark.parametrize("arguments", ['{"city": ' + "[" * 900 + "]" * 900 + "}", '{"city": NaN}'])
def test_arguments_beyond_the_limits_are_unreadable(arguments: str, tmp_path: Path) -> None:
    """In a file, and in what the agent says: the episode goes on."""
    record = talk('"sun"')
    call = make_call("weather")
    call["tool_calls"][0]["function"]["arguments"] = arguments
    record["messages"][1:1] = [call, {"role": "tool", "content": "1"}]
    made = suite(write(tmp_path / "w", [record]), RunContext(seed=1), tools="replay", alarms=0.5)
    task = made.tasks("train")[0]
    assert len(made.checklist(task)[0]) == 2  # of the other call and the reply
    env = made.make()
    env.reset(task)
    assert "ToolError" in env.step(call).messages[0]["content"]
    assert not env.step(make_call("weather", city="Bonn")).done


def test_a_checklist_without_conditions_needs_a_model(tmp_path: Path) -> None:
    record = read_record(talk('"sun"'), "x")
    record["checklists"][0][0][0]["extra_info"] = {}
    where = write(tmp_path / "w", [record])
    with pytest.raises(UserError, match=r"item C0 has no condition.*llm\.judge\.by=endpoint"):
        suite(where, tools="replay").tasks("train")
    judged = RunContext(judge=lambda role, messages, schema=None: "")
    assert suite(where, judged, tools="replay").tasks("train")
