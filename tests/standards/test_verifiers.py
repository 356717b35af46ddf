"""env=verifiers with tasksets of the real package, in a worker with its interpreter."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from standard_servers import HERE, python_of, suite_of

import trace_bench
from trace_bench.core.chat import make_call, text_message
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import performed
from trace_bench.core.types import StopReason
from trace_bench.play.contract import check
from trace_bench.play.suites import in_both

pytestmark = pytest.mark.standards
SPLITS = {"train": {"split": "train"}, "test": {"split": "test"}}
DONE = text_message("I am done.")
SHOP = {"taskset": "vf_shop", "deadline": 10.0}


def buy(thing: str) -> Any:
    return make_call("buy", thing=thing)


@pytest.fixture(scope="module")
def shop() -> Iterator[Any]:
    """One worker for all, since the package takes ten seconds to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        suite = suite_of("verifiers", splits=SPLITS, steps=6, **SHOP)
        yield suite
        suite.close()


def test_an_episode_has_the_task_the_tools_and_the_rewards(shop: Any) -> None:
    assert {s: len(shop.tasks(s)) for s in shop.splits()} == {"train": 3, "test": 2}
    task = shop.tasks("train")[1]
    assert task.id == "verifiers/vf_shop/train/0001"
    start, seen, bought, end = performed(shop, task, [make_call("prices_list"), buy("cup"), DONE])
    assert [m["role"] for m in start.messages] == ["system", "user"]
    assert start.messages[1]["content"] == "Buy a cup."
    assert [tool["function"]["name"] for tool in start.tools] == ["prices_list", "buy"]
    assert seen.messages[0]["content"] == "pen 1, cup 2, bought 0"
    assert bought.messages[0]["content"] == "You have 1 things." and not bought.done
    assert end.stop is StopReason.DONE and end.score is not None and end.score.success
    half = performed(shop, task, [buy("pen"), buy("cup"), *[make_call("prices_list")] * 4])[-1]
    assert half.messages[0]["content"] == "pen 1, cup 2, bought 2"  # the taskset's tool, its state
    assert half.stop is StopReason.TURN_LIMIT and half.score is not None
    assert half.score.similarity == 0.5 and not half.score.success
    [_, wrong, idle] = performed(shop, task, [buy("none"), DONE])
    assert wrong.messages[0]["content"] == "Error executing tool buy: there is none"
    assert idle.score is not None and idle.score.similarity == 0
    [_, bad] = performed(shop, task, [make_call("buy", thing=[3])])
    assert bad.messages[0]["content"].startswith("Error executing tool buy: 1 validation error")


def test_a_stop_of_the_task_ends_the_episode(shop: Any) -> None:
    last = performed(shop, shop.tasks("test")[0], [buy("a"), buy("b"), buy("key")])[-1]
    assert last.done and last.stop is StopReason.DONE and last.score is not None
    assert last.score.similarity == 0.5


def test_a_task_in_two_splits_has_the_same_content(make: Callable[..., Any]) -> None:
    suite = make("verifiers", splits={"test": {"split": "test"}, "dev": {"split": "leak"}}, **SHOP)
    assert in_both(suite, "test", "dev") == ["verifiers/vf_shop/dev/0000"]


def test_the_contract_holds(shop: Any) -> None:
    report = check(shop, shop.tasks("test"))
    assert report.ok, str(report)
    assert shop.about()["data"].startswith("vf_shop without a version, tasks ")


def test_a_fault_in_a_call_or_a_reward_is_the_environments(shop: Any) -> None:
    task = shop.tasks("test")[0]
    for thing, says in (
        ("huge", "cannot be used"),
        ("slow", "no answer within 10 s"),
        ("high", "more than env.full=1"),
        ("nan", "the world's reward is nan"),
        ("broken", "ZeroDivisionError: no things"),
    ):
        with pytest.raises(EpisodeError, match=says) as caught:
            performed(shop, task, [buy(thing), DONE])
        assert caught.value.boundary == "environment"
    last = performed(shop, task, [buy("key"), DONE])[-1]
    assert last.score is not None and last.score.success


def test_without_splits_a_tasks_key_decides_and_no_end_is_cut(
    make: Callable[..., Any],
) -> None:
    endless = {"split": "endless", "kind": "spoken"}
    suite = make("verifiers", args=endless, **SHOP)
    sizes = {split: len(suite.tasks(split)) for split in suite.splits()}
    assert sum(sizes.values()) == 2000
    assert 1150 < sizes["train"] < 1350 and 200 < sizes["dev"] < 300 and 430 < sizes["test"] < 570
    with pytest.raises(EpisodeError, match="not of plain system and user messages"):
        performed(suite, suite.tasks("dev")[0])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "box": ({"args": {"kind": "box"}}, "it needs a box, in which setup acts"),
    "judged": ({"args": {"kind": "judged"}}, "it needs a box, in which judged acts"),
    "container": ({"args": {"kind": "container"}}, "it needs a container"),
    "reading": ({"args": {"kind": "reading"}}, "it needs the model's endpoint"),
    "far": ({"args": {"kind": "far"}}, "it needs a tool server elsewhere"),
    "image": ({"args": {"kind": "image"}}, "it needs a box with its image"),
    "user": ({"args": {"kind": "user"}}, "it needs a user who opens the conversation"),
    "loop": ({"taskset": "openenv", "args": {"base_url": "x"}}, "own (OpenEnvEnv.run)"),
    "harbor": ({"taskset": "harbor"}, "it needs a loop of its own (HarborEnv.run)"),
    "none": ({"taskset": "no-such-shop"}, "'no-such-shop' not found"),
    "no taskset": ({"taskset": "mcp_tasks"}, "defines no `__all__`"),
    "setting": ({"args": {"prise": 3}}, "prise"),
}
PROGRAM = """
import json, sys
from trace_bench.core.errors import UserError
from trace_bench.envs.verifiers import VerifiersSettings, VerifiersSuite
said = {}
for name, options in json.loads(sys.argv[1]).items():
    try:
        VerifiersSuite(VerifiersSettings(**options))
    except UserError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def test_what_cannot_be_played_in_process_is_refused_in_words() -> None:
    given = {name: {**SHOP, **options} for name, (options, _) in REFUSED.items()}
    done = subprocess.run(
        [python_of("verifiers"), "-c", PROGRAM, json.dumps(given)],
        cwd=HERE, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": f"{Path(trace_bench.__file__).parents[1]}:{HERE}"},
    )  # fmt: skip
    said = json.loads(done.stdout.splitlines()[-1])
    for name, (_, says) in REFUSED.items():
        assert says in said.get(name, ""), (name, said.get(name))
        assert "Change `env." in said[name]
