"""TRACE with every role played by a model over real HTTP, on the embedded world with the real tiny
agent: discover, label, generate, reject, repair, accept, calibrate, train, route."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from writer import BAD, FOUND, GOOD, Writer, block

from trace_bench.core.errors import UserError
from trace_bench.rehearse.scripted import Answer, Server, chat, serve
from trace_bench.runner.pipeline import run
from trace_bench.settings.compose import compose

KEY = "sk-planted-0987654321"
SMALL = [
    *("budget=192", "method.minimum_training=24", "method.synthetic_tasks=24"),
    *("method.calibration_groups=2", "method.calibration_group_size=3"),
    "method.bands=false",  # the tiny agent is not what is tested here
    *("checkpoints=[]", "evaluation.limit=8", "evaluation.split=dev"),
    "evaluation.yardsticks=false",
    *("policy.max_turns=8", "policy.max_tokens=48"),
    *("sandbox=process", "sandbox.allow_untrusted=true"),
    *("sandbox.deadline=10", "sandbox.retries=0"),
]


def settings(server: Server, folder: Path, *more: str) -> Any:
    roles = [f"llm.{role}.model={role}" for role in ("analyst", "generator")]
    roles += [f"llm.{role}.deadline=30" for role in ("analyst", "generator")]
    where = ["llm=endpoint", f"llm.shared.base_url={server.url}", "llm.shared.model=any"]
    return compose([*SMALL, *where, *roles, f"run_dir={folder}", *more])


def report(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "capabilities.json").read_text()))


def verdicts(folder: Path, name: str) -> list[dict[str, Any]]:
    files = sorted((folder / "generated" / name).glob("*.json"))
    return [json.loads(f.read_text()) for f in files]


@pytest.mark.slow
def test_the_whole_road_with_faults_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labelling run 3 is never usable, run 5 only after a repair; requests meet 429 and resets; the
    environments are bad in several ways before they are good."""
    seen: dict[str, int] = {}

    def fault(role: str, body: dict[str, Any]) -> Answer | None:
        text = json.dumps(body["messages"])
        seen[role] = seen.get(role, 0) + 1
        if seen[role] == 1:
            return Answer({}, 429)
        if seen[role] == 2:
            return Answer(reset=True)
        if role == "analyst" and "You label" in text:
            if body["seed"] in wrong:
                return chat('{"labels": {"T001": {"restores_service": "MAYBE"}}}')
            if len(wrong) < 3 and len(body["messages"]) < 4:
                # The first run that comes gets nonsense three times.
                wrong.add(body["seed"])
                return chat("I would rather not.")
            if len(body["messages"]) > 2 and len(wrong) < 3:
                wrong.add(body["seed"])
                return chat("{not json")
        return None

    wrong: set[int] = set()
    modules = {
        FOUND[0]: ["I refuse.", *map(block, (BAD["file"], BAD["loop"], BAD["cheat"], GOOD))],
        FOUND[1]: [*map(block, (BAD["import_error"], BAD["tires"], GOOD))],
    }
    writer = Writer(modules, fault)
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with serve(writer) as server:
        key = "llm.shared.key_env=PLANTED_KEY"
        made = settings(server, tmp_path / "r", key)
        assert run(made) == 0
        asked = len(server.requests)
        assert all(h.get("Authorization") == f"Bearer {KEY}" for h in server.headers)
        assert run(made) == 0
        assert len(server.requests) == asked, "a finished run asks nobody"
    folder = tmp_path / "r"
    said = report(folder)
    assert [c["name"] for c in said["candidates"] if c["selected"]] == list(FOUND[:2])
    assert said["thresholds"]["runs"] >= 8
    assert [v["accepted"] for v in verdicts(folder, FOUND[0])] == [False, False, False, True]
    why = [v["problems"][0] for v in verdicts(folder, FOUND[1])[:2]]
    assert "cannot be loaded: the environment's source is broken: RuntimeError" in why[0]
    assert "AssertionError" in why[1]
    assert (folder / "generated" / FOUND[0] / "3.py").read_text() == GOOD
    # The tiny agent never solves these environments, so there is nothing to learn from.
    assert said["training"] == [] and "no adapter was trained" in said["outcome"]["reason"]
    ledger = [json.loads(s) for s in (folder / "ledger.jsonl").read_text().splitlines()]
    purposes = {e["purpose"] for e in ledger}
    assert {"analysis", "calibration", "training"} == purposes and len(ledger) <= 192
    summary = json.loads((folder / "summary.json").read_text())
    usage = summary["usage"]
    assert usage["analyst"]["requests"] > 10 and usage["generator"]["prompt_tokens"] > 0
    out = capsys.readouterr().out
    assert f"generator: {usage['generator']['requests']} requests" in out
    for file in folder.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


TWICE = {name: [block(BAD["cheat"]), block(GOOD)] for name in FOUND[:2]}
QUICK = ("llm.generator.retries=1",)
BRIEF = ("policy.max_turns=2", "policy.max_tokens=16")


@pytest.mark.slow
def test_a_role_out_of_reach_ends_nothing_that_goes_on_later(tmp_path: Path) -> None:
    """No capability is given up because the generator's server is down, nor because the analyst
    made no sense: the same command goes on, and ends as a run in which nothing was down."""
    with serve(lambda path, body: chat("I cannot.")) as server, pytest.raises(UserError):
        run(settings(server, tmp_path / "r", *QUICK))
    whole = tmp_path / "whole"
    with serve(Writer(TWICE)) as server:
        run(settings(server, whole, *QUICK))
    left = {**TWICE, FOUND[0]: TWICE[FOUND[0]][1:]}

    def down(role: str, body: dict[str, Any]) -> Answer | None:
        again = "was not accepted" in body["messages"][-1]["content"]
        return Answer({}, 500) if role == "generator" and again else None

    with (
        serve(Writer(TWICE, down)) as server,
        pytest.raises(UserError, match=r"the generator does not answer.*The same command goes on"),
    ):
        run(settings(server, tmp_path / "r", *QUICK))
    assert not (tmp_path / "r" / "summary.json").exists()
    with serve(Writer(left)) as server:
        run(settings(server, tmp_path / "r", *QUICK))
    names = ("agent.json", "ledger.jsonl")
    one, two = ([(folder / n).read_text() for n in names] for folder in (whole, tmp_path / "r"))
    assert one == [text.replace(f"{tmp_path / 'r'}", f"{whole}") for text in two]


USELESS = [
    (False, "I cannot.", "proposed no capabilities .*no JSON object"),
    (True, "{}", "only 0 of 10 labelling runs can be used, and 5 are needed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "text", "words"), USELESS)
def test_a_useless_analyst_ends_a_run(tmp_path: Path, labels: bool, text: str, words: str) -> None:
    def fault(role: str, body: dict[str, Any]) -> Answer | None:
        return chat(text) if ("You label" in body["messages"][0]["content"]) is labels else None

    with serve(Writer({}, fault)) as server, pytest.raises(UserError, match=words):
        run(settings(server, tmp_path / "r", *BRIEF))


@pytest.mark.slow
def test_calibration_outside_the_bands_goes_back_and_the_base_stays(tmp_path: Path) -> None:
    modules = {name: [block(GOOD)] for name in FOUND}
    with serve(Writer(modules)) as server:
        assert run(settings(server, tmp_path / "r", "method.bands=true")) == 0
        talks = [b["messages"] for b in server.bodies() if b["model"] == "generator"]
    first, _ = verdicts(tmp_path / "r", FOUND[0])
    assert "mean reward" in first["problems"][0] and first["calibration"]["rollouts"] == 6
    told = [m["content"] for talk in talks for m in talk if "was not accepted" in m["content"]]
    assert told and "mean reward" in told[0]
    outcome = report(tmp_path / "r")["outcome"]
    assert outcome["trained"] == [] and "no environment" in outcome["reason"]


def gepa(server: Server, folder: Path, *more: str) -> Any:
    small = ["method=gepa", "budget=72", "method.minibatch=4", "method.validation=8"]
    small += ["evaluation.limit=2", "evaluation.split=dev", "checkpoints=[]"]
    role = ["llm.reflector.by=endpoint", "llm.shared.model=reflector"]
    role += [f"llm.shared.base_url={server.url}"]
    return compose([*small, *role, f"run_dir={folder}", *more])


@pytest.mark.slow
def test_gepa_with_a_model_as_its_reflector(tmp_path: Path) -> None:
    """Its proposals come over HTTP, bad ones are repaired, and nothing is asked twice."""

    def fault(role: str, body: dict[str, Any]) -> Answer | None:
        return chat("no block") if writer.asked["reflector"] == 1 else None

    writer = Writer({}, fault)
    with serve(writer) as server:
        made = gepa(server, tmp_path / "r")
        assert run(made) == 0
        asked = len(server.requests)
        before = (tmp_path / "r" / "gepa.json").read_bytes()
        for name in ("summary.json", "gepa.json"):
            (tmp_path / "r" / name).unlink()
        assert run(made) == 0
        assert len(server.requests) == asked
    assert (tmp_path / "r" / "gepa.json").read_bytes() == before
    told = json.loads(before)
    assert told["proposals"] >= 2 and asked == told["proposals"] + 1
    body = server.bodies()[0]["messages"]
    assert "Present instructions:\n(none)" in body[1]["content"] and "user: " in body[1]["content"]
    prompts = [line for c in told["candidates"] for line in c["prompt"]]
    assert all(line.startswith("Line ") for line in prompts)
    ledger = (tmp_path / "r" / "ledger.jsonl").read_text().splitlines()
    assert len(ledger) <= 72


def test_gepa_stops_when_its_reflector_fails_again_and_again(tmp_path: Path) -> None:
    with serve(lambda path, body: chat("I refuse.")) as server:
        failing = gepa(server, tmp_path / "r", *BRIEF)
        with pytest.raises(UserError, match=r"\d proposals failed one after .*`llm.reflector`"):
            run(failing)
