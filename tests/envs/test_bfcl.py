"""BFCL-V4 multi-turn: bounds, splits, the package's own verdicts, known bad entries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed (docs/bfcl.md says how)")
pytest.importorskip("mpmath", reason="mpmath is not installed (docs/bfcl.md says how)")

from bfcl_known_bad import find
from bfcl_play import KINDS, changed, messages, ours, reference, theirs
from playing import play, scores
from sandboxes import chosen, in_process, in_sandbox

from trace_bench.__main__ import main
from trace_bench.core.chat import call_json, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import perform
from trace_bench.core.types import AgentSpec, Message, StopReason, Task, to_json
from trace_bench.envs.bfcl import world as bfcl_data
from trace_bench.envs.bfcl.suite import SPLITS, BfclSuite
from trace_bench.envs.bfcl.world import CATEGORIES, BfclCall, BfclWorld, known_bad, load
from trace_bench.play.contract import check
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy, ReferencePolicy
from trace_bench.sandbox.engine import Sandbox
from trace_bench.settings.compose import compose

pytestmark = pytest.mark.worlds


@pytest.fixture(scope="module")
def suite() -> BfclSuite:
    return in_process("bfcl", "all")  # type: ignore[no-any-return]


def task_of(suite: BfclSuite, name: str) -> Task:
    return suite.task(f"bfcl/all/leaderboard/{name}")


def solved(suite: Any, policy: Any, tasks: Sequence[Task]) -> tuple[int, float]:
    """(episodes solved, mean similarity)"""
    found = scores(policy, suite, tasks, max_turns=168)
    return sum(s.success for s in found), sum(s.similarity for s in found) / len(found)


def call(name: Any, arguments: Any = "{}") -> Message:
    return text_message("", [call_json("c", name, arguments)])


# -- bounds, splits, settings ---------------------------------------------------------------------


def test_floor_and_ceiling_on_the_development_split(suite: BfclSuite) -> None:
    tasks = suite.tasks("dev")[::3]
    assert solved(suite, ReferencePolicy(suite), tasks) == (27, 1.0)
    assert solved(suite, IdlePolicy(), tasks) == (0, 0.0)
    assert solved(suite, RandomPolicy(), tasks)[0] == 0


def test_splits_share_no_scenario(suite: BfclSuite) -> None:
    sizes = [len(suite.tasks(name)) for name in SPLITS]
    assert sizes == [320, 80, 400, 800]
    found = [{t.data["record"]["scenario"] for t in suite.tasks(name)} for name in SPLITS]
    assert [len(s) for s in found] == [80, 20, 100, 200]
    assert not (found[0] & found[1] or found[0] & found[2] or found[1] & found[2])
    place = {n: split for split, s in zip(SPLITS[:3], found, strict=False) for n in s}
    main_class = Counter((place[n], n // 50) for n in range(200))
    for k in range(4):
        train, dev, test = (main_class[name, k] for name in SPLITS[:3])
        assert 19 <= train <= 21 and dev == 5 and 24 <= test <= 26
    # Scenarios that share their whole initial state, or their whole answer, are not divided.
    for key in ("config", "answers"):
        together: dict[str, set[str]] = {}
        for entry in load(["base"]).entries:
            text = json.dumps(entry[key], sort_keys=True)
            together.setdefault(text, set()).add(place[entry["scenario"]])
        assert len(together) < 200 and all(len(where) == 1 for where in together.values())


def test_what_was_measured_with_is_reported(suite: BfclSuite) -> None:
    about = {"data": "bfcl-eval 2026.3.23, entries 8a809e8fe5aa", "known_bad": "15 kept"}
    assert suite.about() == about


def test_bad_settings_are_refused_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suite: BfclSuite
) -> None:
    with pytest.raises(UserError, match="unknown suite of bfcl 'live'; allowed: all, base, miss"):
        in_process("bfcl", "live")
    with pytest.raises(UserError, match="unknown split 'all'; allowed: train, dev, test, leader"):
        suite.tasks("all")
    assert main(["method=grpo", "env=bfcl", "evaluation.split=leaderboard"]) == 2
    said = capsys.readouterr().err
    assert "evaluation.split=leaderboard are in env.train_split=train too" in said
    settings = compose(["method=base", "env=bfcl", "env.category=miss_func"])
    assert (settings.env.suite, settings.policy.max_turns) == ("miss_func", 168)
    monkeypatch.setattr(bfcl_data, "VERSION", "2025.1.1")
    with pytest.raises(UserError, match=r"was measured with bfcl-eval 2025\.1\.1, and 2026\.3\.23"):
        in_process("bfcl", "all")


# -- the contract, here and in a process of its own -----------------------------------------------


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_contract_holds(category: str) -> None:
    one = in_process("bfcl", category)
    report = check(one, one.tasks("leaderboard")[::134])
    assert report.ok, str(report)
    assert (report.reference, report.idle) == (1.0, 0.0)


def test_a_process_of_its_own_gives_the_same(suite: BfclSuite) -> None:
    sandboxed = in_sandbox(chosen("bfcl", "all"), Sandbox("process", run="test-bfcl"))
    try:
        tasks, agent = sandboxed.tasks("leaderboard")[::80], AgentSpec("x")
        assert [t.id for t in tasks] == [t.id for t in suite.tasks("leaderboard")[::80]]
        both = [(ReferencePolicy(s), s) for s in (suite, sandboxed)]
        runs = [play(*acting, agent, tasks, range(len(tasks)), max_turns=168) for acting in both]
        assert to_json(runs[0]) == to_json(runs[1])
        assert all(t.score is not None and t.score.success for t in runs[1])
    finally:
        sandboxed.close()


def test_live_episodes_share_nothing_and_leave_nothing_behind(suite: BfclSuite) -> None:
    """The package's executor keeps the instances of every episode in its module's globals."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    before = set(vars(multi_turn_utils))
    tasks = [task_of(suite, name) for name in ("base_1", "long_context_1", "miss_func_1")] * 20
    live = [suite.make() for _ in tasks]
    for env, task in zip(live, tasks, strict=True):
        env.reset(task)
    actions = [list(suite.reference(task)) for task in tasks]
    last: list[Any] = [None] * len(tasks)
    for turn in range(max(map(len, actions))):  # all of them side by side
        for n, env in enumerate(live):
            if turn < len(actions[n]):
                last[n] = env.step(actions[n][turn])
    assert all(step.done and step.score.success for step in last)
    assert set(vars(multi_turn_utils)) == before


# -- one episode ----------------------------------------------------------------------------------


def test_a_turn_lasts_until_the_agent_answers_without_a_call(suite: BfclSuite) -> None:
    task = task_of(suite, "base_0")
    env = suite.make()
    first = env.reset(task)
    assert [m["role"] for m in first.messages] == ["user"]
    names = [tool["function"]["name"] for tool in first.tools]
    assert {"cd", "sort", "post_tweet"} <= set(names) and len(names) == 32
    step = env.step(call("cd", {"folder": "document"}))
    assert [m["content"] for m in step.messages] == ['{"current_working_directory": "document"}']
    step = env.step(text_message("Done."))
    assert step.messages[0] == {"role": "user", "content": task.data["record"]["turns"][1]}


def test_withheld_tools_are_handed_over_in_the_users_text(suite: BfclSuite) -> None:
    task = task_of(suite, "miss_func_0")
    steps = perform(suite.make(), task, suite.reference(task))
    assert "sort" not in {tool["function"]["name"] for tool in steps[0].tools}
    texts = [m["content"] for step in steps for m in step.messages if m["role"] == "user"]
    more = "I have updated some more functions you can choose from. What about now?"
    assert texts[3].endswith(more)
    handed = json.loads(texts[3].split("\n")[0])
    assert handed["name"] == "sort" and handed["parameters"]["type"] == "object"


def test_a_turn_without_end_ends_the_episode_as_in_the_benchmark(suite: BfclSuite) -> None:
    task = task_of(suite, "base_0")
    steps = perform(suite.make(), task, [call("pwd")] * 30)
    assert len(steps) == 22 and steps[-1].stop is StopReason.TURN_LIMIT
    score = steps[-1].score
    assert score is not None and not score.success
    assert score.details["error"] == "multi_turn:force_terminated"


def test_an_episode_that_is_cut_off_is_scored_by_the_turns_it_had(suite: BfclSuite) -> None:
    task = task_of(suite, "base_0")
    env, actions = suite.make(), list(suite.reference(task))
    env.reset(task)
    for action in actions[:4]:  # the whole first turn of four
        env.step(action)
    score = env.score()
    assert (score.similarity, score.success) == (0.25, False)
    assert [m.hit for m in score.milestones] == [True, False, False, False]
    assert score.details["error"] == "multi_turn:force_terminated"
    for action in actions[4:-1]:
        env.step(action)
    assert env.score().success  # only the closing text was missing


def test_calls_where_none_is_due_count_for_nothing(suite: BfclSuite) -> None:
    task = task_of(suite, "miss_param_0")
    turns = reference(task.data["record"])
    idle = next(n for n, turn in enumerate(turns) if not turn)
    turns[idle] = [[BfclCall("posting_get_login_status")]]
    score = ours(suite.make(), task, messages(turns))
    assert score.success and score.similarity == 1.0 and not score.details["turns"]


def test_nothing_that_a_model_writes_is_run_as_a_program(suite: BfclSuite, tmp_path: Path) -> None:
    env = suite.make()
    env.reset(task_of(suite, "base_0"))
    mark = tmp_path / "mark"
    evil = f"open({str(mark)!r}, 'w').close()"
    for action in (
        call(f"__import__('os').system('touch {mark}')"),
        call("_load_scenario", {"scenario": {}}),
        call("__init__"),
        call("cd", {"folder": f"' + str({evil}) + '"}),
        call("cd", {f"folder={evil}, **dict": 1}),
        call("cd", f"{{'folder': {evil}}}"),
        call("popen", {}),
    ):
        content = env.step(action).messages[0]["content"]
        assert "rror" in content
    assert not mark.exists()
    env.step(call("mkdir", {"dir_name": "cd(x)"}))  # the package would rewrite this text
    assert "cd(x)" in env.step(call("ls")).messages[0]["content"]


def test_a_call_that_cannot_be_read_is_answered_and_not_judged(suite: BfclSuite) -> None:
    task = task_of(suite, "base_0")
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    bad = [
        call("cd", "{"), call("cd", "[1]"), call(None), call("cd", '{"folder": NaN}'),
        call("cd", {"folder": deep}), {"role": "assistant", "tool_calls": [3]},
    ]  # fmt: skip
    steps = perform(suite.make(), task, [*bad, *suite.reference(task)])
    for step in steps[1 : 1 + len(bad)]:
        assert step.messages[0]["content"].startswith("Error: ")
    assert steps[-1].score is not None and steps[-1].score.success


def test_sums_without_end_are_refused() -> None:
    """Each of these would compute for hours or fill the memory."""
    world = BfclWorld({"category": "base", "classes": ["MathAPI"], "config": {}})
    for wanted in (
        BfclCall("logarithm", {"value": 3, "base": 2, "precision": 10**9}),
        BfclCall("square_root", {"number": 2, "precision": 1e9}),
        BfclCall("power", {"base": 9, "exponent": 10**10}),
        BfclCall("round_number", {"number": 5, "decimal_places": -(10**10)}),
        BfclCall("logarithm", {"value": 3, "base": 2, "precision": "200000"}),
        BfclCall("logarithm", {"value": 3, "base": 2, "precision": " 3_000_000 "}),
    ):
        assert "must be between -1000 and 1000" in world.call(wanted)
    for wanted in (
        BfclCall("logarithm", {"value": "1e200000000", "base": 2, "precision": 5}),
        BfclCall("multiply", {"a": "xx", "b": 10**12}),
        BfclCall("multiply", {"a": [1], "b": 10**12}),
    ):
        assert "must be between" in world.call(wanted)
    small = world.call(BfclCall("power", {"base": 2, "exponent": 10}))
    assert json.loads(small) == {"result": 1024}


def test_folders_that_are_copied_into_themselves_do_not_grow_without_end() -> None:
    """Forty doublings would give a tree that no search comes to an end in."""
    folder = {"type": "directory", "contents": {"f": {"type": "file", "content": "x"}}}
    root = {"workspace": {"type": "directory", "contents": {"a": folder}}}
    config = {"GorillaFileSystem": {"root": root}}
    world = BfclWorld({"category": "base", "classes": ["GorillaFileSystem"], "config": config})
    answers = []
    for n in range(40):
        answers.append(world.call(BfclCall("cp", {"source": "a", "destination": f"b{n}"})))
        world.call(BfclCall("mv", {"source": f"b{n}", "destination": "a"}))
    assert "copied" in answers[5] and "more than 10000 files" in answers[-1]
    assert "matches" in world.call(BfclCall("find", {"path": ".", "name": "f"}))


def test_the_clock_changes_nothing() -> None:
    """A traveller's age is that on the day of the package's release, whatever the day."""
    for born, old_enough in {"2008-03-23": True, "2008-03-24": False}.items():
        world = BfclWorld({"category": "base", "classes": ["TravelAPI"], "config": {}})
        names = {"user_first_name": "Ann", "user_last_name": "Lee"}
        keys = dict.fromkeys(("client_id", "client_secret", "refresh_token"), "x")
        world.call(BfclCall("authenticate_travel", {**names, **keys, "grant_type": "read"}))
        traveller = {"first_name": "Ann", "last_name": "Lee", "passport_number": "US1"}
        call = BfclCall("verify_traveler_information", {**traveller, "date_of_birth": born})
        assert json.loads(world.call(call))["verification_status"] is old_enough


# -- the package's own verdict --------------------------------------------------------------------


def compare(suite: BfclSuite, tasks: Sequence[Task], kinds: list[list[str]]) -> Counter[str]:
    """Plays changed references in both ways and compares; how often each error came up."""
    found: Counter[str] = Counter()
    for number, task in enumerate(tasks):
        entry = task.data["record"]
        for kind in kinds[number % len(kinds)]:
            turns = changed(entry, kind, Random(f"{entry['id']} {kind}"))
            error = theirs(entry, turns, f"m{number}_{kind.replace(' ', '_')}")
            score = ours(suite.make(), task, messages(turns))
            what = f"{entry['id']}, {kind}"
            assert score.details["error"] == error, what
            assert score.success == (error is None), what
            found[error or "valid"] += 1
    return found


def test_a_sample_is_judged_as_by_the_package(suite: BfclSuite) -> None:
    found = compare(suite, suite.tasks("leaderboard")[::11], [[kind] for kind in KINDS])
    assert sum(found.values()) == 73 and len(found) >= 4, found


# -- known bad entries ----------------------------------------------------------------------------


def test_the_stored_reasons_are_found_again() -> None:
    listed = {4, 11, 143, 176, 187}
    entries = [e for e in load(CATEGORIES).entries if e["scenario"] in {*listed, 62, 75, 147}]
    stored = {k: v for k, v in known_bad().items() if int(k.rpartition("_")[2]) in listed}
    assert len(stored) == 13 and find(entries) == stored
