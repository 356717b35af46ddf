"""TextArena's frozen lakes: bounds, splits, what a line says, errors, labels, a worker."""

from __future__ import annotations

from statistics import mean

import pytest
from playing import acts, play, scores
from sandboxes import chosen
from shared import needs

from trace_bench.core.chat import make_call
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Policy, RunContext, perform
from trace_bench.core.types import AgentSpec, StopReason, Task
from trace_bench.envs.textarena import SKILL, TextArenaSuite
from trace_bench.methods.looking.capabilities import Label
from trace_bench.methods.looking.evidence import heard_of
from trace_bench.methods.looking.rules import label
from trace_bench.policies.scripted import IdlePolicy, RandomPolicy, ReferencePolicy

pytestmark = [needs("textarena", "the extra textarena is not installed"), pytest.mark.worlds]


@pytest.fixture(scope="module")
def suite() -> TextArenaSuite:
    return TextArenaSuite()


def opening(suite: TextArenaSuite, task: Task) -> str:
    return str(suite.make().reset(task).messages[-1]["content"])


def test_floors_and_ceiling() -> None:
    suite = TextArenaSuite(7, 14)
    tasks = suite.tasks("dev")[::2]

    def success(policy: Policy) -> float:
        return mean(score.success for score in scores(policy, suite, tasks, max_turns=20))

    assert success(ReferencePolicy(suite)) == 1.0
    assert success(RandomPolicy(calls=20)) <= 0.02 and success(IdlePolicy()) == 0.0


def test_no_split_has_a_lake_of_another(suite: TextArenaSuite) -> None:
    lakes = {s: [opening(suite, task) for task in suite.tasks(s)] for s in suite.sizes}
    assert {split: len(found) for split, found in lakes.items()} == suite.sizes
    for split, found in lakes.items():
        assert len(set(found)) == len(found) or split == "demo"
        assert not set(found) & {lake for s in suite.sizes if s != split for lake in lakes[s]}
    made = {opening(suite, suite.synthetic(SKILL, seed)) for seed in range(300)}
    assert not made & {lake for split in ("demo", "dev", "test") for lake in lakes[split]}


def test_a_line_shows_the_board_and_the_four_sides(suite: TextArenaSuite) -> None:
    task = suite.tasks("dev")[0]
    env = suite.make()
    steps = perform(env, task, suite.reference(task))
    texts = [str(step.messages[-1]["content"]) for step in steps]
    assert not any("\n" in text for text in texts)
    sides, _, board = texts[0].partition(". ")
    rows = [row.split() for row in board.split(" / ")]
    assert [len(row) for row in rows] == [5] * 5 and sum(row.count("H") for row in rows) == 6
    assert rows[0][0] == "P" and rows[4][4] == "G"
    names = {".": "ice", "H": "hole"}
    right, down = names[rows[0][1]], names[rows[1][0]]
    assert sides == f"up wall, down {down}, left wall, right {right}"
    assert texts[-1] == "Congratulations" and steps[-1].stop is StopReason.DONE
    assert [tool["function"]["name"] for tool in steps[0].tools] == ["up", "down", "left", "right"]


def test_two_moves_into_the_wall_end_the_game_as_the_package_says(suite: TextArenaSuite) -> None:
    steps = perform(suite.make(), suite.tasks("dev")[0], acts("up up"))
    first, second = (str(step.messages[-1]["content"]) for step in steps[1:])
    assert first == "ValueError: You tried to move up but hit a wall" and not steps[1].done
    assert second == "ValueError: Invalid Move: You tried to move up but hit a wall"
    assert steps[2].done and steps[2].score is not None and steps[2].score.similarity == 0


def test_a_hole_ends_the_game_and_the_way_behind_is_a_milestone(suite: TextArenaSuite) -> None:
    task = next(t for t in suite.tasks("dev") if ", down hole, " in opening(suite, t))
    last = perform(suite.make(), task, acts("down"))[-1]
    assert last.messages[-1]["content"] == "You fell into a hole" and last.done
    assert last.score is not None and (last.score.similarity, last.score.success) == (0.0, False)
    assert [m.similarity for m in last.score.milestones] == [0.25, 0.125]


def test_what_cannot_be_read_costs_a_call() -> None:
    suite = TextArenaSuite(steps=8)
    task = suite.tasks("dev")[0]
    odd = [make_call("jump"), make_call("up", far=2)]
    steps = perform(suite.make(), task, [*odd, *acts("up jump jump jump jump jump")])
    texts = [str(step.messages[-1]["content"]) for step in steps[1:]]
    assert texts[0] == texts[1] == "ValueError: allowed, without arguments: up, down, left, right"
    assert steps[-1].done and steps[-1].stop is StopReason.TURN_LIMIT
    calls = [call for move in acts("right left " * 5) for call in move["tool_calls"]]
    env = suite.make()
    env.reset(next(t for t in suite.tasks("dev") if "right ice" in opening(suite, t)))
    step = env.step({"role": "assistant", "content": "", "tool_calls": calls})
    assert step.messages[-1]["content"] == "ValueError: the game is over"


def test_who_does_not_walk_the_way_to_its_end_lacks_the_capability(suite: TextArenaSuite) -> None:
    task, policy = suite.tasks("dev")[0], ReferencePolicy(suite)
    right = list(suite.reference(task))
    cases = {Label.NA: right[:1], Label.LACKING: right[:-1], Label.PRESENT: right}
    for found, moves in cases.items():
        (played,) = play(policy, suite, AgentSpec("x"), [task], [0], max_turns=len(moves))
        assert label(heard_of(suite, task), played)[SKILL] is found
    drawn = [suite.synthetic(SKILL, n) for n in range(200)]
    contrast = [task for task in drawn if task.data["contrast"]]
    assert 20 <= len(contrast) <= 60
    assert not any("H" in opening(suite, task) for task in contrast)
    assert [suite.task(task.id) for task in drawn] == drawn


def test_bad_settings_are_refused_with_what_is_allowed(suite: TextArenaSuite) -> None:
    for holes in (1, 9):
        with pytest.raises(UserError, match=rf"env.size=5 env.holes={holes}: .*Change `env.size`"):
            TextArenaSuite(holes=holes)
    for size, steps in ((12, 20), (5, 101), (5, 0)):
        with pytest.raises(UserError, match=rf"env.steps={steps} is not allowed; .*`env.steps`"):
            TextArenaSuite(size=size, steps=steps)
    with pytest.raises(UserError, match="unknown split 'all'; allowed: demo, train, dev, test"):
        suite.tasks("all")
    few = TextArenaSuite(size=4, holes=3)
    with pytest.raises(UserError, match=r"env.size=4 env.holes=3: its openings are too few"):
        few.tasks("train")
    own: TextArenaSuite = chosen("textarena", size=6).make(RunContext())
    assert (own.variant, suite.variant) == ("6x6-6", "default")
