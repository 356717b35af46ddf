"""Synthetic tasks of the phone world that need two capabilities."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import SynthesizesDomains, SynthesizesPairs
from trace_bench.core.types import Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios import CAPABILITIES, EmbeddedSuite
from trace_bench.envs.toolsandbox.scenarios.pools import belongs, share
from trace_bench.envs.toolsandbox.tools.search import data
from trace_bench.methods.trace.synthesis.draw import self_test
from trace_bench.sandbox.choose import Sandbox
from trace_bench.sandbox.generated import untrusted_suite

SUITE = EmbeddedSuite()
PAIRS = list(permutations(CAPABILITIES, 2))
UNSEEN = {"takes_exact_arguments_from_results", "tells_the_user"}  # every task needs these


@pytest.mark.parametrize("both", PAIRS, ids="+".join)
def test_the_reference_solves_what_needs_both(both: tuple[str, str]) -> None:
    tasks = [SUITE.synthetic_pair(*both, seed) for seed in range(2)]
    assert len({t.data["user"]["opening"] for t in tasks}) == 2
    for task in tasks:
        assert set(task.data["requires"]) == set(both) - UNSEEN
        assert self_test(SUITE, task) is None
        assert task.data["contrast"] is False and belongs("synthetic", task.data["wording"])
        assert SUITE.task(task.id) == task
        weights = task.data["weights"]
        assert len(weights) == len(task.data["milestones"]) > 0


def test_the_reward_is_split_as_for_one_capability() -> None:
    """0.6 for the acts and 0.4 for what the user is told, whatever their number."""
    made = [SUITE.synthetic_pair("recovers_from_errors", "disambiguates", n) for n in range(12)]
    both = [task for task in made if 1.0 not in task.data["weights"]]
    assert len(both) > 3
    for task in both:
        env = ToolSandboxEnv()
        step = env.reset(task)
        for message in SUITE.reference(task):
            acts = message.get("tool_calls")
            step = env.step(message if acts else {"role": "assistant", "content": "Done."})
            if step.done:
                break
        score = step.score or env.score()
        told = [n for n, m in enumerate(score.milestones) if m.tells is not None]
        weights = task.data["weights"]
        assert sum(weights) == pytest.approx(1.0)
        assert sum(weights[n] for n in told) == pytest.approx(0.4)
        assert score.similarity <= 0.6 + 1e-9 and not score.success


def test_people_are_those_of_training_environments() -> None:
    names = {*share(data("words")["first"], "synthetic")}
    for both in PAIRS[::7]:
        for row in SUITE.synthetic_pair(*both, 3).data["start"]["CONTACT"]:
            assert row["name"].split()[0] in names


@pytest.mark.parametrize(
    ("both", "words"),
    [
        (("x", "disambiguates"), "unknown capability 'x'; allowed: recovers_from_errors"),
        (("disambiguates", "x"), "unknown second capability 'x'"),
        (("disambiguates", "disambiguates"), "unknown second capability 'disambiguates'"),
    ],
)
def test_what_is_no_pair_is_refused(both: tuple[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        SUITE.synthetic_pair(*both, 0)


@pytest.fixture(scope="module")
def distant() -> Iterator[Any]:
    """The suite in a worker, which answers by remote calls."""
    source = "from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite as suite"
    suite: Any = untrusted_suite(source, Sandbox("process", allow_untrusted=True), print)
    yield suite
    suite.close()


def test_a_suite_in_a_sandbox_makes_the_same_tasks_of_domains(distant: Any) -> None:
    assert list(distant.domains()) == list(SUITE.domains())
    task: Task = distant.synthetic_in("shop", 3)
    assert task == SUITE.synthetic_in("shop", 3) and self_test(distant, task) is None
    with pytest.raises(UserError, match="unknown domain 'x'"):
        distant.synthetic_in("x", 3)
    assert isinstance(distant, SynthesizesDomains)


def test_a_suite_in_a_sandbox_makes_the_same_pairs(distant: Any) -> None:
    assert isinstance(distant, SynthesizesPairs)
    assert distant.partners("disambiguates") == list(SUITE.partners("disambiguates"))
    made: Task = distant.synthetic_pair("disambiguates", "converts_values", 7)
    assert made == SUITE.synthetic_pair("disambiguates", "converts_values", 7)
    with pytest.raises(UserError, match="unknown second capability 'x'"):
        distant.synthetic_pair("disambiguates", "x", 7)
